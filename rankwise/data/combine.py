"""Mosaic and mixup: several training images combined into one.

torchvision's MixUp mixes whole batches with one label per image. It has no version for boxes, and no mosaic.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms.v2.functional import resize

from rankwise.types import Target

#: An image, uint8 [3, H, W], and its target.
Item = tuple[Tensor, Target]

#: Objects with less than this fraction of their area left are dropped; crowd boxes stay while any part is visible.
VISIBLE = 0.25
#: Range of the point where the four images of a mosaic meet, as fractions of height and width.
_CENTER = (0.3, 0.7)
#: Images with a side below this many pixels are not combined.
_SMALLEST = 16
#: Both parameters of the beta distribution of mixup weights; with this value, both images stay clearly visible.
_BETA = 32.0


class Combine:
    """Combines an image with three others as a mosaic, and blends another one in, each with a probability."""

    def __init__(self, mosaic: float, mixup: float) -> None:
        self.mosaic, self.mixup = mosaic, mixup

    def __call__(self, image: Tensor, target: Target, another: Callable[[], Item | None]) -> Item:
        """The image, uint8 [3, H, W], and its target, combined with others or unchanged.

        ``another`` returns a random item of the dataset, or None if that item is unreadable and skipped.
        """
        if min(image.shape[-2:]) < _SMALLEST:
            return image, target
        if self.mosaic and torch.rand(()) < self.mosaic:
            others = [item for item in (another() for _ in range(3)) if item is not None]
            if len(others) == 3:
                image, target = make_mosaic([(image, target), *others])
        if self.mixup and torch.rand(()) < self.mixup and (other := another()) is not None:
            image, target = blend((image, target), other)
        return image, target


def make_mosaic(items: list[Item]) -> Item:
    """Combines four images into one of the size, name and id of the first: each fills a corner, and they meet at a
    random point."""
    image, target = items[0]
    height, width = image.shape[-2:]
    low, high = _CENTER
    y, x = (int(side * float(torch.empty(()).uniform_(low, high))) for side in (height, width))
    canvas = torch.empty_like(image)
    targets = []
    corners = ((0, 0, y, x), (0, x, y, width - x), (y, 0, height - y, x), (y, x, height - y, width - x))
    for order, (top, left, tall, wide) in zip(torch.randperm(4).tolist(), corners, strict=True):
        other, other_target = items[order]
        part, seen = _filling(other, other_target, tall, wide)
        canvas[:, top : top + tall, left : left + wide] = part
        targets.append(seen | {"boxes": seen["boxes"] + torch.tensor([left, top, left, top])})
    return canvas, _joined(target, targets)


def blend(one: Item, other: Item) -> Item:
    """Blends two images; the result has the boxes of both, and the size, name and id of the first."""
    image, target = one
    part, seen = _filling(*other, image.shape[-2], image.shape[-1])
    weight = float(torch.distributions.Beta(_BETA, _BETA).sample())
    mixed = image.float().mul_(weight).add_(part.float(), alpha=1 - weight).round_()
    return mixed.to(torch.uint8), _joined(target, [target, seen])


def visible(boxes: Tensor, iscrowd: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Boxes [N, 4] clipped to the image, and which of them are still visible enough to keep; see :data:`VISIBLE`."""
    limit = boxes.new_tensor([width, height, width, height])
    cut = torch.minimum(boxes.clamp(min=0), limit)
    whole, left = ((sides[:, 2:] - sides[:, :2]).clamp(min=0).prod(dim=1) for sides in (boxes, cut))
    return cut, (left > 0) & (iscrowd | (left >= VISIBLE * whole))


def _filling(image: Tensor, target: Target, height: int, width: int) -> Item:
    """Scales an image to cover a rectangle and crops it there at a random position."""
    scale = max(height / image.shape[-2], width / image.shape[-1])
    size = [max(need, math.ceil(side * scale)) for need, side in zip((height, width), image.shape[-2:], strict=True)]
    top, left = (int(torch.randint(have - need + 1, ())) for have, need in zip(size, (height, width), strict=True))
    part = resize(image, size, antialias=True)[:, top : top + height, left : left + width]
    factors = torch.tensor([size[1] / image.shape[-1], size[0] / image.shape[-2]]).repeat(2)
    boxes, kept = visible(
        target["boxes"] * factors - torch.tensor([left, top, left, top]), target["iscrowd"], height, width
    )
    return part, {"boxes": boxes[kept], "labels": target["labels"][kept], "iscrowd": target["iscrowd"][kept]}


def _joined(target: Target, parts: list[Target]) -> Target:
    return target | {key: torch.cat([part[key] for part in parts]) for key in ("boxes", "labels", "iscrowd")}
