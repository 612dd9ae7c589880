"""Dense targets: one target per entry, several positives per row, masks and weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankwise.losses.inputs import ROUNDING, Samples, without_bad_numbers

#: Entries this far below the lowest positive do not contribute to a ranking, however flat the distance is.
FAR_BELOW = 1e12

#: Types of targets that are read as they are.
READ = (torch.float32, torch.float64)

#: A ranking splits rows with several positives if at most this fraction of rows is added.
FEW_ADDED = 0.25


@dataclass(frozen=True)
class DenseTargets:
    """Dense targets after the checks, as rows.

    Attributes:
        logits: Attached to the graph, at least float32, [A, C].
        rows: The rows of the P positives, ascending, int64 [P].
        classes: The class of each positive, int64 [P].
        quality: The target of each positive, in the dtype of the logits, [P].
        image: The image of each row, int64 [A].
        ignored: Ignored entries, bool [A, C] or [A, 1]; None if there are none.
        weight: Weight of each entry, [A, C]; None if all are 1.
        normalizer: Divisor instead of the number of positives, or None.
    """

    logits: Tensor
    rows: Tensor
    classes: Tensor
    quality: Tensor
    image: Tensor
    ignored: Tensor | None
    weight: Tensor | None
    normalizer: Tensor | None

    def samples(self) -> Samples:
        """The samples for losses with one term per sample."""
        return Samples(
            logits=without_bad_numbers(self.logits, self.ignored),
            labels=self.rows[:0],
            rows=self.rows,
            classes=self.classes,
            quality=self.quality,
            image=self.image,
            ignored=self.ignored,
            weight=self.weight,
            normalizer=self.normalizer,
        )

    def labelled(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same samples for a ranking, with at most one positive per row: logits, labels, quality and image.

        Without a mask and with one positive per row, the logits are passed on unchanged. Masked rows become ignored
        rows, and masked entries are moved far below all positives. Additional positives of a row get their own rows; if
        there are many, every entry becomes a row.
        """
        logits, (count, classes) = self.logits, self.logits.shape
        later = self.rows[1:] == self.rows[:-1]
        added = int(later.sum())
        if added > FEW_ADDED * count:
            return self._one_row_per_entry()
        labels, ignored = torch.full((count,), classes, device=logits.device), self.ignored
        if ignored is not None and ignored.shape[1] == 1:
            labels.masked_fill_(ignored.squeeze(1), -1)
            ignored = None
        quality = self.quality.new_zeros(count)
        if not added:
            labels.index_copy_(0, self.rows, self.classes)
            quality.index_copy_(0, self.rows, self.quality)
            nobody = self.rows[:0]
            if ignored is not None:
                logits = _Separated.apply(logits, ignored, nobody, nobody, self._far_below())
            return logits, labels, quality, self.image
        later = torch.cat([later.new_zeros(1), later])
        first = self.rows[~later]
        labels[first], quality[first] = self.classes[~later], self.quality[~later]
        moved = self.rows[later], self.classes[later]
        return (
            _Separated.apply(logits, ignored, *moved, self._far_below()),
            torch.cat([labels, labels.new_zeros(added)]),
            torch.cat([quality, self.quality[later]]),
            torch.cat([self.image, self.image[moved[0]]]),
        )

    def _one_row_per_entry(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same samples as rows of one class."""
        count, classes = self.logits.shape
        logits, where = self.logits, self.rows * classes + self.classes
        labels = torch.ones(count * classes, dtype=torch.int64, device=logits.device)
        quality = self.quality.new_zeros(count * classes)
        labels[where], quality[where] = 0, self.quality
        if self.ignored is not None:
            labels[self.ignored.expand(count, classes).flatten()] = -1
            logits = logits.masked_fill(self.ignored, self._far_below())
        return logits.reshape(-1, 1), labels, quality, self.image.repeat_interleave(classes)

    def _far_below(self) -> float:
        positives = self.logits.detach()[self.rows, self.classes]
        lowest = float(positives.min()) if len(positives) else 0.0
        return (lowest if math.isfinite(lowest) else 0.0) - FAR_BELOW


class _Separated(torch.autograd.Function):
    """Logits without ignored entries, and with rows of their own for some entries, in one copy.

    The gradient of what is far below is 0, so that backward has nothing to fill.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ignored: Tensor | None, rows: Tensor, classes: Tensor, low: float) -> Tensor:
        count = len(logits)
        out = logits.new_empty(count + len(rows), logits.shape[1])
        out[count:] = low
        if ignored is None:
            out[:count] = logits
        else:
            torch.where(ignored, logits.new_tensor(low), logits, out=out[:count])
        out[count:, 0], out[rows, classes] = logits[rows, classes], low
        ctx.count = count
        ctx.save_for_backward(rows, classes)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, classes = ctx.saved_tensors
        own = gradient[: ctx.count]
        if len(rows):
            own[rows, classes] = gradient[ctx.count :, 0]  # in place: nobody else has this gradient
        return own, None, None, None, None


