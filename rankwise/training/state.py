"""All that a run's future depends on beside its recipe, to be saved, and taken up again by a recipe that still fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import Precision
from timm.utils.model_ema import ModelEmaV3

from rankwise.config.recipe import Recipe
from rankwise.criterion import Criterion
from rankwise.data.dataset import DetectionDataset
from rankwise.distributed import all_raise
from rankwise.errors import SettingsError
from rankwise.files.parsing import ParseError, set_aside
from rankwise.files.writing import remove_parts
from rankwise.models import Detector, DetectorSettings
from rankwise.training.checkpoint import LAST, load_checkpoint

FINGERPRINT = "fingerprint"


@dataclass
class Progress:
    """Where a run is.

    Attributes:
        epoch: The epoch under way, from 0.
        batch: Steps of it that are done; all of them while it is being evaluated.
        step: Steps done in all.
        best_ap: The best AP so far; -1 before the first evaluation.
        skipped: Steps that were not taken because the loss or a gradient was not finite.
        bad_in_a_row: How many of these came last, one after the other.
        faults: How often an image could not be read and was left out.
        evaluated: The step after which the detector was last evaluated.
        stale: Evaluations since the best one.
        seconds: How long a run with a time budget has taken.
        steps: How long the budget lets it be; 0 without one.
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
    """What a checkpoint holds, as the objects it lives in.

    Attributes:
        detector: The detector that is trained.
        criterion: Its losses, some of which remember earlier batches.
        optimizer: The optimiser.
        ema: The average of the weights, if there is one.
        precision: With 16-bit floats it holds the factor on the loss.
        fixed: What must be the same when the run goes on, see :func:`fixed_settings`.
        progress: Where the run is.
        notes: What a user should hear about a state that was loaded.
    """

    detector: Detector
    criterion: Criterion
    optimizer: torch.optim.Optimizer
    ema: ModelEmaV3 | None
    precision: Precision
    fixed: dict[str, Any]
    progress: Progress
    notes: list[str] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """All of it as tensors and plain values. Random numbers need none: they follow from seed, step and image."""
        return {
            "progress": asdict(self.progress),
            "settings": without_pretrained(self.detector.settings).to_dict(),
            "detector": self.detector.state_dict(),
            "criterion": self.criterion.state_dict(),
            "optimizer": {"state": self.optimizer.state_dict()["state"], "weights": self._weights()},
            "ema": self.ema.module.state_dict() if self.ema is not None else None,
            "precision": self.precision.state_dict(),
            "fixed": self.fixed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes everything what it was when ``state`` was collected.

        What the recipe says of learning rate, weight decay and the like counts, not what it said then.

        Raises:
            SettingsError: If the recipe or the dataset no longer fits.
        """
        for name, now in self.fixed.items():
            before = state["fixed"].get(name)
            if name == FINGERPRINT:
                if before is not None and before != now:
                    self.notes.append(
                        "WARNING: the training images or their annotations have changed since the last checkpoint, "
                        "though not their number: from here on the run learns from other data than it began with"
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
                raise ValueError("other weights are trained now")
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": groups})
        for name, value in state["progress"].items():
            setattr(self.progress, name, value)

    def _weights(self) -> list[list[int]]:
        """The numbers of the weights in each of the optimiser's groups."""
        return [group["params"] for group in self.optimizer.state_dict()["param_groups"]]


def read_checkpoint(folder: Path, name: str, fabric: Fabric) -> dict[str, Any] | None:
    """What a checkpoint of a run holds, on all processes; None if the run was stopped before there was one.

    Args:
        folder: The run's.
        name: Name of the checkpoint's file.
        fabric: The processes.
    """
    state, last = None, folder / LAST
    with all_raise():
        if fabric.is_global_zero:
            remove_parts(folder)
            # A best detector without a checkpoint is no young run: the checkpoint was taken away.
            if name != LAST or last.exists() or (folder / "best.safetensors").exists():
                state = load_checkpoint(folder / name)
            if name != LAST and last.exists():
                set_aside(last)  # or the next checkpoint would put it in the place of the good one
    return fabric.broadcast(state)  # other machines need not see the folder


def fixed_settings(recipe: Recipe, dataset: DetectionDataset) -> dict[str, Any]:
    """What decides which images a step takes, and what the saved state means.

    Args:
        recipe: The run's.
        dataset: The training images.
    """
    return {
        "classes": list(dataset.classes),
        "training images": len(dataset),
        FINGERPRINT: _fingerprint(dataset),
        "--train.batch_size": recipe.train.batch_size,
        "--train.seed": recipe.train.seed,
        "--optimizer.name": recipe.optimizer.name,
    }


def _fingerprint(dataset: DetectionDataset) -> str | None:
    try:
        return dataset.fingerprint()
    except (OSError, ParseError):  # an image that cannot be read is told of when its turn comes
        return None


def without_pretrained(settings: DetectorSettings) -> DetectorSettings:
    """The same detector without its backbone's first weights, which the checkpoint replaces: they may be gone."""
    return replace(settings, backbone=replace(settings.backbone, pretrained=False))


def _changed(name: str, before: Any, now: Any) -> str:
    if name == "classes":
        return f"the dataset's classes have changed: they were {before}, now they are {now}. Start a new run"
    if name == "training images":
        return (
            f"the dataset has changed: it had {before} training images, now it has {now}. Put it back as it was, or "
            "start a new run"
        )
    advice = ""
    if name == "--train.batch_size":
        advice = "; for less memory add --train.accumulate 2, which takes the same steps in parts"
    return f"a run that goes on keeps {name} {before}, now it is {now}. Leave the flag out, or start a new run{advice}"


@contextmanager
def _fitting() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise SettingsError(
            f"the recipe no longer fits the run's checkpoint ({reason}). Go on without flags for --model and --loss, "
            "or start a new run"
        ) from error
