"""Candidate anchors of objects, and the quality of their predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from rankwise.assign.chunks import pieces
from rankwise.assign.overlap import best_overlaps, owned_anchors
from rankwise.boxes import giou_loss, paired_iou
from rankwise.types import to_device

if TYPE_CHECKING:
    from torch import Tensor

    from rankwise.assign.objects import Objects
    from rankwise.types import Predictions

#: Parameters of focal loss and the weight of GIoU loss (λ1), as in the original PAA.
FOCAL_ALPHA, FOCAL_GAMMA, GIOU_WEIGHT = 0.25, 2.0, 1.3


@dataclass(frozen=True)
class Candidates:
    """Pairs of an object and an anchor that may become its positive, in the order of the anchors for each object.

    On a GPU, the host does not know their number, so some entries may not be candidates. There is at least one entry.

    Attributes:
        object: Index in the list of objects of the batch, int64 [N]; -1 for entries that are not candidates.
        anchor: The anchor, int64 [N].
    """

    object: Tensor
    anchor: Tensor

    @classmethod
    def of(cls, objects: Objects, anchors: Tensor, threshold: float) -> Candidates:
        """Finds the candidates of all objects of a batch.

        These are the anchors that overlap the object more than any other object, with an IoU of at least ``threshold``,
        and the best anchor of the object, even if it overlaps another object more and is then a candidate of both.
        """
        overlaps = best_overlaps(objects, anchors)
        owner = owned_anchors(objects, anchors, overlaps, threshold, low_quality=0)
        every = torch.arange(len(objects), device=anchors.device)
        lost = (overlaps.best_iou > 0) & (owner[objects.image, overlaps.best_anchor] != every)
        if owner.device.type == "cpu":  # on a GPU, their number would require a host sync
            image, anchor = (owner >= 0).nonzero(as_tuple=True)
            lost = lost.nonzero().squeeze(1)
            if not len(lost):
                if not len(anchor):  # a dummy entry, so that there is something to index
                    return cls(anchor.new_tensor([-1]), anchor.new_zeros(1))
                return cls(owner[image, anchor], anchor)
            found = torch.cat([owner[image, anchor], lost])
            anchor = torch.cat([anchor, overlaps.best_anchor[lost]])
        else:
            found = torch.cat([owner.flatten(), torch.where(lost, every, -1)])
            anchor = torch.arange(len(anchors), device=owner.device).repeat(len(owner))
            anchor = torch.cat([anchor, overlaps.best_anchor])
        order = anchor.argsort(stable=True)
        return cls(found[order], anchor[order])

    def __len__(self) -> int:
        return len(self.object)

    def scores(self, predictions: Predictions, objects: Objects) -> tuple[Tensor, Tensor]:
        """The ranking score (sigmoid of the logit of the class) and the IoU of the predicted box, float64 [N] each.

        NaN predictions count as 0, the worst value; reporting them is up to the loss.
        """
        image = objects.image[self.object]
        ranking = predictions.logits[image, self.anchor, objects.labels[self.object]].double().sigmoid()
        boxes = predictions.boxes[image, self.anchor].double()
        localization = paired_iou(boxes, objects.boxes[self.object].double())
        return ranking.nan_to_num(0), localization.nan_to_num(0)

    def losses(self, predictions: Predictions, objects: Objects) -> Tensor:
        """The clustering input of the original PAA: focal loss over all classes plus weighted GIoU loss, float64
        [N]."""
        image = objects.image[self.object]
        labels = objects.labels[self.object]
        focal = torch.zeros_like(labels, dtype=torch.float64)
        for piece in pieces(2 * predictions.logits.shape[-1], len(self), focal.device):  # float64: each counts for two
            logits = predictions.logits[image[piece], self.anchor[piece]].double()
            focal[piece] = _focal(logits, labels[piece])
        boxes = predictions.boxes[image, self.anchor].double()
        giou = giou_loss(boxes, objects.boxes[self.object].double())
        return focal.nan_to_num(1e6, posinf=1e6) + GIOU_WEIGHT * giou.nan_to_num(2)

    def normalized(self, scores: Tensor, objects: int) -> Tensor:
        """Scores, float64 [..., N], rescaled to 0–1 over the candidates of each object; all 0 if they are equal."""
        of = (self.object % (objects + 1)).expand(scores.shape)  # entries that are not candidates go to an extra slot
        bounds = scores.new_empty((*scores.shape[:-1], objects + 1))
        low = bounds.fill_(math.inf).scatter_reduce(-1, of, scores, "amin").gather(-1, of)
        high = bounds.fill_(-math.inf).scatter_reduce(-1, of, scores, "amax").gather(-1, of)
        spread = high - low
        return (scores - low) / torch.where(spread > 0, spread, 1)


def best_of_levels(
    candidates: Candidates, values: Tensor, objects: int, level_sizes: tuple[int, ...], k: int
) -> tuple[Tensor, Tensor]:
    """Each object's best candidates by finite values [N], smaller is better, at most k of every level, best first.

    Returns their indices among the candidates, int64 [T, levels · k], -1 if there is none, and their values, float64 of
    the same shape, 0 if there is none. Ties are ordered by anchor.
    """
    levels, device = len(level_sizes), values.device
    bounds = to_device(torch.tensor(level_sizes).cumsum(0), device)
    level = torch.bucketize(candidates.anchor, bounds, right=True)
    order = values.argsort(stable=True)
    group, by_group = (candidates.object * levels + level)[order].sort(stable=True)
    first = torch.searchsorted(group, torch.arange(objects * levels, device=device))
    position = torch.arange(len(order), device=device) - first[group]
    slots = objects * levels * k
    slot = torch.where((position < k) & (group >= 0), group * k + position, slots)  # the last slot is dropped
    candidate = torch.full((slots + 1,), -1, device=device).scatter_(0, slot, order[by_group])
    candidate = candidate[:-1].view(objects, levels * k)
    table, by_value = torch.where(candidate >= 0, values[candidate], math.inf).sort(dim=1, stable=True)
    candidate = candidate.gather(1, by_value)
    return candidate, torch.where(candidate >= 0, table, 0)


def _focal(logits: Tensor, labels: Tensor) -> Tensor:
    """Focal loss of each row of logits [N, C] against its label, summed over the classes."""
    truth = (labels[:, None] == torch.arange(logits.shape[-1], device=labels.device)).to(logits.dtype)
    probability = logits.sigmoid()
    miss = truth * (1 - probability) + (1 - truth) * probability
    weight = (truth * FOCAL_ALPHA + (1 - truth) * (1 - FOCAL_ALPHA)) * miss**FOCAL_GAMMA
    return (weight * functional.binary_cross_entropy_with_logits(logits, truth, reduction="none")).sum(-1)
