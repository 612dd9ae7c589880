"""The anchors that may become an object's positives, and what their predictions are worth to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from torchvision.ops import generalized_box_iou_loss

from rankwise.assign.chunks import pieces
from rankwise.assign.overlap import best_overlaps, owned_anchors
from rankwise.boxes import paired_iou

if TYPE_CHECKING:
    from torch import Tensor

    from rankwise.assign.base import Objects
    from rankwise.types import Predictions

#: Focal loss and the weight of the GIoU loss beside it, as the original PAA has them (its λ1).
FOCAL_ALPHA, FOCAL_GAMMA, GIOU_WEIGHT = 0.25, 2.0, 1.3


@dataclass(frozen=True)
class Candidates:
    """Pairs of an object and an anchor that may become its positive; those of each object in the order of the anchors.

    Attributes:
        object: The object's index in the batch's list of objects, int64 [N].
        anchor: The anchor, int64 [N].
    """

    object: Tensor
    anchor: Tensor

    @classmethod
    def of(cls, objects: Objects, anchors: Tensor, threshold: float) -> Candidates:
        """Finds the candidates of all objects of a batch.

        They are the anchors that overlap best with the object, from an IoU of ``threshold`` on, and the object's own
        best anchor: also where that one overlaps better with another object and so is a candidate of both.

        Args:
            objects: The objects of the batch.
            anchors: Anchor boxes, float32 [A, 4].
            threshold: The IoU a candidate needs, unless it is its object's best.
        """
        overlaps = best_overlaps(objects, anchors)
        owner = owned_anchors(objects, anchors, overlaps, threshold, low_quality=0)
        image, anchor = (owner >= 0).nonzero(as_tuple=True)
        every = torch.arange(len(objects), device=anchors.device)
        lost = (overlaps.best_iou > 0) & (owner[objects.image, overlaps.best_anchor] != every)
        owners = torch.cat([owner[image, anchor], every[lost]])
        anchor = torch.cat([anchor, overlaps.best_anchor[lost]])
        if len(anchor) == len(image):
            return cls(owners, anchor)
        order = anchor.argsort(stable=True)
        return cls(owners[order], anchor[order])

    def __len__(self) -> int:
        return len(self.object)

    def scores(self, predictions: Predictions, objects: Objects) -> tuple[Tensor, Tensor]:
        """The ranking score (sigmoid of the object's class logit) and the IoU of the predicted box, float64 [N] each.

        A prediction that is not a number counts as 0, the worst: it is the loss that has to complain about it.
        """
        image = objects.image[self.object]
        ranking = predictions.logits[image, self.anchor, objects.labels[self.object]].double().sigmoid()
        boxes = predictions.boxes[image, self.anchor].double()
        localization = paired_iou(boxes, objects.boxes[self.object].double())
        return ranking.nan_to_num(0), localization.nan_to_num(0)

    def losses(self, predictions: Predictions, objects: Objects) -> Tensor:
        """The original PAA's input: focal loss over all classes plus the weighted GIoU loss, float64 [N]."""
        image = objects.image[self.object]
        labels = objects.labels[self.object]
        focal = torch.zeros_like(labels, dtype=torch.float64)
        for piece in pieces(2 * predictions.logits.shape[-1], len(self), focal.device):  # float64: each counts for two
            logits = predictions.logits[image[piece], self.anchor[piece]].double()
            focal[piece] = _focal(logits, labels[piece])
        boxes = predictions.boxes[image, self.anchor].double()
        giou = generalized_box_iou_loss(boxes, objects.boxes[self.object].double())
        return focal.nan_to_num(1e6, posinf=1e6) + GIOU_WEIGHT * giou.nan_to_num(2)

    def normalized(self, scores: Tensor, objects: int) -> Tensor:
        """Scores stretched to 0–1 over the candidates of each object; all 0 where they are equal.

        Args:
            scores: float64 [N].
            objects: How many objects there are.
        """
        low = scores.new_full((objects,), math.inf).scatter_reduce_(0, self.object, scores, "amin")
        high = scores.new_full((objects,), -math.inf).scatter_reduce_(0, self.object, scores, "amax")
        spread = (high - low)[self.object]
        return (scores - low[self.object]) / torch.where(spread > 0, spread, 1)


def best_of_levels(
    candidates: Candidates, values: Tensor, objects: int, level_sizes: tuple[int, ...], k: int
) -> tuple[Tensor, Tensor]:
    """Each object's best candidates, at most k of every level, best first.

    Args:
        candidates: The candidates of all objects.
        values: What to judge them by, smaller is better, finite float64 [N].
        objects: How many objects there are, T.
        level_sizes: How many anchors each level has.
        k: How many candidates to take from each level.

    Returns:
        Their indices among the candidates, int64 [T, levels · k], -1 where there is none, and their values, float64 of
        the same shape, 0 where there is none. Of equal candidates the first anchor comes first.
    """
    levels = len(level_sizes)
    bounds = torch.tensor(level_sizes, device=values.device).cumsum(0)
    level = torch.bucketize(candidates.anchor, bounds, right=True)
    order = values.argsort(stable=True)
    group, by_group = (candidates.object * levels + level)[order].sort(stable=True)
    order = order[by_group]
    size = torch.bincount(group, minlength=objects * levels)
    position = torch.arange(len(order), device=values.device) - (size.cumsum(0) - size)[group]
    kept = position < k
    slot = (group * k + position)[kept]
    candidate = torch.full((objects * levels * k,), -1, device=values.device)
    candidate[slot] = order[kept]
    table = values.new_full(candidate.shape, math.inf)
    table[slot] = values[order[kept]]
    table, by_value = table.view(objects, levels * k).sort(dim=1, stable=True)
    candidate = candidate.view(objects, levels * k).gather(1, by_value)
    return candidate, table.masked_fill_(candidate < 0, 0)


def _focal(logits: Tensor, labels: Tensor) -> Tensor:
    """Focal loss of each row of logits [N, C] against its label, summed over the classes."""
    truth = functional.one_hot(labels, logits.shape[-1]).to(logits.dtype)
    probability = logits.sigmoid()
    miss = truth * (1 - probability) + (1 - truth) * probability
    weight = (truth * FOCAL_ALPHA + (1 - truth) * (1 - FOCAL_ALPHA)) * miss**FOCAL_GAMMA
    return (weight * functional.binary_cross_entropy_with_logits(logits, truth, reduction="none")).sum(-1)