def read_dense(
    logits: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    normalizer: Tensor | float | None = None,
) -> DenseTargets:
    """Checks the arguments of a dense call and finds the positives.

    Args:
        logits: Float [..., C]; half precision is converted to float32. The first dimension is the image.
        targets: [..., C] in [0, 1]: positive if above 0, with the target as quality.
        mask: Bool [..., C], or [...] for whole rows, or what broadcasts to it: False entries are not read.
        weight: Weight of each entry, float, with a shape as for ``mask``.
        normalizer: Divisor instead of the number of positives.

    Raises:
        TypeError: If something is not a tensor.
        ValueError: If something has the wrong shape or type, is out of range, NaN or infinite.
    """
    for name, value in {"logits": logits, "targets": targets, "mask": mask, "weight": weight}.items():
        if not (isinstance(value, Tensor) or (value is None and name in ("mask", "weight"))):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if logits.ndim < 2 or logits.shape[-1] == 0 or not logits.is_floating_point():
        raise ValueError(
            f"logits must be floating point of shape [..., classes], got {logits.dtype} {list(logits.shape)}"
        )
    if targets.shape != logits.shape or targets.is_complex():
        raise ValueError(
            f"targets must have the shape of logits, {list(logits.shape)}, got {targets.dtype} {list(targets.shape)}"
        )
    classes, images = logits.shape[-1], logits.shape[0]
    working = torch.promote_types(logits.dtype, torch.float32)
    kept = None
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError(f"mask must be bool, True where an entry counts, got {mask.dtype}")
        kept = _entries("mask", mask, logits)
    ignored = None if kept is None else ~kept
    rows_of_targets = _rows(targets.detach(), targets.dtype if targets.dtype in READ else working)
    rows, kinds, quality = _positives(rows_of_targets, kept)
    if weight is not None:
        weight = _entries("weight", weight.detach(), logits).expand(-1, classes).to(working)
        counted = weight if ignored is None else weight.masked_fill(ignored, 0)
        if not bool((counted.isfinite() & (counted >= 0)).all()):
            raise ValueError("weight must be finite and at least 0")
    image = torch.arange(images, device=logits.device)
    return DenseTargets(
        logits=_rows(logits, working),
        rows=rows,
        classes=kinds,
        quality=quality if quality.dtype == working else quality.to(working),
        image=image if logits.ndim == 2 else image.repeat_interleave(len(rows_of_targets) // max(1, images)),
        ignored=ignored,
        weight=weight,
        normalizer=None if normalizer is None else _normalizer(normalizer, logits.device, working),
    )


def _rows(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values [..., C] as rows [A, C]. If they are, no operation is called: each takes time if samples are few."""
    values = values if values.ndim == 2 else values.reshape(-1, values.shape[-1])
    return values if values.dtype == dtype else values.to(dtype)


def _entries(name: str, value: Tensor, logits: Tensor) -> Tensor:
    """A mask or weight for rows, [A, C] or [A, 1]."""
    if value.shape == logits.shape[:-1] != logits.shape:
        return value.reshape(-1, 1)
    try:
        return value.broadcast_to(logits.shape).reshape(-1, logits.shape[-1])
    except RuntimeError:
        raise ValueError(
            f"{name} must have the shape {list(logits.shape)}, or {list(logits.shape[:-1])} for whole rows, "
            f"got {list(value.shape)}"
        ) from None


def _positives(targets: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and classes of the targets above 0, ascending, int64 [P], and these targets, at most 1, [P].

    Args:
        targets: float32 or float64 [A, C].
        kept: Entries that are read, bool [A, C] or [A, 1]; None for all.

    Raises:
        ValueError: If a target is NaN or out of range.
    """
    if targets.device.type == "cpu" and find_spec("numba") is not None:
        from rankwise.losses.targets_numba import positive_targets

        positives = positive_targets(targets.contiguous(), None if kept is None else kept.contiguous())
        if positives is not None:
            return positives
    targets = targets if kept is None else targets.masked_fill(~kept, 0)
    low, high = (float(value) for value in targets.aminmax()) if targets.numel() else (0.0, 0.0)
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):  # also for NaN
        wrong = ~((targets >= -ROUNDING) & (targets <= 1 + ROUNDING))
        first = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"targets must be in [0, 1]; {int(wrong.sum())} of {targets.numel()} are not, the first is "
            f"{float(targets[tuple(first)]):g} in row {first[0]}, class {first[1]}"
        )
    # The sum of a row takes a fifth of the time of its maximum, but negative rounding errors could cancel a positive.
    some = ((targets.sum(1) if low >= 0 else targets.amax(1)) > 0).nonzero().squeeze(1)
    which, classes = (targets.index_select(0, some) > 0).nonzero().unbind(1)
    rows = some[which]
    return rows, classes, targets[rows, classes].clamp_(max=1)


def _normalizer(value: Tensor | float, device: torch.device, dtype: torch.dtype) -> Tensor:
    scalar = torch.as_tensor(value, device=device, dtype=dtype).detach()
    if scalar.ndim or (device.type == "cpu" and not float(scalar) > 0):
        raise ValueError(f"normalizer must be a single number above 0, got {value}")
    return scalar
