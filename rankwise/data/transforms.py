"""Transforms from the image of a file to the input of the detector, with its boxes.

All random numbers come from torch's generator, so that a seed determines the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import BoundingBoxes, BoundingBoxFormat

from rankwise.data.combine import visible
from rankwise.data.hue import Distort
from rankwise.images.settings import LEAST_SIDE, InputSettings
from rankwise.images.tensors import resize_for_input
from rankwise.types import Target

#: Boxes with a side below this many pixels after augmentation are dropped.
SMALLEST_BOX = 1.0

#: Images with a side below this many pixels are not cropped.
_SMALLEST_CROPPED = 16


@dataclass(frozen=True)
class AugmentSettings:
    """Augmentation of training images.

    Args:
        flip: Probability of a horizontal flip.
        ssd: SSD augmentation: photometric distortion, zoom out, and random crops around objects.
        short_sides: Multi-scale training: each image is randomly resized to one of these short sides.
        short_range: Multi-scale training with a range: any short side from the first to the second value.
        max_side: Maximum long side in training, if it differs from that of the detector.
        square: Stretch every training image to a square of this side, as SSD does, although the detector is evaluated
            with the original aspect ratio.
        degrees: Rotate by up to this many degrees in both directions. A box becomes the box around the rotated one.
        translate: Shift by up to this fraction of the image size.
        scale: Scale by a factor from 1 - scale to 1 + scale.
        shear: Shear by up to this many degrees in both directions.
        mosaic: Probability of a mosaic of four images.
        mixup: Probability that another image, with its boxes, is blended in.
    """

    flip: float = 0.5
    ssd: bool = False
    short_sides: tuple[int, ...] = ()
    short_range: tuple[int, int] | None = None
    max_side: int | None = None
    square: int | None = None
    degrees: float = 0.0
    translate: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    mosaic: float = 0.0
    mixup: float = 0.0

    def __post_init__(self) -> None:
        for name in ("flip", "mosaic", "mixup"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"augment.{name} is {getattr(self, name)}: it must be a probability from 0 to 1")
        for name, most in {"degrees": 180, "translate": 1, "scale": 0.95, "shear": 80}.items():
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"augment.{name} is {getattr(self, name)}: it must be from 0 to {most}")
        if sum(map(bool, (self.short_sides, self.short_range, self.square))) > 1:
            raise ValueError(
                f"augment.short_sides is {tuple(self.short_sides)}, augment.short_range {self.short_range} and "
                f"augment.square {self.square}: set one of them"
            )
        for name in ("short_sides", "short_range", "max_side", "square"):
            value = getattr(self, name)
            sizes = value if isinstance(value, tuple | list) else () if value is None else (value,)
            if any(size < LEAST_SIDE for size in sizes):
                raise ValueError(f"augment.{name} is {value}: it must be at least {LEAST_SIDE} pixels")
        if self.short_range and self.short_range[0] > self.short_range[1]:
            raise ValueError(f"augment.short_range is {tuple(self.short_range)}: give the smaller size first")


class EvalTransform:
    """Resizes an image, and its boxes if there are any, to the input size of the detector."""

    def __init__(self, settings: InputSettings) -> None:
        self.settings = settings

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        return resize(image, target, self.settings)


class TrainTransform:
    """Augments an image and resizes it to the input size of the detector."""

    def __init__(self, settings: InputSettings, augment: AugmentSettings | None = None) -> None:
        self.settings = settings
        self.augment = augment or AugmentSettings()
        self._distort = Distort()
        self._zoom_out = v2.RandomZoomOut(fill=list(settings.mean_colour))
        self._crop = v2.RandomIoUCrop()
        self._affine = v2.RandomAffine(
            degrees=self.augment.degrees,
            translate=(self.augment.translate, self.augment.translate),
            scale=(1 - self.augment.scale, 1 + self.augment.scale),
            shear=(-self.augment.shear, self.augment.shear, -self.augment.shear, self.augment.shear),
            interpolation=v2.InterpolationMode.BILINEAR,
        )
        self._warps = any((self.augment.degrees, self.augment.translate, self.augment.scale, self.augment.shear))

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        if self.augment.ssd:
            image = self._distort(image)
            image, target = self._zoomed_out(image, target)
            image, target = self._cropped(image, target)
        if self._warps:
            image, target = self._warped(image, target)
        if torch.rand(()) < self.augment.flip:
            image, target = _flipped(image, target)
        image, target = resize(image, target, self._scaled_settings())
        return image, _sanitized(image, target)

    def _scaled_settings(self) -> InputSettings:
        """The input settings for training, with a random size if there are several."""
        if self.augment.square:
            return replace(
                self.settings, short_side=self.augment.square, max_side=self.augment.square, keep_ratio=False
            )
        if self.augment.short_sides:
            short = self.augment.short_sides[int(torch.randint(len(self.augment.short_sides), ()))]
        elif self.augment.short_range:
            low, high = self.augment.short_range
            short = int(torch.randint(low, high + 1, ()))
        else:
            short = self.settings.short_side
        return self.settings.resized(short, self.augment.max_side)

    def _zoomed_out(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        image, boxes = self._zoom_out(image, _boxes(image, target["boxes"]))
        return image, target | {"boxes": boxes.as_subclass(Tensor)}

    def _warped(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """Rotates, shifts, scales and shears; objects that are mostly outside are dropped."""
        height, width = image.shape[-2:]
        how = self._affine.make_params([image])
        warped = F.affine(
            image, **how, interpolation=self._affine.interpolation, fill=list(map(float, self.settings.mean_colour))
        )
        # On a canvas with a wide margin: torchvision clips boxes, but we need to know how much of each is cut off.
        margin = 4 * max(height, width)
        moved = BoundingBoxes(
            target["boxes"].double() + margin,
            format=BoundingBoxFormat.XYXY,
            canvas_size=(height + 2 * margin, width + 2 * margin),
        )
        boxes = F.affine(moved, **how, center=[margin + width / 2, margin + height / 2]).as_subclass(Tensor) - margin
        boxes, kept = visible(boxes.float(), target["iscrowd"], height, width)
        return warped, _kept(target | {"boxes": boxes}, kept)

    def _cropped(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """Crops around objects; objects whose center is cut off are dropped.

        Crowd boxes do not influence the crop, and their remains are kept. If they were dropped, they would become
        background, and detections there would be penalized.
        """
        crowd = target["iscrowd"]
        objects = target["boxes"][~crowd]
        if len(objects) == 0 or min(image.shape[-2:]) < _SMALLEST_CROPPED:
            return image, target
        crop = self._crop.make_params([image, _boxes(image, objects)])
        if not crop:
            return image, target
        top, left, height, width = crop["top"], crop["left"], crop["height"], crop["width"]
        x, y = (target["boxes"][:, :2] + target["boxes"][:, 2:]).T / 2
        within = (x > left) & (x < left + width) & (y > top) & (y < top + height)
        boxes = F.crop(_boxes(image, target["boxes"]), top, left, height, width).as_subclass(Tensor)
        image = F.crop(image, top, left, height, width)
        return image, _sanitized(image, _kept(target | {"boxes": boxes}, within | crowd))


def resize(image: Tensor, target: Target, settings: InputSettings) -> tuple[Tensor, Target]:
    """Resizes an image, uint8 [3, H, W], and its boxes to the input size, and stores the new size in the target."""
    resized = resize_for_input(image, settings)
    (height, width), size = image.shape[-2:], tuple(resized.shape[-2:])
    if size == (height, width):
        return resized, target | {"size": size}
    scale = torch.tensor([size[1] / width, size[0] / height]).repeat(2)
    return resized, target | {"boxes": target["boxes"] * scale, "size": size}


# Flips and limits are plain arithmetic: torchvision's functions take longer to find their kernel than to run it.


def _flipped(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    left, top, right, bottom = target["boxes"].unbind(1)
    width = image.shape[-1]
    return image.flip(-1), target | {"boxes": torch.stack([width - right, top, width - left, bottom], dim=1)}


def _boxes(image: Tensor, boxes: Tensor) -> BoundingBoxes:
    return BoundingBoxes(boxes, format=BoundingBoxFormat.XYXY, canvas_size=image.shape[-2:])


def _sanitized(image: Tensor, target: Target) -> Target:
    """Clips boxes to the image and drops those that become empty."""
    height, width = image.shape[-2:]
    boxes = torch.minimum(target["boxes"].clamp(min=0), torch.tensor([width, height, width, height]))
    large = (boxes[:, 2:] - boxes[:, :2] >= SMALLEST_BOX).all(dim=1)
    return _kept(target | {"boxes": boxes}, large)


def _kept(target: Target, keep: Tensor) -> Target:
    """The target with only these boxes, and the same rows of all other per-box entries."""
    if bool(keep.all()):
        return target
    return {
        key: value[keep] if isinstance(value, Tensor) and value.shape[:1] == keep.shape else value
        for key, value in target.items()
    }
