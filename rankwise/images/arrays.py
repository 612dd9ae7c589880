"""Images of any usual kind as arrays. Nothing here needs torch."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from PIL import Image

from rankwise.errors import ModelError
from rankwise.images.reading import read_pixels, rgb


def as_pixels(image: Any) -> np.ndarray:
    """An image of any usual kind as RGB, uint8 [H, W, 3].

    It may be the path of a file, a PIL image, an array [H, W, 3] or [H, W] of bytes, or a tensor [3, H, W] of bytes or
    of floats from 0 to 1. Anything else is a ModelError, an unreadable file a DataError.
    """
    if isinstance(image, str | os.PathLike):
        return read_pixels(image)
    if isinstance(image, Image.Image):
        image = rgb(image)
    if not isinstance(image, np.ndarray):
        if not hasattr(image, "detach"):
            raise ModelError(
                f"an image must be a path, a PIL image, a NumPy array or a tensor, not {type(image).__name__}"
            )
        return _from_channels_first((image.float() if image.is_floating_point() else image).detach().cpu().numpy())
    if image.ndim == 2:
        image = np.repeat(image[..., None], 3, axis=2)
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise ModelError(
            f"an image array must be uint8 of shape [height, width, 3] (RGB) or [height, width], not {image.dtype} "
            f"of shape {list(image.shape)}"
        )
    check_pixels(*image.shape[:2])
    return image


def check_pixels(height: int, width: int) -> None:
    """Refuses an image without pixels."""
    if not height or not width:
        raise ModelError(f"the image has no pixels: its height and width are {[height, width]}")


def check_channels(shape: tuple[int, ...]) -> None:
    """Refuses a tensor that is not an image, by its shape."""
    if len(shape) != 3 or shape[0] != 3:
        raise ModelError(f"an image tensor must have the shape [3, height, width], not {list(shape)}")
    check_pixels(shape[1], shape[2])


def check_range(low: float, high: float) -> None:
    """Refuses floats that are not from 0 to 1."""
    if not (low >= 0 and high <= 1):
        raise ModelError(
            f"a float image tensor must have values from 0 to 1, this one has {low:g} to {high:g}: divide by 255, "
            "convert it to uint8, or leave out your own normalization"
        )


def _from_channels_first(values: np.ndarray) -> np.ndarray:
    check_channels(values.shape)
    if np.issubdtype(values.dtype, np.floating):
        check_range(float(values.min()), float(values.max()))
        values = (values * 255).round().astype(np.uint8)
    if values.dtype != np.uint8:
        raise ModelError(f"an image tensor must be uint8 or float, not {values.dtype}")
    return np.ascontiguousarray(values.transpose(1, 2, 0))
