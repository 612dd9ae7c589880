"""Prepares images as tensors for a detector: reading, resizing and padding to a batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import resize

from rankwise.errors import ModelError
from rankwise.images.arrays import as_pixels, check_channels, check_range
from rankwise.images.reading import read_image
from rankwise.images.settings import InputSettings, padded_size


def input_size(height: int, width: int, settings: InputSettings) -> tuple[int, int]:
    """Height and width of a resized image, without padding."""
    return settings.input_size(height, width)


def resize_for_input(image: Tensor, settings: InputSettings) -> Tensor:
    """Resizes an image to the input size of the detector.

    Args:
        image: uint8 [3, H, W].
        settings: The input settings of the detector.
    """
    size = settings.input_size(*image.shape[-2:])
    if size == tuple(image.shape[-2:]):
        return image
    return resize(image, list(size), interpolation=InterpolationMode.BILINEAR, antialias=True)


def stack_images(images: Sequence[Tensor], settings: InputSettings) -> Tensor:
    """Stacks images of different sizes into a batch, uint8 [B, 3, H, W], padded with the mean color at the right and
    bottom.

    Args:
        images: uint8 [3, H, W] each.
        settings: The input settings of the detector: mean color and divisor of height and width.
    """
    return pad_images(images, settings.divisor, settings.mean_colour)


def pad_images(images: Sequence[Tensor], divisor: int, colour: tuple[int, int, int]) -> Tensor:
    """Stacks images [3, H, W] into a batch, uint8 [B, 3, H, W], padded with a color at the right and bottom.

    Height and width of the batch are multiples of the divisor.
    """
    sizes = sizes_of(images)
    size = padded_size(sizes, divisor)
    if all(one == size for one in sizes):
        return torch.stack(list(images))
    filling = torch.tensor(colour, dtype=torch.uint8, device=images[0].device)[:, None, None]
    batch = filling.new_empty((len(images), 3, *size))
    for padded, image in zip(batch, images, strict=True):
        height, width = image.shape[1:]
        padded[:, :height, :width] = image
        padded[:, height:] = filling
        padded[:, :height, width:] = filling
    return batch


def sizes_of(images: Sequence[Tensor]) -> list[tuple[int, int]]:
    """(height, width) of each image [3, H, W]."""
    return [(image.shape[-2], image.shape[-1]) for image in images]


def as_image(image: Any) -> Tensor:
    """An image of any usual kind, as for :func:`rankwise.images.arrays.as_pixels`, as a tensor, uint8 [3, H, W]."""
    if isinstance(image, str | os.PathLike):
        return read_image(image)
    if not isinstance(image, Tensor):
        return torch.from_numpy(np.ascontiguousarray(as_pixels(image))).permute(2, 0, 1)
    check_channels(tuple(image.shape))
    if image.is_floating_point():
        check_range(float(image.min()), float(image.max()))
        return (image * 255).round().to(torch.uint8)
    if image.dtype != torch.uint8:
        raise ModelError(f"an image tensor must be uint8 or float, not {image.dtype}")
    return image
