"""ATSS: each object has its own IoU threshold, computed from the anchors around its center."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankwise.assign import numba_loops
from rankwise.assign.base import Assigner, Claims
from rankwise.assign.chunks import pieces
from rankwise.boxes import paired_iou

if TYPE_CHECKING:
    from torch import Tensor

    from rankwise.assign.objects import Objects
    from rankwise.types import Predictions

#: How far, in pixels, the center of an anchor must be inside an object; the published value.
INSIDE = 0.01


class ATSS(Assigner):
    """Adaptive training sample selection (https://arxiv.org/abs/1912.02424).

    The candidates of an object are the ``k`` anchors of each level whose centers are closest to its center. A candidate
    is positive if its IoU is at least the mean plus the standard deviation (with n − 1, as published) of the IoUs of
    all candidates, and its center is inside the object. The deviation of a single candidate is 0.

    Args:
        k: Candidates per level and object. It counts anchors: with several anchors per location, multiply by their
            number to cover as many locations.
    """

    def __init__(self, k: int = 9) -> None:
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be an integer of at least 1, not {k}")
        self.k = k

    def claims(self, predictions: Predictions, objects: Objects) -> Claims:
        anchors = predictions.anchors.float()
        centers = _centers(anchors)
        candidates = nearest(_centers(objects.boxes), centers, predictions.level_sizes, self.k)  # [T, n]
        boxes = objects.boxes.unsqueeze(1)
        iou = paired_iou(boxes, anchors[candidates])
        wide = iou.double()  # equal IoUs must have a deviation of exactly 0
        threshold = wide.mean(1, keepdim=True)
        if candidates.shape[1] > 1:
            threshold += wide.std(1, keepdim=True)
        center = centers[candidates]
        inside = torch.cat([center - boxes[..., :2], boxes[..., 2:] - center], -1).amin(-1) > INSIDE
        iou = iou.masked_fill(~inside | (wide < threshold), 0)
        owner = torch.arange(len(objects), device=iou.device).unsqueeze(1).expand_as(candidates)
        return Claims(owner.flatten(), candidates.flatten(), iou.flatten())


def _centers(boxes: Tensor) -> Tensor:
    """Centers alone: sizes that nobody reads would be one more kernel on a GPU."""
    return (boxes[..., :2] + boxes[..., 2:]) / 2


def nearest(points: Tensor, anchors: Tensor, level_sizes: tuple[int, ...], k: int) -> Tensor:
    """For each point the k nearest anchors of each level, or all if there are fewer, nearest first, ties by index.

    ``points`` [T, 2] and the centers of the ``anchors`` [A, 2] are float32. Returns indices, int64 [T, n].
    """
    if points.device.type == "cpu":
        return numba_loops.nearest(points, anchors, level_sizes, k)
    found = []
    x, y = anchors.T.contiguous()
    number = torch.arange(len(anchors), device=points.device)
    for piece in pieces(len(anchors), len(points), points.device):
        px, py = points[piece].unsqueeze(-1).unbind(1)
        distance = (px - x).square_().add_((py - y).square_())
        # Non-negative floats sort like their bits. A float32 leaves the lower 29 bits of a float64 free, which hold the
        # index of the anchor, so that ties go to the first.
        keys = distance.double().view(torch.int64).bitwise_or_(number)
        levels = [level.topk(min(k, level.shape[1]), largest=False).values for level in keys.split(level_sizes, 1)]
        found.append(torch.cat(levels, 1).bitwise_and_((1 << 29) - 1))
    return torch.cat(found) if len(found) > 1 else found[0]
