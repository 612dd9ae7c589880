"""IoU and GIoU loss of paired boxes on a GPU, in one launch each instead of dozens in plain torch."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 128


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Bit-identical to :func:`rankwise.boxes.paired_iou`."""
    boxes, others = torch.broadcast_tensors(boxes, others)
    boxes, others = boxes.contiguous(), others.contiguous()
    result = boxes.new_empty(boxes.shape[:-1])
    if result.numel():
        grid = (triton.cdiv(result.numel(), BLOCK),)
        # Without fused multiply-add, which would round differently from `table_iou`.
        paired_iou[grid](boxes, others, result, result.numel(), BLOCK=BLOCK, enable_fp_fusion=False)
    return result


class GIoULoss(torch.autograd.Function):
    """:func:`rankwise.boxes.giou_loss` with a gradient for the first boxes, computed along with the value."""

    @staticmethod
    def forward(ctx: Any, boxes: Tensor, others: Tensor, epsilon: float) -> Tensor:
        boxes, others = boxes.contiguous(), others.contiguous()
        loss, gradient = boxes.new_empty(boxes.shape[:-1]), torch.empty_like(boxes)
        if loss.numel():
            grid = (triton.cdiv(loss.numel(), BLOCK),)
            giou[grid](boxes, others, loss, gradient, loss.numel(), EPSILON=epsilon, BLOCK=BLOCK)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream.unsqueeze(-1), None, None


@triton.jit
def load(boxes, at, valid):  # type: ignore[no-untyped-def]
    """Left, top, right and bottom of the boxes at these indices."""
    left, top = tl.load(boxes + at * 4, mask=valid), tl.load(boxes + at * 4 + 1, mask=valid)
    right, bottom = tl.load(boxes + at * 4 + 2, mask=valid), tl.load(boxes + at * 4 + 3, mask=valid)
    return left, top, right, bottom


@triton.jit
def paired_iou(boxes, others, result, number, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One lane per pair."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = at < number
    x1, y1, x2, y2 = load(boxes, at, valid)
    u1, v1, u2, v2 = load(others, at, valid)
    width = tl.maximum(tl.minimum(x2, u2) - tl.maximum(x1, u1), 0.0)
    height = tl.maximum(tl.minimum(y2, v2) - tl.maximum(y1, v1), 0.0)
    shared = width * height
    area = tl.maximum(tl.maximum(x2 - x1, 0.0) * tl.maximum(y2 - y1, 0.0), 1e-12)
    other_area = tl.maximum(tl.maximum(u2 - u1, 0.0) * tl.maximum(v2 - v1, 0.0), 1e-12)
    union = area + other_area - shared
    quotient = tl.div_rn(shared, union) if shared.dtype == tl.float32 else shared / union
    tl.store(result + at, quotient, mask=valid)


@triton.jit
def giou(  # type: ignore[no-untyped-def]
    boxes, others, loss, gradient, number, EPSILON: tl.constexpr, BLOCK: tl.constexpr
):
    """One lane per pair: 1 - GIoU and its gradient. Where two sides are equal, this box gets half of the gradient."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = at < number
    x1, y1, x2, y2 = load(boxes, at, valid)
    u1, v1, u2, v2 = load(others, at, valid)
    width = tl.minimum(x2, u2) - tl.maximum(x1, u1)
    height = tl.minimum(y2, v2) - tl.maximum(y1, v1)
    inside = (width > 0) & (height > 0)
    shared = tl.where(inside, width * height, 0.0)
    own_width, own_height = x2 - x1, y2 - y1
    union = own_width * own_height + (u2 - u1) * (v2 - v1) - shared
    hull_width, hull_height = tl.maximum(x2, u2) - tl.minimum(x1, u1), tl.maximum(y2, v2) - tl.minimum(y1, v1)
    hull = hull_width * hull_height
    per_union, per_hull = 1.0 / (union + EPSILON), 1.0 / (hull + EPSILON)
    tl.store(loss + at, 1.0 - shared * per_union + (hull - union) * per_hull, mask=valid)
    by_union = shared * per_union * per_union - per_hull
    by_shared = tl.where(inside, -per_union - by_union, 0.0)
    by_hull = per_hull - (hull - union) * per_hull * per_hull
    # The share of this box in a side of the intersection; in the side of the hull, it has the rest.
    left = tl.where(x1 > u1, 1.0, tl.where(x1 == u1, 0.5, 0.0))
    top = tl.where(y1 > v1, 1.0, tl.where(y1 == v1, 0.5, 0.0))
    right = tl.where(x2 < u2, 1.0, tl.where(x2 == u2, 0.5, 0.0))
    bottom = tl.where(y2 < v2, 1.0, tl.where(y2 == v2, 0.5, 0.0))
    across, along = by_shared * height, by_hull * hull_height
    tl.store(gradient + at * 4, -(by_union * own_height + across * left + along * (1.0 - left)), mask=valid)
    tl.store(gradient + at * 4 + 2, by_union * own_height + across * right + along * (1.0 - right), mask=valid)
    across, along = by_shared * width, by_hull * hull_width
    tl.store(gradient + at * 4 + 1, -(by_union * own_width + across * top + along * (1.0 - top)), mask=valid)
    tl.store(gradient + at * 4 + 3, by_union * own_width + across * bottom + along * (1.0 - bottom), mask=valid)
