"""What the assigners share: the objects of a batch in one list, claims on anchors, and how a claim becomes a label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from rankwise.assign.chunks import pieces
from rankwise.assign.overlap import winners
from rankwise.boxes import areas, intersections
from rankwise.types import Assignment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rankwise.types import Predictions, Target

#: An anchor with more than this share of its area inside a crowd region is ignored, unless it is positive.
CROWD_SHARE = 0.5


@dataclass(frozen=True)
class Objects:
    """The objects of all images of a batch, one after the other: an image with few does not pay for one with many.

    Crowd regions keep their index, so that an index into the list tells the index in the target, but as objects they
    have no area: no anchor overlaps with them.

    Attributes:
        boxes: float32 [T, 4], of no area for crowds.
        labels: int64 [T].
        image: Which image each is from, int64 [T].
        index: Its index in its image's target, int64 [T].
        crowd: Whether it is a crowd region, bool [T].
        crowd_boxes: The boxes of crowd regions (of all others without area), float32 [T, 4].
        counts: How many there are in each image.
    """

    boxes: Tensor
    labels: Tensor
    image: Tensor
    index: Tensor
    crowd: Tensor
    crowd_boxes: Tensor
    counts: tuple[int, ...]

    @classmethod
    def of(cls, targets: Sequence[Target], classes: int, device: torch.device) -> Objects:
        """Gathers the objects of a batch.

        Args:
            targets: One an image.
            classes: Number of classes, to find labels that are none.
            device: Where the predictions are.
        """
        counts = tuple(len(target["boxes"]) for target in targets)
        for number, (target, count) in enumerate(zip(targets, counts, strict=True)):
            for name in ("labels", "iscrowd"):
                if name in target and len(target[name]) != count:
                    raise ValueError(f"target {number} of the batch: {len(target[name])} {name} for {count} boxes")
        if not sum(counts):
            none = torch.zeros(0, dtype=torch.int64, device=device)
            boxes = torch.zeros(0, 4, device=device)
            return cls(boxes, none, none, none, none.bool(), boxes, counts)
        boxes = torch.cat([target["boxes"].reshape(-1, 4) for target in targets]).to(device, torch.float32)
        labels = torch.cat([target["labels"].reshape(-1) for target in targets]).to(device, torch.int64)
        crowd = torch.cat([_crowd(target) for target in targets]).to(device)
        image = torch.repeat_interleave(torch.tensor(counts)).to(device)
        index = torch.cat([torch.arange(count) for count in counts]).to(device)
        faulty = ~boxes.isfinite().all(1) | (labels < 0) | (labels >= classes)
        if bool(faulty.any()):
            at = int(faulty.nonzero()[0])
            raise ValueError(
                f"target {int(image[at])} of the batch, object {int(index[at])}: box {boxes[at].tolist()} with label "
                f"{int(labels[at])}; boxes must be finite and labels from 0 to {classes - 1}"
            )
        no_area = torch.zeros((), device=device)
        return cls(
            boxes=torch.where(crowd[:, None], no_area, boxes),
            labels=labels,
            image=image,
            index=index,
            crowd=crowd,
            crowd_boxes=torch.where(crowd[:, None], boxes, no_area),
            counts=counts,
        )

    def __len__(self) -> int:
        return sum(self.counts)

    @cached_property
    def spans(self) -> list[tuple[int, slice]]:
        """Every image that has objects, with their index in the list."""
        ends = accumulate(self.counts)
        return [(image, slice(end - n, end)) for image, (n, end) in enumerate(zip(self.counts, ends, strict=True)) if n]


@dataclass(frozen=True)
class Claims:
    """Which objects want which anchors as their positives; the same anchor may be wanted by several.

    Attributes:
        object: Place in the batch's list of objects, int64 [M].
        anchor: The anchor, int64 [M].
        iou: IoU of that anchor with that object, float32 [M]; a claim with an IoU of 0 is none.
        ignored: Anchors that are neither positive nor negative if nobody claims them, bool [B, A], if there are any.
    """

    object: Tensor
    anchor: Tensor
    iou: Tensor
    ignored: Tensor | None = None


class Assigner(ABC):
    """Chooses for a whole batch which samples are positive, for which object, and which are ignored.

    Call it with the predictions and the targets of a batch; it returns an :class:`~rankwise.types.Assignment`.
    Every assigner keeps to these rules:

    - An anchor that several objects want goes to the one with the highest anchor IoU, and where that is equal to the
      first of them in the target.
    - Crowd regions are never matched. An anchor that is not positive and has more than half its area in one is ignored.
    - Objects that end without a positive are counted in ``unmatched``.
    - No gradient passes, and half-precision predictions are taken up to float32 first.
    """

    @torch.no_grad()
    def __call__(self, predictions: Predictions, targets: Sequence[Target]) -> Assignment:
        images, anchors, classes = predictions.logits.shape
        if len(targets) != images:
            raise ValueError(f"{len(targets)} targets for a batch of {images} images: there must be one for each")
        if sum(predictions.level_sizes) != anchors:
            raise ValueError(f"level_sizes {predictions.level_sizes} do not sum to the number of anchors, {anchors}")
        objects = Objects.of(targets, classes, predictions.logits.device)
        labels = torch.full((images, anchors), classes, device=predictions.logits.device)
        matched = torch.full_like(labels, -1)
        if not len(objects):
            return Assignment(labels, matched, labels.new_zeros(()))

        claims = self.claims(predictions, objects)
        slot = objects.image[claims.object] * anchors + claims.anchor
        owner = winners(slot, claims.iou, claims.object, images * anchors).view(images, anchors)
        ignored = _in_crowd(objects, predictions.anchors.float(), images)
        if claims.ignored is not None:
            ignored |= claims.ignored
        labels.masked_fill_(ignored, -1)
        at = (owner >= 0).nonzero(as_tuple=True)
        matched_object = owner[at]
        labels[at] = objects.labels[matched_object]
        matched[at] = objects.index[matched_object]
        has_positive = objects.crowd.clone()
        has_positive[matched_object] = True
        return Assignment(labels, matched, (~has_positive).sum())

    @abstractmethod
    def claims(self, predictions: Predictions, objects: Objects) -> Claims:
        """What each object wants: the part in which the assigners differ.

        Args:
            predictions: The detector's output for the batch.
            objects: The objects of the batch, at least one.
        """


def _in_crowd(objects: Objects, anchors: Tensor, images: int) -> Tensor:
    """Anchors with more than half their area in one crowd region, bool [B, A]."""
    inside = torch.zeros(images, len(anchors), dtype=torch.bool, device=anchors.device)
    crowds = objects.crowd.nonzero().squeeze(1)
    boxes, image = objects.crowd_boxes[crowds], objects.image[crowds]
    limit = areas(anchors) * CROWD_SHARE
    for piece in pieces(len(crowds), len(anchors) if len(crowds) else 0, anchors.device):
        covered = (intersections(boxes, anchors[piece]) > limit[piece]).float()
        inside[:, piece] = torch.zeros_like(inside[:, piece], dtype=torch.float32).index_add_(0, image, covered) > 0
    return inside


def _crowd(target: Target) -> Tensor:
    """Which boxes of a target are crowd regions, bool [N]; none where it does not say."""
    boxes, crowd = target["boxes"], target.get("iscrowd")
    if crowd is None:
        return torch.zeros(len(boxes), dtype=torch.bool, device=boxes.device)
    return torch.as_tensor(crowd, device=boxes.device).reshape(-1).bool()
