"""The best object of each anchor and the best anchor of each object, for a batch, in limited memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rankwise.assign import numba_loops
from rankwise.assign.chunks import pieces
from rankwise.boxes import table_iou

if TYPE_CHECKING:
    from torch import Tensor

    from rankwise.assign.objects import Objects


@dataclass(frozen=True)
class Overlaps:
    """The best overlap of every anchor and of every object.

    Attributes:
        iou: Highest IoU of each anchor with an object of the image, float32 [B, A]; 0 in images without objects.
        object: That object, as index in the list of objects, int64 [B, A], the first of ties; undefined if the IoU is
            0.
        best_iou: Highest IoU of each object with an anchor, float32 [T].
        best_anchor: That anchor, int64 [T], the first of ties.
        table: The IoUs of all anchors with all objects of their image, [B, G, A], if it was computed in one chunk.
    """

    iou: Tensor
    object: Tensor
    best_iou: Tensor
    best_anchor: Tensor
    table: Tensor | None = None


def best_overlaps(objects: Objects, anchors: Tensor) -> Overlaps:
    """Finds the best overlaps of a batch."""
    if anchors.device.type == "cpu":
        return Overlaps(*numba_loops.overlaps(objects.boxes, objects.ends, anchors))
    boxes, slot = objects.padded
    rows, columns = [], []
    for piece in pieces(boxes[..., 0].numel(), len(anchors), anchors.device):
        table = _table(boxes, anchors[piece])  # [B, G, a]
        columns.append(table.max(1))
        value, index = table.max(2)
        rows.append((value.flatten()[slot], index.flatten()[slot] + piece.start))
    best_iou, best_anchor = rows[0]
    for value, index in rows[1:]:
        better = value > best_iou
        best_iou, best_anchor = torch.where(better, value, best_iou), torch.where(better, index, best_anchor)
    iou, owner = (torch.cat(parts, 1) if len(columns) > 1 else parts[0] for parts in zip(*columns, strict=True))
    return Overlaps(iou, owner + objects.first[:, None], best_iou, best_anchor, table if len(columns) == 1 else None)


def owned_anchors(
    objects: Objects, anchors: Tensor, overlaps: Overlaps, threshold: float, low_quality: float
) -> Tensor:
    """The object that each anchor belongs to by IoU, as index in the list of objects, -1 for none, [B, A].

    An anchor belongs to the object it overlaps most if their IoU reaches the threshold, which is above 0. An object
    whose best IoU does not reach it, but is at least ``low_quality``, gets its best anchors (all that tie), unless
    another object has them by the threshold. If several such objects claim the same anchor, the one with the highest
    IoU gets it; ties go to the first.
    """
    owner = torch.where(overlaps.iou >= threshold, overlaps.object, -1)
    best = overlaps.best_iou
    # Above the threshold nothing is left to do: the best anchor already belongs to the object that overlaps it most.
    below = (best < threshold) & (best > 0) & (best >= low_quality)
    if anchors.device.type == "cpu":
        numba_loops.claim_best(objects.boxes, objects.ends, anchors, best, below, owner)
        return owner
    boxes, slot = objects.padded
    wanted = torch.where(below, best, -1)
    target = best.new_full(boxes.shape[:2], -1).flatten().index_copy_(0, slot, wanted).view(boxes.shape[:2])[..., None]
    for piece in pieces(boxes[..., 0].numel(), len(anchors), anchors.device):
        table = _table(boxes, anchors[piece]) if overlaps.table is None else overlaps.table
        value, index = table.masked_fill(table != target, 0).max(1)
        free = owner[:, piece]
        owner[:, piece] = torch.where((free < 0) & (value > 0), index + objects.first[:, None], free)
    return owner


def winners(slot: Tensor, iou: Tensor, claimant: Tensor, slots: int) -> Tensor:
    """The object that gets each slot, int64 [slots], -1 for slots without a claim.

    Of the claims of a slot, the one with the highest IoU wins; ties go to the first object. Claims with an IoU of 0 do
    not count.
    """
    highest = iou.new_zeros(slots).scatter_reduce_(0, slot, iou, "amax")
    nobody = torch.iinfo(torch.int64).max
    claimant = claimant.masked_fill((iou < highest[slot]) | (iou <= 0), nobody)
    first = claimant.new_full((slots,), nobody).scatter_reduce_(0, slot, claimant, "amin")
    return first.masked_fill_(first == nobody, -1)


def _table(boxes: Tensor, anchors: Tensor) -> Tensor:
    return table_iou(boxes.flatten(0, 1), anchors).unflatten(0, boxes.shape[:2])
