"""Which object each anchor overlaps best with, and each object's own best anchor, for a batch in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rankwise.assign import compiled
from rankwise.assign.chunks import pieces
from rankwise.boxes import table_iou

if TYPE_CHECKING:
    from torch import Tensor

    from rankwise.assign.objects import Objects


@dataclass(frozen=True)
class Overlaps:
    """The best overlap of every anchor and of every object.

    Attributes:
        iou: Each anchor's highest IoU with an object of the image, float32 [B, A]; 0 in images without objects.
        object: The object it is with, as index in the batch's list of objects, int64 [B, A], the first of equals; its
            value means nothing where the IoU is 0.
        best_iou: Each object's highest IoU with an anchor, float32 [T].
        best_anchor: The anchor it is with, int64 [T], the first of equals.
        table: The IoUs of all anchors with all objects of their image, [B, G, A], where it was made in one piece.
    """

    iou: Tensor
    object: Tensor
    best_iou: Tensor
    best_anchor: Tensor
    table: Tensor | None = None


def best_overlaps(objects: Objects, anchors: Tensor) -> Overlaps:
    """Finds the best overlaps of a batch.

    Args:
        objects: The objects of the batch.
        anchors: Anchor boxes, float32 [A, 4].
    """
    if anchors.device.type == "cpu":
        return Overlaps(*compiled.overlaps(objects.boxes, objects.ends, anchors))
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
    """The object that each anchor belongs to by IoU alone, as index in the list of objects, -1 for none, [B, A].

    An anchor belongs to the object it overlaps best with if their IoU reaches the threshold. An object whose best IoU
    does not reach it has its best anchors all the same (all that tie), where no object has them by the threshold. If
    several such objects want the same anchor, the one with the highest IoU has it, the first of equals.

    Args:
        objects: The objects of the batch.
        anchors: Anchor boxes, float32 [A, 4].
        overlaps: Their best overlaps.
        threshold: IoU from which on an anchor belongs to the object it overlaps best with, above 0.
        low_quality: IoU that an object's best anchor must reach to be its own when it misses the threshold.
    """
    owner = torch.where(overlaps.iou >= threshold, overlaps.object, -1)
    best = overlaps.best_iou
    # Above the threshold nothing is left to do: whoever overlaps an object's best anchor better has it.
    wanting = (best < threshold) & (best > 0) & (best >= low_quality)
    if anchors.device.type == "cpu":
        compiled.claim_best(objects.boxes, objects.ends, anchors, best, wanting, owner)
        return owner
    boxes, slot = objects.padded
    wanted = torch.where(wanting, best, -1)
    target = best.new_full(boxes.shape[:2], -1).flatten().index_copy_(0, slot, wanted).view(boxes.shape[:2])[..., None]
    for piece in pieces(boxes[..., 0].numel(), len(anchors), anchors.device):
        table = _table(boxes, anchors[piece]) if overlaps.table is None else overlaps.table
        value, index = table.masked_fill(table != target, 0).max(1)
        free = owner[:, piece]
        owner[:, piece] = torch.where((free < 0) & (value > 0), index + objects.first[:, None], free)
    return owner


def winners(slot: Tensor, iou: Tensor, place: Tensor, slots: int) -> Tensor:
    """The object that each of many slots goes to: of those that claim it the one with the highest IoU, first of equals.

    Args:
        slot: What is claimed, int64 [M].
        iou: The claim's IoU, [M]; a claim with an IoU of 0 is none.
        place: The object that claims it, as index in the list of objects, int64 [M].
        slots: How many slots there are.

    Returns:
        The object's index in the list for each slot, -1 for those that nobody claims, int64 [slots].
    """
    highest = iou.new_zeros(slots).scatter_reduce_(0, slot, iou, "amax")
    nobody = torch.iinfo(torch.int64).max
    place = place.masked_fill((iou < highest[slot]) | (iou <= 0), nobody)
    first = place.new_full((slots,), nobody).scatter_reduce_(0, slot, place, "amin")
    return first.masked_fill_(first == nobody, -1)


def _table(boxes: Tensor, anchors: Tensor) -> Tensor:
    return table_iou(boxes.flatten(0, 1), anchors).unflatten(0, boxes.shape[:2])
