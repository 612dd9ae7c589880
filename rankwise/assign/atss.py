"""Positives by a threshold that each object sets from the anchors around its centre."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankwise.assign import compiled
from rankwise.assign.base import Assigner, Claims
from rankwise.assign.chunks import pieces
from rankwise.boxes import paired_iou

if TYPE_CHECKING:
    from torch import Tensor

    from rankwise.assign.objects import Objects
    from rankwise.types import Predictions

#: How far, in pixels, an anchor's centre must be inside an object to count as inside; the published value.
INSIDE = 0.01


class ATSS(Assigner):
    """Makes positive the anchors near an object's centre that overlap it unusually well (https://arxiv.org/abs/1912.02424).

    Candidates are, on every level, the ``k`` anchors whose centres are closest to the object's centre (the first of
    equals). Positive are those with an IoU of at least the mean plus the standard deviation (with n − 1, as published)
    of the candidates' IoUs and with their centre inside the object. A lone candidate's deviation counts as 0.

    Args:
        k: Candidates per level and object. They are counted as anchors: with several anchors a location,
            multiply by their number to look at as many locations.
    """

    def __init__(self, k: int = 9) -> None:
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        self.k = k

    def claims(self, predictions: Predictions, objects: Objects) -> Claims:
        anchors = predictions.anchors.float()
        middles = centres(anchors)
        candidates = nearest(centres(objects.boxes), middles, predictions.level_sizes, self.k)  # [T, n]
        boxes = objects.boxes.unsqueeze(1)
        iou = paired_iou(boxes, anchors[candidates])
        wide = iou.double()  # so that equal IoUs have a deviation of exactly 0
        threshold = wide.mean(1, keepdim=True)
        if candidates.shape[1] > 1:
            threshold += wide.std(1, keepdim=True)
        centre = middles[candidates]
        inside = torch.cat([centre - boxes[..., :2], boxes[..., 2:] - centre], -1).amin(-1) > INSIDE
        iou = iou.masked_fill(~inside | (wide < threshold), 0)
        owner = torch.arange(len(objects), device=iou.device).unsqueeze(1).expand_as(candidates)
        return Claims(owner.flatten(), candidates.flatten(), iou.flatten())


def centres(boxes: Tensor) -> Tensor:
    """The centres of boxes [..., 4], [..., 2]."""
    return (boxes[..., :2] + boxes[..., 2:]) / 2


def nearest(points: Tensor, anchors: Tensor, level_sizes: tuple[int, ...], k: int) -> Tensor:
    """The k anchors of each level that are nearest to each point, nearest first, the first of equals, [T, n].

    Args:
        points: Where to look, float32 [T, 2].
        anchors: Centres of the anchors, float32 [A, 2].
        level_sizes: How many anchors each level has.
        k: How many to take from each; all of a level that has fewer.
    """
    if points.device.type == "cpu":
        return compiled.nearest(points, anchors, level_sizes, k)
    found = []
    x, y = anchors.T.contiguous()
    number = torch.arange(len(anchors), device=points.device)
    for piece in pieces(len(anchors), len(points), points.device):
        px, py = points[piece].unsqueeze(-1).unbind(1)
        distance = (px - x).square_().add_((py - y).square_())
        # Floats that are not negative order like their bits, and those of a float32 leave the lower 29 of a float64
        # free for the anchor's index: of equals the first is the smallest.
        keys = distance.double().view(torch.int64).bitwise_or_(number)
        levels = (
            keys_of_level.topk(min(k, keys_of_level.shape[1]), largest=False).values
            for keys_of_level in keys.split(level_sizes, 1)
        )
        found.append(torch.cat(list(levels), 1).bitwise_and_((1 << 29) - 1))
    return torch.cat(found) if len(found) > 1 else found[0]
