"""Bad days: what is said about steps that were not finite, and about errors that a user can do something about."""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from rankwise.distributed import StoppedElsewhere
from rankwise.files.writing import WriteError, not_written
from rankwise.training.checkpoint import CheckpointError
from rankwise.types import Batch, Predictions

_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_NO_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory", "bad_alloc")
_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo", "NCCL", "Socket Timeout")


class TrainingStopped(RuntimeError):
    """The run cannot go on; the message says why and what to try."""


@dataclass(frozen=True)
class Symptoms:
    """What was not finite in a step, on one process.

    Attributes:
        wrong: The values that were not finite, in words.
        images: Names of the images that were involved.
    """

    wrong: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


def names_of(batch: Batch) -> list[str]:
    """How messages speak of a batch's images."""
    return [str(target.get("name", target.get("image_id", "?"))) for target in batch.targets]


def symptoms_of_predictions(predictions: Predictions, batch: Batch) -> Symptoms:
    """Which predictions are not finite, and for which images."""
    wrong, bad = [], torch.zeros(len(batch.targets), dtype=torch.bool)
    for name in ("logits", "boxes"):
        broken = ~torch.isfinite(getattr(predictions, name).detach()).flatten(1)
        if bool(broken.any()):
            wrong.append(f"{int(broken.sum())} of {broken.numel()} {name}")
            bad |= broken.any(1).cpu()
    images = [name for name, is_bad in zip(names_of(batch), bad.tolist(), strict=True) if is_bad]
    return Symptoms(tuple(wrong), tuple(images))


def symptoms_of_losses(terms: dict[str, Tensor], norm: Tensor, model: nn.Module, batch: Batch) -> Symptoms:
    """Which losses are not finite, or else which gradients; all images of the batch may be the cause."""
    values = {name: float(value.detach()) for name, value in terms.items()}
    wrong = [f"{name} loss {value}" for name, value in values.items() if not math.isfinite(value)]
    if not wrong:
        broken = [
            name
            for name, weight in model.named_parameters()
            if weight.grad is not None and not bool(torch.isfinite(weight.grad).all())
        ]
        first = f", first in {broken[0]}" if broken else ""
        wrong = [f"gradient norm {float(norm)}{first}"]
    return Symptoms(tuple(wrong), tuple(names_of(batch)))


def joined(symptoms: Iterable[Symptoms]) -> Symptoms:
    """The symptoms of all processes as one."""
    known = [one for one in symptoms if one.wrong]
    wrong = dict.fromkeys(text for one in known for text in one.wrong)
    # A gradient is the same on all processes: where a loss was the cause, those without one have nothing to add.
    losses = [one for one in known if not one.wrong[0].startswith("gradient")]
    if losses:
        wrong = dict.fromkeys(text for one in losses for text in one.wrong)
    images = dict.fromkeys(name for one in losses or known for name in one.images)
    return Symptoms(tuple(wrong), tuple(images))


def diagnosis(symptoms: Symptoms, in_a_row: int, lr: float, precision: str, model: nn.Module, folder: Path) -> str:
    """What to say when too many steps in a row were not finite.

    Args:
        symptoms: Those of the last step.
        in_a_row: How many there were.
        lr: The learning rate.
        precision: The recipe's.
        model: The detector.
        folder: The run's folder.
    """
    broken = broken_weight(model)
    weights = f" The weights are no longer finite themselves, first {broken}." if broken else ""
    return (
        f"{in_a_row} steps in a row were not finite: {', '.join(symptoms.wrong)}.{weights} {advice(lr, precision)}. "
        f"Last images: {', '.join(symptoms.images)}. {_go_back(folder)}"
    )


def broken_weight(model: nn.Module) -> str | None:
    """The name of the first weight that is not finite, if there is one."""
    return next((name for name, weight in model.named_parameters() if not bool(torch.isfinite(weight).all())), None)


def broken_weight_message(name: str, lr: float, precision: str, folder: Path) -> str:
    """What to say instead of saving weights that are not finite."""
    return f"the weights are no longer finite, first {name}. {advice(lr, precision)}. {_go_back(folder)}"


def advice(lr: float, precision: str) -> str:
    """What to try when numbers are not finite."""
    text = (
        f"The learning rate is {lr:.2g}: try a tenth of it (--optimizer.lr), a longer warm-up "
        "(--schedule.warmup_steps) or --optimizer.clip_norm 10"
    )
    return f"{text}; --train.precision bf16 overflows less than 16" if precision == "16" else text


def _go_back(folder: Path) -> str:
    if (folder / "last.ckpt").is_file():
        return f"The last checkpoint is from before; go on from there with: rankwise train --resume {folder}"
    return "There is no checkpoint yet: start again"


def explained(error: Exception, folder: Path, rank: int) -> Exception:
    """The error in words that say what to do, where it is one of those that happen to everyone; else the error itself.

    Args:
        error: What was raised.
        folder: The run's folder.
        rank: Of this process: what all of them notice is said by the first.
    """
    text = str(error)
    again = f"rankwise train --resume {folder}"
    if isinstance(error, OSError) and error.errno in _NOT_WRITTEN:
        error = not_written(Path(os.fsdecode(error.filename or folder)), error)
    if isinstance(error, WriteError):
        can_resume = (folder / "recipe.yaml").is_file()
        return WriteError(f"{error} Go on with: {again}" if can_resume else str(error), error.number)
    if isinstance(error, CheckpointError | TrainingStopped):
        return error
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _any_in(_NO_MEMORY, text):
        device = "the GPU's memory" if isinstance(error, torch.OutOfMemoryError) else "memory"
        return TrainingStopped(
            f"{device} ran out. Lower what a step holds: --train.accumulate 2 (or more) takes the same step in parts "
            f"and works with --resume; --train.precision bf16 halves much of it; a smaller --train.batch_size or "
            "--model.input.short_side needs a new run. Main memory is also filled by --data.workers. "
            f"Go on with: {again} --train.accumulate 2"
        )
    if died := re.search(r"DataLoader worker \(pid.*?\) (exited unexpectedly|is killed by signal: [\w ]+)", text):
        return TrainingStopped(
            f"a loader worker died ({died.group()}). Most often memory ran out: set fewer --data.workers or smaller "
            f"images; --data.workers 0 shows what happens. Go on with: {again}"
        )
    if isinstance(error, RuntimeError) and _any_in(_LOST, text):
        if rank:
            return StoppedElsewhere()
        return TrainingStopped(
            f"another process of the run has died or cannot be reached ({text.splitlines()[0][:200]}). What it said is "
            f"above or in its machine's log. Go on with: {again}"
        )
    return error


def _any_in(signs: Iterable[str], text: str) -> bool:
    return any(sign in text for sign in signs)
