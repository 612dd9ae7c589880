"""Several training images in one: mosaic and mixup.

torchvision's MixUp is for whole batches with one label per image; there is none for boxes, and no mosaic.
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

#: An object of which less than this share is left is left out; a crowd stays as long as anything of it is seen.
VISIBLE = 0.25
#: Where the four images of a mosaic meet, as shares of height and width.
_MEETING = (0.3, 0.7)
#: Images below this many pixels a side are not combined.
_SMALLEST = 16
#: Parameters of the beta distribution of mixup's weights: both images are well seen.
_BETA = 32.0


class Combine:
    """Combines an image with others, at random.

    Args:
        mosaic: Probability of a mosaic: four images share the place of one.
        mixup: Probability that another image is blended in.
    """

    def __init__(self, mosaic: float, mixup: float) -> None:
        self.mosaic, self.mixup = mosaic, mixup

    def __call__(self, image: Tensor, target: Target, another: Callable[[], Item | None]) -> Item:
        """The image and its target, combined or as they are.

        Args:
            image: uint8 [3, H, W].
            target: Its target.
            another: Draws another item of the dataset; None if it cannot be read and that is to be skipped.
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
    """Four images in a picture of the first one's size, each filling its corner, meeting at a random point.

    Args:
        items: Four images and their targets; the first one's name and number stay.
    """
    image, target = items[0]
    height, width = image.shape[-2:]
    low, high = _MEETING
    y, x = (int(side * float(torch.empty(()).uniform_(low, high))) for side in (height, width))
    canvas = torch.empty_like(image)
    targets = []
    corners = ((0, 0, y, x), (0, x, y, width - x), (y, 0, height - y, x), (y, x, height - y, width - x))
    for order, (top, left, tall, wide) in zip(torch.randperm(4).tolist(), corners, strict=True):
        other, shown = items[order]
        part, seen = _filling(other, shown, tall, wide)
        canvas[:, top : top + tall, left : left + wide] = part
        targets.append(seen | {"boxes": seen["boxes"] + torch.tensor([left, top, left, top])})
    return canvas, _joined(target, targets)


def blend(one: Item, other: Item) -> Item:
    """One image shining through the other, with the boxes of both.

    Args:
        one: Image and target; its name and number stay.
        other: The other image and target, cut to the first one's size.
    """
    image, target = one
    part, seen = _filling(*other, image.shape[-2], image.shape[-1])
    weight = float(torch.distributions.Beta(_BETA, _BETA).sample())
    mixed = image.float().mul_(weight).add_(part.float(), alpha=1 - weight).round_()
    return mixed.to(torch.uint8), _joined(target, [target, seen])


def visible(boxes: Tensor, iscrowd: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Boxes cut off at a picture's border, and which of them are still seen well enough.

    Args:
        boxes: xyxy [N, 4].
        iscrowd: Which are crowds, bool [N].
        height: Of the picture.
        width: Of the picture.
    """
    limit = boxes.new_tensor([width, height, width, height])
    cut = torch.minimum(boxes.clamp(min=0), limit)
    whole, left = ((sides[:, 2:] - sides[:, :2]).clamp(min=0).prod(dim=1) for sides in (boxes, cut))
    return cut, (left > 0) & (iscrowd | (left >= VISIBLE * whole))


def _filling(image: Tensor, target: Target, height: int, width: int) -> Item:
    """An image in a size that covers a rectangle, and cut to it at a random place."""
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
