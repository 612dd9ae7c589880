"""Assignment by the IoU of anchor and object, as in RetinaNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankwise.assign.base import Assigner, Claims
from rankwise.assign.overlap import best_overlaps, owned_anchors

if TYPE_CHECKING:
    from rankwise.assign.objects import Objects
    from rankwise.types import Predictions


class IoUThreshold(Assigner):
    """Assignment by IoU thresholds (RetinaNet, https://arxiv.org/abs/1708.02002).

    Each anchor is compared with the object it overlaps most. It is positive if the IoU is at least ``positive``,
    negative below ``negative``, and ignored in between. If no anchor reaches ``positive`` for an object, its best
    anchors become positive (all that tie), unless they belong to another object: the low-quality matches of the
    published RetinaNet and AP loss. Set ``low_quality`` to 1 to turn this off.

    Args:
        positive: Minimum IoU of a positive anchor.
        negative: IoU below which an anchor is negative.
        low_quality: Minimum IoU of the best anchor of an object if it does not reach ``positive``. The IoU must always
            be above 0: an object that overlaps no anchor gets none.
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
        # An owned anchor has only one claim, so any IoU above 0 is sufficient.
        iou = torch.where(owner >= 0, overlaps.iou, 0)
        anchor = torch.arange(len(anchors), device=owner.device).expand_as(owner)
        return Claims(owner.clamp(min=0).flatten(), anchor.flatten(), iou.flatten(), ignored)
