"""Positives by the IoU of anchor and object, as in RetinaNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankwise.assign.base import Assigner, Claims
from rankwise.assign.overlap import best_overlaps, owned_anchors

if TYPE_CHECKING:
    from rankwise.assign.objects import Objects
    from rankwise.types import Predictions


class IoUThreshold(Assigner):
    """Makes an anchor positive if its IoU with an object reaches a threshold (RetinaNet, https://arxiv.org/abs/1708.02002).

    Each anchor looks at the object it overlaps best with: from ``positive`` on it is positive, below ``negative``
    negative, between the two it is ignored. An object that no anchor overlaps that well takes the anchors it overlaps
    best with (all that tie) unless they are another object's: the low-quality matches of the published RetinaNet and AP
    loss. Set ``low_quality`` to 1 to do without.

    Args:
        positive: IoU from which on an anchor is positive.
        negative: IoU below which an anchor is negative.
        low_quality: IoU that an object's best anchor needs to be taken though it misses ``positive``. It always has to
            be above 0: an object that overlaps with no anchor takes none.
    """

    def __init__(self, positive: float = 0.5, negative: float = 0.4, low_quality: float = 0.0) -> None:
        if not 0 < positive <= 1 or not 0 <= negative <= positive:
            raise ValueError(f"0 <= negative <= positive <= 1 and positive > 0 must hold, not {negative=}, {positive=}")
        self.positive = positive
        self.negative = negative
        self.low_quality = low_quality

    def claims(self, predictions: Predictions, objects: Objects) -> Claims:
        anchors = predictions.anchors.float()
        overlaps = best_overlaps(objects, anchors)
        owner = owned_anchors(objects, anchors, overlaps, self.positive, self.low_quality)
        ignored = (overlaps.iou >= self.negative) & (overlaps.iou < self.positive)
        # An owned anchor is settled already, so any IoU above 0 will do: it has but one claim.
        iou = torch.where(owner >= 0, overlaps.iou, 0)
        anchor = torch.arange(len(anchors), device=owner.device).expand_as(owner)
        return Claims(owner.clamp(min=0).flatten(), anchor.flatten(), iou.flatten(), ignored)
