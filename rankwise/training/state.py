"""The complete state of a run, to be saved in checkpoints and restored under a compatible recipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import Precision

from rankwise.config.recipe import Recipe
from rankwise.criterion import Criterion
from rankwise.data.dataset import DetectionDataset
from rankwise.distributed import all_raise
from rankwise.errors import SettingsError
from rankwise.files.names import escaped
from rankwise.files.parsing import ParseError, set_aside
from rankwise.files.writing import remove_parts
from rankwise.models import Detector
from rankwise.training.average import MovingAverage
from rankwise.training.checkpoint import LAST, load_checkpoint

FINGERPRINT = "fingerprint"


@dataclass
class Progress:
    """The progress of a run.

    Attributes:
        epoch: The current epoch, from 0.
        batch: Finished steps of this epoch; all of them during its evaluation.
        step: Finished steps in total.
        best_ap: The best AP so far; -1 before the first evaluation.
        skipped: Steps skipped because the loss or a gradient was not finite.
        bad_in_a_row: Number of consecutive skipped steps until now.
        faults: Number of times an unreadable image was skipped.
        evaluated: The step after which the detector was last evaluated.
        stale: Evaluations since the best one.
        seconds: Duration of a run with a time budget so far.
        steps: Number of steps that fit into the budget; 0 without one.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best_ap: float = -1.0
    skipped: int = 0
    bad_in_a_row: int = 0
    faults: int = 0
    evaluated: int = 0
    stale: int = 0
    seconds: float = 0.0
    steps: int = 0


@dataclass
class RunState:
    """The objects whose state a checkpoint contains.

    Attributes:
        detector: The trained detector.
        criterion: The losses, some of which have state.
        optimizer: The optimizer.
        ema: The moving average of the weights, if there is one.
        precision: The precision plugin; with 16-bit floats it holds the loss scale.
        fixed: Settings that must not change on resume, see :func:`fixed_settings`.
        progress: The progress of the run.
        notes: Messages for the user about a loaded state.
    """

    detector: Detector
    criterion: Criterion
    optimizer: torch.optim.Optimizer
    ema: MovingAverage | None
    precision: Precision
    fixed: dict[str, Any]
    progress: Progress
    notes: list[str] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and plain values. It has no random state, which follows from seed, step and image."""
        return {
            "progress": asdict(self.progress),
            "settings": self.detector.settings.without_pretrained().to_dict(),
            "detector": self.detector.state_dict(),
            "criterion": self.criterion.state_dict(),
            "optimizer": {"state": self.optimizer.state_dict()["state"], "weights": self._weights()},
            "ema": self.ema.module.state_dict() if self.ema is not None else None,
            "precision": self.precision.state_dict(),
            "fixed": self.fixed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state.

        Learning rate, weight decay and similar settings come from the current recipe, not from the checkpoint.

        Raises:
            SettingsError: If the recipe or the dataset is not compatible.
        """
        with _fitting():
            fixed, progress = dict(state["fixed"]), _progress(state["progress"])
        for name, now in self.fixed.items():
            before = fixed.get(name)
            if name == FINGERPRINT:
                if before is not None and before != now:
                    self.notes.append(
                        "WARNING: the training images or their annotations have changed since the last checkpoint, "
                        "although their number has not: the run continues with different data"
                    )
            elif before != now:
                raise SettingsError(_changed(name, before, now))
        with _fitting():
            self.detector.load_state_dict(state["detector"])
            self.criterion.load_state_dict(state["criterion"])
            if self.ema is not None:
                self.ema.module.load_state_dict(state["ema"] or state["detector"])
            if state["precision"]:
                self.precision.load_state_dict(state["precision"])
            if self._weights() != state["optimizer"]["weights"]:
                raise ValueError("the set of trained weights has changed")
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": groups})
        for name, value in progress.items():
            setattr(self.progress, name, value)

    def _weights(self) -> list[list[int]]:
        """The number of weights in each group of the optimizer."""
        return [group["params"] for group in self.optimizer.state_dict()["param_groups"]]


def _progress(saved: dict[str, Any]) -> dict[str, Any]:
    """The progress in a checkpoint, which may be untrusted: known names with numbers that a run can have reached."""
    usual = asdict(Progress())
    for name, value in saved.items():
        kind = int if type(usual.get(name)) is int else int | float
        if name not in usual or not isinstance(value, kind) or not -1 <= value < 2**53:
            raise ValueError(f"its progress has {name} {value!r}")
    return saved


def read_checkpoint(folder: Path, name: str, fabric: Fabric) -> dict[str, Any] | None:
    """Reads the checkpoint of a run, in all processes; None if the run was stopped before the first one."""
    state, last = None, folder / LAST
    with all_raise():
        if fabric.is_global_zero:
            remove_parts(folder)
            # If there is a best detector but no checkpoint, the checkpoint was removed.
            if name != LAST or last.exists() or (folder / "best.safetensors").exists():
                state = load_checkpoint(folder / name)
            if name != LAST and last.exists():
                set_aside(last)  # otherwise the next checkpoint would replace the good one with it
    return fabric.broadcast(state)  # other machines may not have access to the folder


def fixed_settings(recipe: Recipe, dataset: DetectionDataset) -> dict[str, Any]:
    """The settings that determine the images of a step and the meaning of the saved state."""
    return {
        "classes": list(dataset.classes),
        "training images": len(dataset),
        FINGERPRINT: _fingerprint(dataset),
        "--train.batch_size": recipe.train.batch_size,
        "--train.seed": recipe.train.seed,
        "--data.balance": recipe.data.balance or None,  # as where a checkpoint is older than the flag
        "--optimizer.name": recipe.optimizer.name,
    }


def _fingerprint(dataset: DetectionDataset) -> str | None:
    try:
        return dataset.fingerprint()
    except (OSError, ParseError):  # an unreadable image is reported when it is loaded
        return None


def _changed(name: str, before: Any, now: Any) -> str:
    if name == "classes":
        return f"the classes of the dataset have changed: they were {before}, now they are {now}. Start a new run"
    if name == "training images":
        return (
            f"the dataset has changed: it had {before} training images, now it has {now}. Restore it, or start a new "
            f"run"
        )
    advice = ""
    if name == "--train.batch_size":
        advice = "; to save memory, add --train.accumulate 2, which computes the same steps in parts"
    return f"a resumed run must keep {name} {before}, but it is now {now}. Remove the flag, or start a new run{advice}"


@contextmanager
def _fitting() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = escaped(" ".join(str(error).split())[:300])
        raise SettingsError(
            f"the recipe does not match the checkpoint of the run ({reason}). Resume without flags for --model and "
            f"--loss, or start a new run"
        ) from error
