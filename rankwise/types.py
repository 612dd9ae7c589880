"""Data types shared by all packages: predictions, assignments, batches. Tensors in small frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

#: The ground truth of an image, as in torchvision: ``boxes`` float32 [N, 4] xyxy, ``labels`` int64 [N], and also
#: ``iscrowd`` bool [N]. Datasets add ``image_id`` (int), ``name`` (str), and ``size`` and ``original_size``, each
#: (height, width): of the input before padding, and of the file.
Target = dict[str, Any]

#: The detections of an image: ``boxes`` float [N, 4] xyxy, ``scores`` float [N] in descending order, ``labels`` int64
#: [N].
Detections = dict[str, "Tensor"]


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Moves a tensor to a device. Copies to a GPU go through pinned memory, so that the host does not wait."""
    if tensor.device.type == "cpu" and torch.device(device).type == "cuda":
        tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
    return tensor.to(device, non_blocking=True)


@dataclass(frozen=True)
class Predictions:
    """The raw output of a detector for a batch, one entry per anchor of all levels, finest level first.

    Attributes:
        logits: Class logits, [B, A, C].
        boxes: Decoded boxes, xyxy in pixels of the batch, [B, A, 4].
        anchors: Anchor boxes, xyxy in pixels of the batch, the same for every image, [A, 4].
        level_sizes: Number of anchors per level; they sum to A.
        distribution: Logits over the distance bins of each side, [B, A, 4, bins + 1], if the head predicts distances as
            distributions.
        distance_unit: Size of a bin in pixels, per anchor, [A], with ``distribution``.
    """

    logits: Tensor
    boxes: Tensor
    anchors: Tensor
    level_sizes: tuple[int, ...]
    distribution: Tensor | None = None
    distance_unit: Tensor | None = None

    def detach(self) -> Predictions:
        """The same predictions without gradients."""
        distribution = None if self.distribution is None else self.distribution.detach()
        return replace(self, logits=self.logits.detach(), boxes=self.boxes.detach(), distribution=distribution)


@dataclass(frozen=True)
class Assignment:
    """Which samples are positive, for a batch.

    Attributes:
        labels: The class of a positive, the number of classes for background, -1 for ignored, int64 [B, A].
        matched: Index of the ground truth of a positive in the target of its image, -1 for all others, int64 [B, A].
        unmatched: Number of objects (without crowd regions) of the batch that have no positive, a scalar int64 tensor.
        most: An upper bound on the number of positives; None if it is unknown without reading the labels.
    """

    labels: Tensor
    matched: Tensor
    unmatched: Tensor
    most: int | None = None


@dataclass(frozen=True)
class Batch:
    """Images padded to the same size, with their targets.

    Attributes:
        images: uint8 [B, 3, H, W], padded at the right and bottom.
        targets: One per image, with boxes in pixels of the padded image.
    """

    images: Tensor
    targets: list[Target]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its images on another device, without waiting for the copy if they are pinned.

        Targets stay on the host, where they are checked; an assigner copies what it needs.
        """
        return replace(self, images=self.images.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The same batch in pinned memory; the loader calls this before a copy to a GPU."""
        return replace(self, images=self.images.pin_memory())
