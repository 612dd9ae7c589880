"""Positives by a threshold that each object sets from the anchors around its centre."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from rankwise.assign.base import Assigner, Claims, Objects
from rankwise.assign.chunks import pieces
from rankwise.boxes import paired_iou

if TYPE_CHECKING:
    from torch import Tensor

    from rankwise.types import Predictions

#: How far, in pixels, an anchor's centre must be inside an object to count as inside; the published value.
INSIDE = 0.01

#: How many neighbours are judged by their smallest first when the nearest anchors are looked for.
BLOCK_COLUMNS = 32


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
        candidates = nearest(centres(objects.boxes), centres(anchors), predictions.level_sizes, self.k)  # [T, n]
        boxes = objects.boxes.unsqueeze(1)
        iou = paired_iou(boxes, anchors[candidates])
        wide = iou.double()  # so that equal IoUs have a deviation of exactly 0
        threshold = wide.mean(1, keepdim=True)
        if candidates.shape[1] > 1:
            threshold += wide.std(1, keepdim=True)
        centre = centres(anchors)[candidates]
        inside = torch.cat([centre - boxes[..., :2], boxes[..., 2:] - centre], -1).amin(-1) > INSIDE
        iou = iou.masked_fill(~inside | (wide < threshold), 0)
        owner = torch.arange(len(objects), device=iou.device).unsqueeze(1).expand_as(candidates)
        return Claims(owner.reshape(-1), candidates.reshape(-1), iou.reshape(-1))


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
    taken = [min(k, size) for size in level_sizes]
    found = torch.empty(len(points), sum(taken), dtype=torch.int64, device=points.device)
    start = column = 0
    for size, count in zip(level_sizes, taken, strict=True):
        level_x, level_y = anchors[start : start + size].T.contiguous()
        for piece in pieces(size, len(points), points.device):
            x, y = points[piece].unsqueeze(-1).unbind(1)
            distance = (x - level_x).square_().add_((y - level_y).square_())
            found[piece, column : column + count] = smallest(distance, count) + start
        start += size
        column += count
    return found


def smallest(values: Tensor, k: int) -> Tensor:
    """The columns of the k smallest values of each row, smallest first, the first of equals, int64 [R, k].

    Args:
        values: float32 [R, N], not negative.
        k: How many, at most N.
    """
    if values.shape[1] < 4 * k * BLOCK_COLUMNS:
        return _keys(values).topk(k, largest=False).indices
    # The k smallest are in the k blocks with the smallest minima, so that nearly all of the row is looked at but once.
    blocks = functional.pad(values, (0, -values.shape[1] % BLOCK_COLUMNS), value=math.inf).unflatten(
        1, (-1, BLOCK_COLUMNS)
    )
    block = _keys(blocks.amin(2)).topk(k, largest=False).indices.sort(1).values
    inside = blocks.gather(1, block.unsqueeze(2).expand(-1, -1, BLOCK_COLUMNS)).flatten(1)
    column = _keys(inside).topk(k, largest=False).indices
    return block.gather(1, column // BLOCK_COLUMNS) * BLOCK_COLUMNS + column % BLOCK_COLUMNS


def _keys(values: Tensor) -> Tensor:
    """Integers in the order of the values, equal ones in the order of their columns.

    Floats that are not negative order like their bits, and those of a float32 leave the lower 29 of a float64 free.
    """
    return values.double().view(torch.int64).bitwise_or_(torch.arange(values.shape[1], device=values.device))
