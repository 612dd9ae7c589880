"""Reading what a loss is called with: checks with clear errors, and where the positives are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: An IoU may leave [0, 1] by so much without being an error: it is clamped.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Samples:
    """The samples of a batch after the checks.

    Attributes:
        logits: At least float32, attached to the graph, [A, C].
        labels: int64 [A].
        rows: The rows of the P positives, rising, int64 [P].
        classes: Each positive's class, int64 [P].
        quality: Each positive's quality, detached, in the logits' type, [P]; None if the loss reads none.
        image: Which image each row is from, int64 [A], or None.
        has_ignored: Whether any row is ignored.
        marked: The rows that are not background, positive or ignored, rising, int64 [M].
        marks: Their labels, int64 [M].
    """

    logits: Tensor
    labels: Tensor
    rows: Tensor
    classes: Tensor
    quality: Tensor | None
    image: Tensor | None
    has_ignored: bool
    marked: Tensor
    marks: Tensor

    @property
    def positive_quality(self) -> Tensor:
        """Each positive's quality, of samples that were read with ``needs_quality``, [P]."""
        assert self.quality is not None
        return self.quality


def read_samples(
    logits: Tensor,
    labels: Tensor,
    quality: Tensor | None = None,
    image: Tensor | None = None,
    *,
    needs_quality: bool = False,
    needs_image: bool = False,
    finite: bool = True,
) -> Samples:
    """Check the arguments of a loss's call and find the positives.

    Args:
        logits: Float [A, C]; half precision is taken up to float32.
        labels: Integers [A], 0 to C - 1 a positive's class, C background, -1 ignored.
        quality: Float [A] within [0, 1] at positives; other rows are not looked at.
        image: Integers [A].
        needs_quality: Whether the loss reads the quality; if not, it is left unchecked.
        needs_image: Whether the loss reads the image indices; if not, they are left unchecked.
        finite: Whether to look for NaN and infinity among the logits; a loss that meets each of them anyway need not.

    Raises:
        ValueError: If an argument is missing, of the wrong shape or type, out of range, NaN or infinite.
    """
    if logits.ndim != 2 or logits.shape[1] == 0 or not logits.is_floating_point():
        raise ValueError(
            f"logits must be floating point of shape [samples, classes], got {logits.dtype} {list(logits.shape)}"
        )
    count, classes = logits.shape
    _check_rows("labels", labels, count, integer=True)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if finite:
        check_finite(logits.detach())
    marked = (labels != classes).nonzero().squeeze(1)  # few: all else is background, and so in range
    marks = labels[marked].long()
    lowest, highest = torch.stack(marks.aminmax()).tolist() if len(marks) else (0, 0)
    if lowest < -1 or highest > classes:
        wrong = marked[(marks < -1) | (marks > classes)]
        raise ValueError(
            f"labels must be -1 (ignored) to {classes} (background, the number of classes); {len(wrong)} of {count} "
            f"are not, the first is {int(labels[wrong[0]])} in row {int(wrong[0])}"
        )
    rows, of = (marked, marks) if lowest >= 0 else (marked[marks >= 0], marks[marks >= 0])
    if needs_image:
        if image is None:
            raise ValueError('scope="image" needs the argument image: which image each row is from, int64 [samples]')
        _check_rows("image", image, count, integer=True)
    return Samples(
        logits=logits,
        labels=labels,
        rows=rows,
        classes=of,
        quality=_positive_quality(quality, rows, count, logits.dtype) if needs_quality else None,
        image=image if needs_image else None,
        has_ignored=lowest < 0,
        marked=marked,
        marks=marks,
    )


def check_finite(logits: Tensor) -> None:
    """Raise a ValueError that says where, if a logit [A, C] is NaN or infinite."""
    if logits.numel():
        low, high = torch.stack(logits.aminmax()).tolist()  # NaN comes through aminmax
        if not (low > -torch.inf and high < torch.inf):
            raise ValueError(_bad_numbers("logits", logits))


def _positive_quality(quality: Tensor | None, rows: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    if quality is None:
        raise ValueError(
            "this loss needs the argument quality: the IoU of each positive's predicted box with its ground truth, "
            "float [samples]"
        )
    _check_rows("quality", quality, count, integer=False)
    picked = quality.detach()[rows].to(dtype)
    if len(picked):
        within = (picked >= -ROUNDING) & (picked <= 1 + ROUNDING)
        if not bool(within.all()):
            if not bool(torch.isfinite(picked).all()):
                raise ValueError(_bad_numbers("quality at positives", picked))
            first = int((~within).nonzero()[0])
            raise ValueError(
                f"quality must be within [0, 1] at positives; {int((~within).sum())} of {len(picked)} are not, "
                f"the first is {float(picked[first]):g} in row {int(rows[first])}"
            )
    return picked.clamp(0, 1)


def _check_rows(name: str, value: Tensor, count: int, integer: bool) -> None:
    kind = "integers" if integer else "floating point"
    right = not (value.is_floating_point() or value.dtype == torch.bool) if integer else value.is_floating_point()
    if value.shape != (count,) or not right:
        raise ValueError(
            f"{name} must be {kind} of shape [{count}], one for each row of logits, got {value.dtype} "
            f"{list(value.shape)}"
        )


def _bad_numbers(name: str, value: Tensor) -> str:
    nan, infinite = int(value.isnan().sum()), int(value.isinf().sum())
    first = (~value.isfinite()).nonzero()[0].tolist()
    return (
        f"{name}: {nan} of {value.numel()} values are NaN and {infinite} infinite, the first at index {first}. Lower "
        "the learning rate, clip the gradients or look for the layer that overflows"
    )


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Raise a ValueError if a constructor's argument is none of the known ones."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
