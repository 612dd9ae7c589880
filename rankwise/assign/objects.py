"""The objects of a batch in one list."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from rankwise.types import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rankwise.types import Target


@dataclass(frozen=True)
class Objects:
    """The objects of all images of a batch, concatenated, so that no padding is needed.

    Crowd regions keep their index, so that list indices can be mapped to the target, but they have zero area: no anchor
    overlaps them.

    Attributes:
        boxes: float32 [T, 4], with zero area for crowd regions.
        labels: int64 [T].
        image: The image of each object, int64 [T].
        index: The index in the target of its image, int64 [T].
        first: The list index of the first object of each image, int64 [B].
        counts: Number of objects per image.
        crowds: Whether it is a crowd region, bool [T]; None if there are none.
        crowd_boxes: The boxes of crowd regions, float32 [R, 4], with ``crowds``; without boxes of zero area.
        crowd_image: The image of each region, int64 [R], with ``crowds``.
    """

    boxes: Tensor
    labels: Tensor
    image: Tensor
    index: Tensor
    first: Tensor
    counts: tuple[int, ...]
    crowds: Tensor | None = None
    crowd_boxes: Tensor | None = None
    crowd_image: Tensor | None = None

    @classmethod
    def of(cls, targets: Sequence[Target], classes: int, device: torch.device) -> Objects:
        """Collects the objects of a batch.

        Targets on the host are checked there and copied to a GPU without waiting. Checking targets on the GPU takes one
        host sync.

        Args:
            targets: One per image.
            classes: Number of classes, to check the labels.
            device: The device of the predictions.
        """
        counts = tuple(len(target["boxes"]) for target in targets)
        for number, (target, count) in enumerate(zip(targets, counts, strict=True)):
            for name in ("labels", "iscrowd"):
                if target.get(name) is not None and len(target[name]) != count:
                    raise ValueError(f"target {number} of the batch: {len(target[name])} {name} for {count} boxes")
        ends = list(accumulate(counts))
        total = sum(counts)
        indices = torch.tensor(
            [
                *(image for image, count in enumerate(counts) for _ in range(count)),
                *(index for count in counts for index in range(count)),
                *(end - count for end, count in zip(ends, counts, strict=True)),
            ],
            dtype=torch.int64,
        )
        image, index, first = to_device(indices, device).split([total, total, len(counts)])
        if not total:
            return cls(torch.zeros(0, 4, device=device), image, image, index, first, counts)
        boxes = torch.cat([target["boxes"].reshape(-1, 4) for target in targets]).float()
        labels = torch.cat([target["labels"].reshape(-1) for target in targets]).long()
        _check(boxes, labels, classes, indices, total)
        crowd = None
        if any(target.get("iscrowd") is not None for target in targets):
            crowd = torch.cat([crowds_of(target) for target in targets])
            if crowd.device.type == "cpu" and not bool(crowd.any()):
                crowd = None
        if crowd is None:
            return cls(to_device(boxes, device), to_device(labels, device), image, index, first, counts)
        no_area = boxes.new_zeros(())
        objects, regions = (torch.where(one[:, None], no_area, boxes) for one in (crowd, ~crowd))
        region_image = image
        if crowd.device.type == "cpu":  # if their number is known at no cost
            regions, region_image = regions[crowd], indices[:total][crowd]
        moved = (to_device(one, device) for one in (crowd, regions, region_image))
        return cls(to_device(objects, device), to_device(labels, device), image, index, first, counts, *moved)

    def __len__(self) -> int:
        return sum(self.counts)

    @cached_property
    def padded(self) -> tuple[Tensor, Tensor]:
        """The boxes as a table with one row per image, [B, G, 4], padded with empty boxes, and the position of each
        box."""
        images, most = len(self.counts), max(self.counts)
        slot = self.image * most + self.index
        return self.boxes.new_zeros(images * most, 4).index_copy_(0, slot, self.boxes).view(images, most, 4), slot

    @property
    def ends(self) -> list[int]:
        """The end index of the objects of each image."""
        return list(accumulate(self.counts))


def _check(boxes: Tensor, labels: Tensor, classes: int, indices: Tensor, total: int) -> None:
    faulty = ~boxes.isfinite().all(1) | (boxes[:, 2:] < boxes[:, :2]).any(1) | (labels < 0) | (labels >= classes)
    if bool(faulty.any()):
        at = int(faulty.nonzero()[0])
        raise ValueError(
            f"target {int(indices[at])} of the batch, object {int(indices[total + at])}: box {boxes[at].tolist()} with "
            f"label {int(labels[at])}; boxes must be finite xyxy with x1 <= x2 and y1 <= y2, and labels from 0 to "
            f"{classes - 1}"
        )


def crowds_of(target: Target) -> Tensor:
    """Which boxes of a target are crowd regions, bool [N]; none by default."""
    boxes, crowd = target["boxes"], target.get("iscrowd")
    if crowd is None:
        return torch.zeros(len(boxes), dtype=torch.bool, device=boxes.device)
    return torch.as_tensor(crowd, device=boxes.device).reshape(-1).bool()
