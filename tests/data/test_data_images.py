"""Every image file is read as RGB bytes, or raises an error that names it."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from rankwise.data import DataError
from rankwise.images.reading import read_header, read_image, read_pixels

SIZE = (40, 24)  # width, height


def picture() -> Image.Image:
    """A red left half and a blue right half, the top row white: every turn of it looks different."""
    pixels = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
    pixels[:, :20, 0] = 200
    pixels[:, 20:, 2] = 200
    pixels[:4] = 255
    return Image.fromarray(pixels)


@pytest.mark.parametrize(
    ("ending", "mode", "options"),
    [
        (".jpg", "RGB", {"quality": 95}),
        (".jpg", "CMYK", {"quality": 95}),
        (".png", "RGB", {}),
        (".png", "RGBA", {}),
        (".png", "P", {}),
        (".gif", "P", {}),
        (".bmp", "RGB", {}),
        (".tif", "RGB", {}),
        (".webp", "RGB", {"lossless": True}),
    ],
)
def test_color_images_become_rgb(tmp_path, ending, mode, options):
    path = tmp_path / f"a{ending}"
    picture().convert(mode).save(path, **options)
    image = read_image(path)
    assert image.shape == (3, 24, 40)
    assert image.dtype == torch.uint8
    assert (image[:, 15, 8] - torch.tensor([200, 0, 0])).abs().max() <= 6
    assert (image[:, 15, 32] - torch.tensor([0, 0, 200])).abs().max() <= 6


@pytest.mark.parametrize(
    ("ending", "mode"), [(".jpg", "L"), (".png", "L"), (".png", "LA"), (".png", "1"), (".tif", "L")]
)
def test_gray_images_become_three_equal_channels(tmp_path, ending, mode):
    path = tmp_path / f"a{ending}"
    picture().convert(mode).save(path)
    image = read_image(path)
    assert torch.equal(image[0], image[1])
    assert torch.equal(image[0], image[2])
    assert image[0, 1, 20] > 250


@pytest.mark.parametrize("ending", [".png", ".tif"])
def test_sixteen_bit_images_keep_their_upper_byte(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    grey = (np.arange(24 * 40).reshape(24, 40) * 60).astype(np.uint16)
    Image.fromarray(grey).save(path)
    for pixels in (read_image(path).permute(1, 2, 0).numpy(), read_pixels(path)):
        assert (pixels == (grey >> 8)[:, :, None]).all()


@pytest.mark.parametrize("ending", [".jpg", ".png", ".tif"])
def test_exif_orientation_is_applied(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    exif = Image.Exif()
    exif[0x0112] = 6  # a camera held upright: to be turned by 90 degrees clockwise
    picture().save(path, exif=exif)
    image = read_image(path)
    assert image.shape == (3, 40, 24)
    assert image[:, 20, -1].min() > 230  # the white top row is now the right column
    header = read_header(path)
    assert (header.width, header.height, header.turned) == (24, 40, True)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", [".jpg", ".png", ".webp", ".tif"])
def test_all_readers_apply_the_same_orientation(tmp_path, ending, orientation):
    path = tmp_path / f"a{ending}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture().save(path, exif=exif, **{"lossless": True} if ending == ".webp" else {})
    header, image, pixels = read_header(path), read_image(path), read_pixels(path)
    assert tuple(image.shape[1:]) == pixels.shape[:2] == (header.height, header.width)
    assert header.turned == (orientation > 4)
    shown = np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB")).astype(int)
    for found in (image.permute(1, 2, 0).numpy(), pixels):
        assert np.abs(found - shown).max() <= 8


@pytest.mark.parametrize("ending", [".jpg", ".png", ".webp"])
def test_orientation_in_xmp_is_ignored_for_size_and_pixels(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    text = PngInfo()
    text.add_itxt("XML:com.adobe.xmp", xmp.decode())
    picture().save(path, **{"pnginfo": text} if ending == ".png" else {"xmp": xmp})
    assert Image.open(path).getexif()[0x0112] == 6
    header = read_header(path)
    assert (header.width, header.height, header.turned) == (*SIZE, False)
    assert read_image(path).shape == (3, 24, 40)
    assert read_pixels(path).shape == (24, 40, 3)


@pytest.mark.parametrize("ending", [".jpg", ".png", ".webp", ".tif", ".bmp"])
def test_truncated_images_are_refused_by_name(tmp_path, ending):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    data = io.BytesIO()
    noise.save(data, Image.registered_extensions()[ending])
    path = tmp_path / f"cut{ending}"
    path.write_bytes(data.getvalue()[: len(data.getvalue()) // 2])
    with pytest.raises(
        DataError, match=rf"cut{ending}: cannot be read as an image \(.+\); replace or remove it"
    ) as caught:
        read_image(path)
    assert ".cpp" not in str(caught.value)


def test_files_that_are_not_images_are_refused_by_name(tmp_path):
    path = tmp_path / "notes.jpg"
    path.write_text("not an image")
    with pytest.raises(DataError, match=r"notes\.jpg: cannot be read as an image \(unknown image format\)"):
        read_image(path)
    (tmp_path / "empty.png").touch()
    with pytest.raises(DataError, match=r"empty\.png: cannot be read"):
        read_image(tmp_path / "empty.png")


def test_a_missing_image_says_so(tmp_path):
    with pytest.raises(DataError, match=r"gone\.jpg: the image is missing"):
        read_image(tmp_path / "gone.jpg")


def test_a_huge_image_is_refused_before_it_is_decoded(tmp_path, huge_png):
    with pytest.raises(
        DataError, match=r"huge\.png: the image has 50,000 × 50,000 = 2,500,000,000 pixels and the limit"
    ):
        read_image(huge_png)
    with pytest.raises(DataError, match="scale it down, or raise max_pixels"):
        read_header(huge_png)


def test_the_pixel_limit_can_be_changed(tmp_path):
    path = tmp_path / "a.png"
    picture().save(path)
    assert read_image(path, max_pixels=960).shape == (3, 24, 40)
    with pytest.raises(DataError, match=r"40 × 24 = 960 pixels and the limit is 959"):
        read_image(path, max_pixels=959)
