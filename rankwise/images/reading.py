"""Reads image files of any supported type as RGB bytes, with errors that name the file."""

from __future__ import annotations

import io
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from PIL import Image, ImageOps

from rankwise.errors import DataError
from rankwise.files.names import escaped
from rankwise.files.parsing import open_regular

if TYPE_CHECKING:  # exported detectors read images without torch
    from torch import Tensor

#: Images with more pixels are refused: one of 50,000 × 50,000 would take 7.5 GB in each loader worker.
MAX_PIXELS = 100_000_000

#: Allowed formats, by Pillow's names. Pillow would pass PostScript on to Ghostscript, whatever the file name.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP")

#: An image with more pixels than the first value, and more pixels per byte than the second, is a decompression bomb.
BOMB_PIXELS, BOMB_RATIO = 4_000_000, 2000

#: File extensions of images.
IMAGE_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"})

_ORIENTATION_TAG = 0x0112
_TURNED_BY_90 = (5, 6, 7, 8)
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_pillow_limit = threading.Lock()


@dataclass(frozen=True)
class ImageHeader:
    """The header of an image file.

    Attributes:
        width: Width in pixels after applying the EXIF orientation.
        height: Height in pixels after applying the EXIF orientation.
        turned: Whether the EXIF orientation swaps width and height of the stored pixels.
        format: The format in Pillow's naming, such as ``"JPEG"``.
    """

    width: int
    height: int
    turned: bool
    format: str


def read_header(path: str | os.PathLike[str], max_pixels: int = MAX_PIXELS) -> ImageHeader:
    """Reads the size of an image without decoding it; raises a DataError as :func:`read_image`."""
    with _naming(path), open_regular(path) as file, _open(file, path, max_pixels) as image:
        return _header(image)


def read_image(path: str | os.PathLike[str], max_pixels: int = MAX_PIXELS) -> Tensor:
    """Reads an image file as RGB, uint8 [3, H, W], and applies its EXIF orientation.

    Gray, palette and CMYK images are converted, transparency is dropped, and 16-bit images keep their upper 8 bits.
    Pixels of 32 bits are refused, because their range is unknown.

    Raises:
        DataError: If the file is missing, not an image, damaged, or has more than ``max_pixels`` pixels.
    """
    with _naming(path):
        with open_regular(path) as file:
            data = file.read()
        with _open(io.BytesIO(data), path, max_pixels) as image:
            # torchvision decodes these a third faster than Pillow and rejects truncated files. Its decoder of PNG ends
            # the process with a segmentation fault where the file is damaged.
            if image.format == "JPEG":
                return _decode(data)
            import torch

            return torch.from_numpy(rgb(image)).permute(2, 0, 1)


def read_pixels(path: str | os.PathLike[str]) -> np.ndarray:
    """Like :func:`read_image`, but with Pillow only, without torch: uint8 [H, W, 3]."""
    with _naming(path), open_regular(path) as file, _open(file, path, MAX_PIXELS) as image:
        return rgb(image)


def _decode(data: bytes) -> Tensor:
    import torch
    from torchvision.io import ImageReadMode, decode_image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the bytes are read-only, but nothing writes to them
        encoded = torch.frombuffer(data, dtype=torch.uint8)
    return decode_image(encoded, mode=ImageReadMode.RGB, apply_exif_orientation=True)


def rgb(image: Image.Image) -> np.ndarray:
    """The pixels of a Pillow image, uint8 [H, W, 3]."""
    image = _turned(image)
    if image.mode.startswith("I"):  # 16 bits per pixel, which convert("RGB") would clip at 255
        grey = np.clip(np.asarray(image) >> 8, 0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    return np.array(image.convert("RGB"))


def _header(image: Image.Image) -> ImageHeader:
    turned = _orientation(image) in _TURNED_BY_90
    if turned and image.format == "TIFF":  # whether Pillow's size is already the rotated one depends on its version
        width, height = ImageOps.exif_transpose(image).size
    else:
        width, height = reversed(image.size) if turned else image.size
    return ImageHeader(width, height, turned, image.format or "")


def _turned(image: Image.Image) -> Image.Image:
    """Applies the EXIF orientation."""
    if image.format == "TIFF":
        return ImageOps.exif_transpose(image)
    turn = _TURNS.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation. Pillow would also use XMP and decode a PNG to find it; torchvision does not."""
    if image.format == "TIFF":
        exif = image.getexif()
    else:
        exif = Image.Exif()
        try:
            exif.load(image.info.get("exif", b""))
        except Exception:  # damaged in any way: the pixels may still be good
            return 1
    orientation: int = exif.get(_ORIENTATION_TAG, 1)
    return orientation


@contextmanager
def _open(file: BinaryIO, path: str | os.PathLike[str], limit: int) -> Iterator[Image.Image]:
    """Opens an image with Pillow, with our pixel limit instead of Pillow's."""
    with _pillow_limit:
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            image = Image.open(file, formats=FORMATS)
        finally:
            Image.MAX_IMAGE_PIXELS = before
    with image:
        width, height = image.size
        if width * height > limit:
            raise DataError(
                f"{escaped(path)}: the image has {width:,} × {height:,} = {width * height:,} pixels and the limit is "
                f"{limit:,}; scale it down, or raise max_pixels if the size is intended"
            )
        if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):
            raise DataError(
                f"{escaped(path)}: the pixels are 32-bit numbers, and which of them is white is unknown; save the "
                f"image with 8 or 16 bits"
            )
        here = file.tell()  # where Pillow continues to read
        size = file.seek(0, os.SEEK_END)
        file.seek(here)
        if width * height > max(BOMB_PIXELS, BOMB_RATIO * size):
            raise DataError(
                f"{escaped(path)}: the image has {width:,} × {height:,} pixels in a file of {size:,} bytes, which is a "
                f"decompression bomb; remove it"
            )
        yield image


@contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns all decoder errors into errors that name the file."""
    name = escaped(os.fspath(path))
    try:
        yield
    except (DataError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise DataError(f"{name}: the image is missing; put the file there or remove its annotations") from error
    except PermissionError as error:
        raise DataError(f"{name}: no permission to read the image; check its access rights") from error
    except Exception as error:  # decoders raise OSError, RuntimeError, SyntaxError, struct.error and more
        reason = "the file is empty" if Path(path).is_file() and not Path(path).stat().st_size else _reason(error)
        raise DataError(f"{name}: cannot be read as an image ({reason}); replace or remove it") from error


def _reason(error: Exception) -> str:
    """The message of a decoder, without the source locations that torchvision adds."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "cannot identify image file" in text:
        return "unknown image format"
    return re.sub(r"^.*\.cpp:\d+,\s*", "", text).rstrip(". ")
