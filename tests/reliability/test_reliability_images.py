"""Damaged and unusual images: a message or the right pixels, never a crash, and never black in silence."""

import io
import random
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from rankwise.errors import DataError
from rankwise.images.reading import read_header, read_image, read_pixels

READERS = (read_header, read_image, read_pixels)
PIXELS = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)


def encoded(kind, **options):
    content = io.BytesIO()
    Image.fromarray(PIXELS).save(content, kind, **options)
    return content.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP"])
def test_a_damaged_or_truncated_image_is_refused_or_read_and_never_ends_the_process(tmp_path, kind):
    whole, dice = encoded(kind), random.Random(0)
    for attempt in range(20):
        content = bytearray(whole)
        if attempt % 2:
            content[dice.randrange(len(content) // 4, len(content))] ^= 0xFF
        else:
            content = content[: dice.randrange(1, len(content))]
        (tmp_path / "a").write_bytes(content)
        for read in (read_image, read_pixels):
            with suppress(DataError):  # any other error, or a crash, ends the test
                assert sorted(read(tmp_path / "a").shape) == [3, 40, 60]


@pytest.mark.parametrize("place", [0.5, 0.9])
def test_a_png_with_one_wrong_byte_is_refused(tmp_path, place):
    content = bytearray(encoded("PNG"))
    content[int(place * len(content))] ^= 0xFF
    (tmp_path / "a.png").write_bytes(content)
    for read in (read_image, read_pixels):
        with pytest.raises(DataError, match=r"a\.png: cannot be read as an image"):
            read(tmp_path / "a.png")


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("read", READERS)
def test_pixels_of_unknown_range_are_refused(tmp_path, read, dtype):
    Image.fromarray(np.linspace(0, 1 if dtype == np.float32 else 255, 200).reshape(10, 20).astype(dtype)).save(
        tmp_path / "a.tif"
    )
    with pytest.raises(DataError, match=r"a\.tif: the pixels are 32-bit numbers"):
        read(tmp_path / "a.tif")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_damaged_exif_does_not_hide_good_pixels(tmp_path, kind):
    (tmp_path / "a").write_bytes(encoded(kind, exif=b"Exif\0\0garbagegarbage"))
    assert read_header(tmp_path / "a").width == 60
    assert (read_image(tmp_path / "a").permute(1, 2, 0).numpy() == read_pixels(tmp_path / "a")).all()
