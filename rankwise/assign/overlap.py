"""Which object each anchor overlaps best with, and each object's own best anchor, for a batch in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rankwise.assign.chunks import pieces
from rankwise.boxes import table_iou

if TYPE_CHECKING:
    from torch import Tensor

    from rankwise.assign.base import Objects

#: Up to so many objects, of several images, share a piece of the table: with more its columns would be too short.
BLOCK_ROWS = 512


@dataclass(frozen=True)
class Overlaps:
    """The best overlap of every anchor and of every object.

    Attributes:
        iou: Each anchor's highest IoU with an object of the image, float32 [B, A]; 0 in images without objects.
        object: The object it is with, as index into the batch's list of objects, int64 [B, A], the first of equals; its
            value means nothing where the IoU is 0.
        best_iou: Each object's highest IoU with an anchor, float32 [T].
        best_anchor: The anchor it is with, int64 [T], the first of equals.
    """

    iou: Tensor
    object: Tensor
    best_iou: Tensor
    best_anchor: Tensor


def best_overlaps(objects: Objects, anchors: Tensor) -> Overlaps:
    """Finds the best overlaps of a batch.

    Args:
        objects: The objects of the batch.
        anchors: Anchor boxes, float32 [A, 4].
    """
    iou = anchors.new_zeros(len(objects.counts), len(anchors))
    owner = torch.zeros_like(iou, dtype=torch.int64)
    best_iou = anchors.new_full((len(objects),), -1)
    best_anchor = torch.zeros_like(objects.image)
    for block in _blocks(objects.spans):
        rows = slice(block[0][1].start, block[-1][1].stop)
        for piece in pieces(rows.stop - rows.start, len(anchors), anchors.device):
            table = table_iou(objects.boxes[rows], anchors[piece])  # [R, a]
            for image, span in block:
                mine = table[span.start - rows.start : span.stop - rows.start]
                torch.max(mine, 0, out=(iou[image, piece], owner[image, piece]))
            value, index = table.max(1)
            better = value > best_iou[rows]
            best_iou[rows] = torch.where(better, value, best_iou[rows])
            best_anchor[rows] = torch.where(better, index + piece.start, best_anchor[rows])
    for image, span in objects.spans:
        owner[image] += span.start
    return Overlaps(iou, owner, best_iou, best_anchor)


def _blocks(spans: list[tuple[int, slice]]) -> list[list[tuple[int, slice]]]:
    """Images that are worked on together: as many as have :data:`BLOCK_ROWS` objects at most, or one that has more."""
    blocks: list[list[tuple[int, slice]]] = []
    for image, span in spans:
        if blocks and span.stop - blocks[-1][0][1].start <= BLOCK_ROWS:
            blocks[-1].append((image, span))
        else:
            blocks.append([(image, span)])
    return blocks


def owned_anchors(
    objects: Objects, anchors: Tensor, overlaps: Overlaps, threshold: float, low_quality: float
) -> Tensor:
    """The object that each anchor belongs to by IoU alone, as index into the list of objects, -1 for none, [B, A].

    An anchor belongs to the object it overlaps best with if that IoU reaches the threshold. An object whose best IoU
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
    poor = ((best < threshold) & (best > 0) & (best >= low_quality)).nonzero().squeeze(1)
    if not len(poor):
        return owner
    for piece in pieces(len(poor), len(anchors), anchors.device):
        table = table_iou(objects.boxes[poor], anchors[piece])  # [R, a]
        row, column = (table == best[poor, None]).nonzero(as_tuple=True)
        claimant = poor[row]
        free = owner[:, piece]
        claimed = winners(objects.image[claimant] * free.shape[1] + column, best[claimant], claimant, free.numel())
        owner[:, piece] = torch.where(free < 0, claimed.view_as(free), free)
    return owner


def winners(slot: Tensor, iou: Tensor, claimant: Tensor, slots: int) -> Tensor:
    """The object that each of many slots goes to: of those that claim it the one with the highest IoU, first of equals.

    Args:
        slot: What is claimed, int64 [M].
        iou: The claim's IoU, [M]; a claim with an IoU of 0 is none.
        claimant: The object that claims it, as index into the list of objects, int64 [M].
        slots: How many slots there are.

    Returns:
        The object's index in the list for each slot, -1 for those that nobody claims, int64 [slots].
    """
    highest = iou.new_zeros(slots).scatter_reduce_(0, slot, iou, "amax")
    nobody = torch.iinfo(torch.int64).max
    claimant = claimant.masked_fill((iou < highest[slot]) | (iou <= 0), nobody)
    first = claimant.new_full((slots,), nobody).scatter_reduce_(0, slot, claimant, "amin")
    return first.masked_fill_(first == nobody, -1)
