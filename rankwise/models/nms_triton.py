"""Score voting on a GPU: one program per kept box iterates over the boxes of its group."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def vote(
    boxes: Tensor, scores: Tensor, order: Tensor, kept: Tensor, first: Tensor, counts: Tensor, sigma: float
) -> Tensor:
    """See :func:`rankwise.models.nms.vote`.

    ``order`` [N] sorts the boxes by group; the group of a kept box begins at ``first`` [K] there and has ``counts`` [K]
    boxes.
    """
    boxes, scores = boxes.float().contiguous(), scores.float().contiguous()
    result = torch.empty(len(kept), 4, device=boxes.device)
    vote_for_box[(len(kept),)](boxes, scores, order, kept, first, counts, result, 1 / sigma, BLOCK=128)
    return result


@triton.jit
def vote_for_box(  # type: ignore[no-untyped-def]
    boxes, scores, order, kept, first, counts, result, inverse_sigma, BLOCK: tl.constexpr
):
    """The mean of the boxes that overlap this one, weighted by score and IoU."""
    row = tl.program_id(0)
    own = boxes + tl.load(kept + row) * 4
    left, top = tl.load(own), tl.load(own + 1)
    right, bottom = tl.load(own + 2), tl.load(own + 3)
    area = tl.maximum(tl.maximum(right - left, 0.0) * tl.maximum(bottom - top, 0.0), 1e-12)
    start = tl.load(first + row)
    count = tl.load(counts + row)
    total = tl.zeros([BLOCK], tl.float32)
    sum_x1 = tl.zeros([BLOCK], tl.float32)
    sum_y1 = tl.zeros([BLOCK], tl.float32)
    sum_x2 = tl.zeros([BLOCK], tl.float32)
    sum_y2 = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, count, BLOCK):
        member = begin + tl.arange(0, BLOCK)
        mask = member < count
        other = tl.load(order + start + member, mask=mask, other=0)
        x1 = tl.load(boxes + other * 4, mask=mask, other=0.0)
        y1 = tl.load(boxes + other * 4 + 1, mask=mask, other=0.0)
        x2 = tl.load(boxes + other * 4 + 2, mask=mask, other=0.0)
        y2 = tl.load(boxes + other * 4 + 3, mask=mask, other=0.0)
        score = tl.load(scores + other, mask=mask, other=0.0)
        width = tl.maximum(tl.minimum(right, x2) - tl.maximum(left, x1), 0.0)
        height = tl.maximum(tl.minimum(bottom, y2) - tl.maximum(top, y1), 0.0)
        shared = width * height
        other_area = tl.maximum(tl.maximum(x2 - x1, 0.0) * tl.maximum(y2 - y1, 0.0), 1e-12)
        iou = shared / (area + other_area - shared)
        weight = tl.where(mask & (iou > 0), score * tl.exp(-(1 - iou) * (1 - iou) * inverse_sigma), 0.0)
        total += weight
        sum_x1 += weight * x1
        sum_y1 += weight * y1
        sum_x2 += weight * x2
        sum_y2 += weight * y2
    weights = tl.sum(total)
    some = weights > 0
    divisor = tl.where(some, weights, 1.0)
    tl.store(result + row * 4, tl.where(some, tl.sum(sum_x1) / divisor, left))
    tl.store(result + row * 4 + 1, tl.where(some, tl.sum(sum_y1) / divisor, top))
    tl.store(result + row * 4 + 2, tl.where(some, tl.sum(sum_x2) / divisor, right))
    tl.store(result + row * 4 + 3, tl.where(some, tl.sum(sum_y2) / divisor, bottom))
