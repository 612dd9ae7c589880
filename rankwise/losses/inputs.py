"""Checks of what a loss is called with: which argument is wrong, where, and what to do about it."""

from __future__ import annotations

import torch
from torch import Tensor


def check_shapes(logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None) -> None:
    """Raise a ValueError if shapes or types don't fit together. Looks at no values, so it is free."""
    if logits.dim() != 2:
        raise ValueError(f"logits must be [A, C], one row an anchor and one column a class, got {_shape(logits)}")
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating point, got {logits.dtype}")
    if logits.shape[1] == 0:
        raise ValueError("logits must have at least one column, got [A, 0]")
    for name, tensor in (("labels", labels), ("quality", quality), ("image", image)):
        if tensor is None:
            continue
        if tensor.shape != logits.shape[:1]:
            raise ValueError(
                f"{name} must be [A] = [{logits.shape[0]}], one entry for each row of logits {_shape(logits)}, "
                f"got {_shape(tensor)}"
            )
        if tensor.device != logits.device:
            raise ValueError(f"{name} is on {tensor.device}, logits on {logits.device}: move one to the other's device")
    for name, tensor in (("labels", labels), ("image", image)):
        if tensor is not None and (tensor.is_floating_point() or tensor.dtype == torch.bool):
            raise ValueError(f"{name} must be integers, got {tensor.dtype}")
    if quality is not None and not quality.is_floating_point():
        raise ValueError(f"quality must be floating point, got {quality.dtype}")


def report_logits(logits: Tensor) -> None:
    """Raise a ValueError that says where ``logits`` [A, C] are not finite, if they are not."""
    bad = ~logits.isfinite()
    if number := int(bad.sum()):
        row, column = (int(i) for i in bad.nonzero()[0])
        raise ValueError(
            f"logits: {number} of {bad.numel()} are NaN or infinite, the first at [{row}, {column}] "
            f"({float(logits[row, column])}): look for a diverged step (lower the learning rate, clip gradients)"
        )


def report_labels(labels: Tensor, classes: int) -> None:
    """Raise a ValueError that says where ``labels`` [A] are out of range, if they are."""
    bad = (labels < -1) | (labels > classes)
    if number := int(bad.sum()):
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"labels: {number} of {labels.numel()} are outside -1..{classes}, the first is {int(labels[row])} at row "
            f"{row}: logits have {classes} columns, so 0..{classes - 1} is a class, {classes} background, -1 ignored"
        )


def report_quality(quality: Tensor, rows: Tensor) -> None:
    """Raise a ValueError that says where ``quality`` [A] is no IoU at the positive ``rows`` [P], if it is not."""
    at = quality[rows]
    bad = ~((at >= 0) & (at <= 1))
    if number := int(bad.sum()):
        row = int(rows[bad][0])
        nan = int(at.isnan().sum())
        raise ValueError(
            f"quality: {number} of {rows.numel()} positives have a value outside [0, 1] ({nan} of them NaN), the first "
            f"is {float(quality[row])} at row {row}: give the IoU of each positive's predicted box with its ground "
            "truth, clamped to [0, 1]"
        )


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
