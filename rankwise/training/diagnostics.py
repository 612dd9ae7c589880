"""Diagnostics: messages about steps that were not finite and about errors that users can fix."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from rankwise.distributed import StoppedElsewhere
from rankwise.errors import UserError
from rankwise.files.writing import WriteError, not_written
from rankwise.training.checkpoint import CheckpointError
from rankwise.types import Batch, Predictions

_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_NO_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory", "bad_alloc")
_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo", "NCCL", "Socket Timeout")


class TrainingStopped(UserError, RuntimeError):
    """The run cannot continue; the message says why and what to try."""


@dataclass(frozen=True)
class Symptoms:
    """The values of a step that were not finite, in one process.

    Attributes:
        wrong: Descriptions of these values.
        images: Names of the images involved.
    """

    wrong: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


def names_of(batch: Batch) -> list[str]:
    """The names of the images of a batch for messages."""
    return [str(target.get("name", target.get("image_id", "?"))) for target in batch.targets]


def symptoms_of_predictions(predictions: Predictions, batch: Batch) -> Symptoms:
    """The predictions that are not finite, with their images."""
    wrong, bad = [], torch.zeros(len(batch.targets), dtype=torch.bool)
    for name in ("logits", "boxes"):
        broken = ~torch.isfinite(getattr(predictions, name).detach()).flatten(1)
        if bool(broken.any()):
            wrong.append(f"{int(broken.sum())} of {broken.numel()} {name}")
            bad |= broken.any(1).cpu()
    images = [name for name, is_bad in zip(names_of(batch), bad.tolist(), strict=True) if is_bad]
    return Symptoms(tuple(wrong), tuple(images))


def symptoms_of_losses(terms: dict[str, Tensor], norm: Tensor, model: nn.Module, batch: Batch) -> Symptoms:
    """The losses, or else the gradients, that are not finite; any image of the batch may be the cause."""
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
    """The symptoms of all processes combined."""
    known = [one for one in symptoms if one.wrong]
    # The gradient is the same in all processes: if a loss was the cause, the other processes have nothing to add.
    known = [one for one in known if not one.wrong[0].startswith("gradient")] or known
    wrong = dict.fromkeys(text for one in known for text in one.wrong)
    images = dict.fromkeys(name for one in known for name in one.images)
    return Symptoms(tuple(wrong), tuple(images))


def diagnosis(symptoms: Symptoms, in_a_row: int, lr: float, precision: str, model: nn.Module, folder: Path) -> str:
    """The message after too many consecutive steps that were not finite."""
    broken = broken_weight(model)
    weights = f" The weights are no longer finite either, first {broken}." if broken else ""
    return (
        f"{in_a_row} steps in a row were not finite: {', '.join(symptoms.wrong)}.{weights} {advice(lr, precision)}. "
        f"Last images: {', '.join(symptoms.images)}. {_go_back(folder)}"
    )


def broken_weight(model: nn.Module) -> str | None:
    """The name of the first weight that is not finite, if there is one."""
    return next((name for name, weight in model.named_parameters() if not bool(torch.isfinite(weight).all())), None)


def broken_weight_message(name: str, lr: float, precision: str, folder: Path) -> str:
    """The message when weights are not finite and therefore not saved."""
    return f"the weights are no longer finite, first {name}. {advice(lr, precision)}. {_go_back(folder)}"


def advice(lr: float, precision: str) -> str:
    """What to try when values are not finite."""
    text = (
        f"The learning rate is {lr:.2g}: try a tenth of it (--optimizer.lr), a longer warm-up "
        "(--schedule.warmup_steps) or --optimizer.clip_norm 10"
    )
    return f"{text}; --train.precision bf16 overflows less than 16" if precision == "16" else text


def _go_back(folder: Path) -> str:
    if (folder / "last.ckpt").is_file():
        return f"The last checkpoint is from before that; resume it with: rankwise train --resume {folder}"
    return "There is no checkpoint yet: start the run again"


def with_advice(error: Exception, folder: Path, rank: int) -> Exception:
    """Turns a common error into one that says what to do; other errors are returned unchanged.

    Errors that all processes notice are reported by rank 0.
    """
    text = str(error)
    again = f"rankwise train --resume {folder}"
    if isinstance(error, OSError) and error.errno in _NOT_WRITTEN:
        error = not_written(Path(os.fsdecode(error.filename or folder)), error)
    if isinstance(error, WriteError):
        can_resume = (folder / "recipe.yaml").is_file()
        return WriteError(f"{error} Resume with: {again}" if can_resume else str(error), error.number)
    if isinstance(error, CheckpointError | TrainingStopped):
        return error
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _any_in(_NO_MEMORY, text):
        device = "GPU memory" if isinstance(error, torch.OutOfMemoryError) else "memory"
        return TrainingStopped(
            f"{device} ran out. Reduce the memory per step: --train.accumulate 2 (or more) computes the same step in "
            f"parts and works with --resume; --train.precision bf16 halves much of it; a smaller --train.batch_size "
            f"or --size needs a new run. --data.workers also uses main memory. Resume with: "
            f"{again} --train.accumulate 2"
        )
    if text.startswith("a loader worker died"):
        return TrainingStopped(
            f"{text.partition(';')[0]}. Usually memory ran out: use fewer --data.workers or smaller "
            f"images. With --data.workers 0, the training process reads them itself and shows the error. Resume "
            f"with: {again}"
        )
    if isinstance(error, RuntimeError) and _any_in(_LOST, text):
        if rank:
            return StoppedElsewhere()
        return TrainingStopped(
            f"another process of the run has died or cannot be reached ({text.splitlines()[0][:200]}). Its message "
            f"is above or in the log of its machine. Resume with: {again}"
        )
    return error


def _any_in(signs: Iterable[str], text: str) -> bool:
    return any(sign in text for sign in signs)
