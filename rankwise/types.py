"""What passes between the rooms: predictions, assignments, batches. Plain tensors in small frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

#: One image's ground truth, as torchvision has it: ``boxes`` float32 [N, 4] xyxy, ``labels`` int64 [N], and here also
#: ``iscrowd`` bool [N]. From a dataset it carries ``image_id`` (int), ``name`` (str), ``size`` and ``original_size``,
#: each (height, width): of the image as the detector sees it, before padding, and of the file.
Target = dict[str, Any]

#: One image's detections: ``boxes`` float [N, 4] xyxy, ``scores`` float [N], falling, ``labels`` int64 [N].
Detections = dict[str, "Tensor"]


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device; from the host to a GPU through page-locked memory, so that the host does not wait."""
    if tensor.device.type == "cpu" and torch.device(device).type == "cuda":
        tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
    return tensor.to(device, non_blocking=True)


@dataclass(frozen=True)
class Predictions:
    """A detector's raw output for a batch, one entry for each anchor of all levels, finest level first.

    Attributes:
        logits: Class logits, [B, A, C].
        boxes: Decoded boxes, xyxy in pixels of the batch, [B, A, 4].
        anchors: Anchor boxes, xyxy in pixels of the batch, the same for every image, [A, 4].
        level_sizes: How many of the A anchors belong to each level; they sum to A.
        distribution: Logits over the bins of each side's distance, [B, A, 4, bins + 1], where the head predicts
            distances as distributions.
        distance_unit: What one bin is in pixels, per anchor, [A], with ``distribution``.
    """

    logits: Tensor
    boxes: Tensor
    anchors: Tensor
    level_sizes: tuple[int, ...]
    distribution: Tensor | None = None
    distance_unit: Tensor | None = None

    def detach(self) -> Predictions:
        """The same without gradients."""
        distribution = None if self.distribution is None else self.distribution.detach()
        return replace(self, logits=self.logits.detach(), boxes=self.boxes.detach(), distribution=distribution)


@dataclass(frozen=True)
class Assignment:
    """Which samples are positive, for a batch.

    Attributes:
        labels: The class of a positive, the number of classes for background, -1 for ignored, int64 [B, A].
        matched: Index of the ground truth of a positive in its image's target, -1 for all others, int64 [B, A].
        unmatched: How many objects (crowds aside) of the batch have no positive, a scalar int64 tensor.
        most: More positives than this there cannot be; None if nothing is known without looking at the labels.
    """

    labels: Tensor
    matched: Tensor
    unmatched: Tensor
    most: int | None = None


@dataclass(frozen=True)
class Batch:
    """Images padded to one size, with their targets.

    Attributes:
        images: uint8 [B, 3, H, W], padded at the right and bottom.
        targets: One an image, boxes in pixels of the padded image.
    """

    images: Tensor
    targets: list[Target]

    def to(self, device: torch.device | str) -> Batch:
        """The same with its images on another device, without waiting for the copy if they are page-locked.

        Targets stay on the host, where they are checked; an assigner sends what it needs of them in few copies.
        """
        return replace(self, images=self.images.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The same in page-locked memory: what the loader calls before a copy to a GPU."""
        return replace(self, images=self.images.pin_memory())
