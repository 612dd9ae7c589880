"""The base class of assigners: their call, and the conversion of claims to labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from rankwise.assign.chunks import pieces
from rankwise.assign.objects import Objects, crowds_of
from rankwise.assign.overlap import winners
from rankwise.boxes import areas, intersections
from rankwise.eager import handle, of_handle
from rankwise.types import Assignment, Predictions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankwise.types import Target

#: An anchor with more than this fraction of its area inside a crowd region is ignored, unless it is positive.
CROWD_SHARE = 0.5


@dataclass(frozen=True)
class Claims:
    """The anchors that objects claim as positives; several objects may claim the same anchor.

    Attributes:
        object: Index in the list of objects of the batch, int64 [M].
        anchor: The anchor, int64 [M].
        iou: IoU of the anchor with the object, float32 [M]; claims with an IoU of 0 do not count.
        ignored: Anchors that are ignored if no object claims them, bool [B, A], if there are any.
    """

    object: Tensor
    anchor: Tensor
    iou: Tensor
    ignored: Tensor | None = None


class Assigner(ABC):
    """Decides for a batch which samples are positive, for which object, and which are ignored.

    Call it with the predictions and the targets of a batch; it returns an ``Assignment``.
    All assigners follow these rules:

    - If several objects claim an anchor, the one with the highest anchor IoU gets it; ties go to the first in the
      target.
    - Crowd regions are never matched. An anchor that is not positive and has more than half its area in one is ignored.
    - Objects without a positive are counted in ``unmatched``.
    - There is no gradient, and half-precision predictions are converted to float32 first.
    - On a GPU, the host does not wait for the device if the targets are on the host.
    - With ``torch.compile``, an assigner is a single operator of the graph.
    """

    _handle: str

    def __new__(cls, *_: Any, **__: Any) -> Self:
        assigner = super().__new__(cls)
        assigner._handle = handle(assigner)
        return assigner

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._handle = handle(self)  # a copy needs its own

    def __call__(self, predictions: Predictions, targets: Sequence[Target]) -> Assignment:
        if not torch.compiler.is_compiling():
            return self._assign(predictions, targets)
        has_crowds = any(target.get("iscrowd") is not None for target in targets)
        labels, matched, unmatched = torch.ops.rankwise.assign(
            predictions.logits,
            predictions.boxes,
            predictions.anchors,
            list(predictions.level_sizes),
            [target["boxes"] for target in targets],
            [target["labels"] for target in targets],
            [crowds_of(target) for target in targets] if has_crowds else [],
            self._handle,
        )
        return Assignment(labels, matched, unmatched)

    @torch.no_grad()
    def _assign(self, predictions: Predictions, targets: Sequence[Target]) -> Assignment:
        images, anchors, classes = predictions.logits.shape
        if len(targets) != images:
            raise ValueError(f"{len(targets)} targets for a batch of {images} images: give one per image")
        if sum(predictions.level_sizes) != anchors:
            raise ValueError(f"level_sizes {predictions.level_sizes} do not sum to the number of anchors, {anchors}")
        objects = Objects.of(targets, classes, predictions.logits.device)
        background = torch.full((images, anchors), classes, device=predictions.logits.device)
        if not len(objects):
            return Assignment(background, torch.full_like(background, -1), background.new_zeros(()), most=0)
        claims = self.claims(predictions, objects)
        slot = objects.image[claims.object] * anchors + claims.anchor
        owner = winners(slot, claims.iou, claims.object, images * anchors).view(images, anchors)
        ignored = claims.ignored
        if objects.crowds is not None:
            in_crowd = _in_crowd(objects, predictions.anchors.float(), images)
            ignored = in_crowd if ignored is None else ignored | in_crowd
        if ignored is not None:
            background = background.masked_fill_(ignored, -1)
        positive = owner >= 0
        index = owner.clamp(min=0)
        labels = torch.where(positive, objects.labels[index], background)
        matched = torch.where(positive, objects.index[index], -1)
        has_positive = positive.new_zeros(len(objects) + 1)  # the last entry belongs to no object
        if objects.crowds is not None:
            has_positive[:-1] = objects.crowds
        has_positive[owner.flatten()] = True
        return Assignment(labels, matched, (~has_positive[:-1]).sum(), most=min(len(slot), images * anchors))

    @abstractmethod
    def claims(self, predictions: Predictions, objects: Objects) -> Claims:
        """The claims of each object: the part in which assigners differ.

        Args:
            predictions: The predictions for the batch.
            objects: The objects of the batch, at least one.
        """


@torch.library.custom_op("rankwise::assign", mutates_args=())
def _operator(
    logits: Tensor,
    boxes: Tensor,
    anchors: Tensor,
    level_sizes: list[int],
    target_boxes: list[Tensor],
    target_labels: list[Tensor],
    crowds: list[Tensor],
    handle: str,
) -> list[Tensor]:
    """The assigner with this handle, in a compiled graph: labels, matched, unmatched."""
    targets: list[Target] = [{"boxes": b, "labels": k} for b, k in zip(target_boxes, target_labels, strict=True)]
    for target, crowd in zip(targets, crowds, strict=False):
        target["iscrowd"] = crowd
    found = of_handle(handle)._assign(Predictions(logits, boxes, anchors, tuple(level_sizes)), targets)
    return [found.labels, found.matched, found.unmatched]


@_operator.register_fake
def _(logits: Tensor, *_: Any) -> list[Tensor]:
    labels = logits.new_empty(logits.shape[:2], dtype=torch.int64)
    return [labels, torch.empty_like(labels), labels.new_empty(())]


def _in_crowd(objects: Objects, anchors: Tensor, images: int) -> Tensor:
    """Anchors with more than half their area in one crowd region, bool [B, A]."""
    boxes, image = objects.crowd_boxes, objects.crowd_image
    assert boxes is not None
    assert image is not None
    inside = torch.zeros(images, len(anchors), dtype=torch.bool, device=anchors.device)
    limit = areas(anchors) * CROWD_SHARE
    for piece in pieces(len(boxes), len(anchors), anchors.device):
        covered = (intersections(boxes, anchors[piece]) > limit[piece]).float()
        inside[:, piece] = torch.zeros_like(inside[:, piece], dtype=torch.float32).index_add_(0, image, covered) > 0
    return inside
