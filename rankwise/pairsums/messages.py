"""Messages about invalid arguments of a loss: which tensor, how many values, where, and what to do."""

from __future__ import annotations

from torch import Tensor

from rankwise.pairsums.spec import ROUNDING


def bad_numbers(name: str, values: Tensor) -> str:
    """Of NaN and infinite values."""
    nan, infinite = int(values.isnan().sum()), int(values.isinf().sum())
    first = (~values.isfinite()).nonzero()[0].tolist()
    return (
        f"{name}: {nan} of {values.numel()} values are NaN and {infinite} infinite, the first at index {first}. Lower "
        "the learning rate, clip the gradients or look for the layer that overflows"
    )


def bad_labels(labels: Tensor, classes: int) -> str:
    """Of labels out of range, [A]."""
    wrong = ((labels < -1) | (labels > classes)).nonzero().squeeze(1)
    return (
        f"labels must be -1 (ignored) to {classes} (background, the number of classes); {len(wrong)} of {len(labels)} "
        f"are not, the first is {int(labels[wrong[0]])} in row {int(wrong[0])}"
    )


def bad_quality(quality: Tensor, rows: Tensor) -> str:
    """Of qualities of positives that are not IoUs, [P], of these rows."""
    if not bool(quality.isfinite().all()):
        return bad_numbers("quality at positives", quality)
    wrong = ((quality < -ROUNDING) | (quality > 1 + ROUNDING)).nonzero().squeeze(1)
    first = int(wrong[0])
    return (
        f"quality must be within [0, 1] at positives; {len(wrong)} of {len(quality)} are not, the first is "
        f"{float(quality[first]):g} in row {int(rows[first])}"
    )
