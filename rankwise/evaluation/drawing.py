"""Draws detections and ground truth on images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from rankwise.evaluation.colors import RGB, class_color, text_color
from rankwise.evaluation.matching import match
from rankwise.evaluation.tables import DetectionTable, ObjectTable, detection_table
from rankwise.files.names import escaped, short_name
from rankwise.numpy_boxes import nms

if TYPE_CHECKING:  # exported detectors draw without torch
    from torch import Tensor

    from rankwise.types import Detections, Target

#: An image as a uint8 tensor [3, H, W] (or float 0 … 1), an array [H, W, 3], or a PIL image.
Picture: TypeAlias = "Tensor | NDArray[np.uint8] | Image.Image"

#: In drawn images, a box hides boxes of any class with a higher IoU than this, so that each object has one box.
AGNOSTIC_IOU = 0.7

_INK, _PAPER = (40, 40, 40), (255, 255, 255)


@dataclass(frozen=True)
class Seen:
    """One image for a contact sheet.

    Attributes:
        image: The image.
        detections: The detections, in its pixels.
        target: The ground truth in its pixels, if known.
        name: The caption.
    """

    image: Picture
    detections: Detections
    target: Target | None = None
    name: str = ""


def draw_detections(
    image: Picture,
    detections: Detections,
    classes: Sequence[str],
    threshold: float | Sequence[float] = 0.0,
    min_size: int = 640,
    agnostic_iou: float | None = None,
) -> Image.Image:
    """Draws detections with class and score on an image.

    Args:
        image: The image.
        detections: The detections, in its pixels.
        classes: The class names.
        threshold: The minimum score: one for all classes, or one per class.
        min_size: Images with a smaller longer side are enlarged to this first, so that the text is readable.
        agnostic_iou: Hide a box if its IoU with a better box of any class exceeds this; None draws all.
    """
    picture = to_pil(image)
    canvas, scale = _resized(picture, max(min_size, *picture.size))
    table = _kept(detections, threshold, len(classes), agnostic_iou)
    _draw_boxes(canvas, table.boxes * scale, table.labels, _score_captions(table, classes))
    return canvas


def contact_sheet(
    items: Sequence[Seen],
    classes: Sequence[str],
    threshold: float | Sequence[float] = 0.0,
    columns: int = 2,
    cell: int = 400,
    agnostic_iou: float | None = None,
) -> Image.Image:
    """A grid of images: ground truth on the left, detections on the right.

    Missed objects are dashed on the right.

    Args:
        items: The images; those without a target only have the right side.
        classes: The class names.
        threshold: The minimum score: one for all classes, or one per class.
        columns: Number of columns.
        cell: Longer side of each image in pixels; images are resized to it.
        agnostic_iou: Hide a box if its IoU with a better box of any class exceeds this; None draws all.
    """
    tiles = [_tile(item, classes, threshold, cell, agnostic_iou) for item in items]
    detected = (
        f"detected with score ≥ {threshold:.2f}" if isinstance(threshold, float) and threshold > 0 else "detected"
    )
    return _sheet(tiles, columns, cell, f"left: annotated · right: {detected}, missed objects dashed")


def target_sheet(items: Sequence[tuple[Picture, Target]], classes: Sequence[str], legend: str) -> Image.Image:
    """A grid of images with their annotated boxes, and a line of text at the top; crowd regions are dashed."""
    columns, cell = 4, 400
    tiles = []
    for image, target in items:
        picture, scale = _resized(to_pil(image), cell)
        _draw_objects(picture, _objects(target), scale, classes)
        tiles.append(_captioned(picture, str(target.get("name", "")), cell))
    return _sheet(tiles, columns, cell, legend)


def _sheet(tiles: list[Image.Image], columns: int, cell: int, legend: str) -> Image.Image:
    """Images in rows and columns, with a line of text at the top."""
    gap, font = max(8, cell // 25), _cell_font(cell)
    line = _height(font)
    grid = [tiles[first : first + columns] for first in range(0, len(tiles), columns)]
    widths = [max(tile.width for tile in tiles[column::columns]) for column in range(min(columns, len(tiles)))]
    heights = [max(tile.height for tile in row) for row in grid]
    width = max(sum(widths) + gap * (len(widths) + 1), round(font.getlength(legend)) + 2 * gap)
    sheet = Image.new("RGB", (width, sum(heights) + gap * (len(heights) + 1) + line + gap), _PAPER)
    ImageDraw.Draw(sheet).text((gap, gap), legend, fill=_INK, font=font)
    top = line + 2 * gap
    for row, height in zip(grid, heights, strict=True):
        left = gap
        for tile, column_width in zip(row, widths, strict=False):
            sheet.paste(tile, (left, top))
            left += column_width + gap
        top += height + gap
    return sheet


def to_pil(image: Picture) -> Image.Image:
    """Converts any image to an RGB PIL image, a copy that can be drawn on."""
    if isinstance(image, Image.Image):
        return image.convert("RGB") if image.mode != "RGB" else image.copy()
    if not isinstance(image, np.ndarray):
        image = _pixels(image)
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim != 3 or image.shape[2] not in (1, 3) or image.dtype != np.uint8:
        raise ValueError(f"an image array must be uint8 [H, W, 3], not {image.dtype} {list(image.shape)}")
    return Image.fromarray(np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3))))


def _pixels(image: Tensor) -> NDArray[np.uint8]:
    image = image.detach().cpu()
    if image.is_floating_point():
        image = (image.clamp(0, 1) * 255).round().byte()
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ValueError(f"an image tensor must be [3, H, W], not {list(image.shape)}")
    return image.permute(1, 2, 0).numpy()


def _tile(
    item: Seen, classes: Sequence[str], threshold: float | Sequence[float], cell: int, agnostic_iou: float | None
) -> Image.Image:
    """Ground truth and detections of an image side by side, with its name below."""
    detected, scale = _resized(to_pil(item.image), cell)
    (width, height), gap = detected.size, max(2, cell // 150)
    table = _kept(item.detections, threshold, len(classes), agnostic_iou)
    panels = [detected]
    if item.target is not None:
        objects, annotated = _objects(item.target), detected.copy()
        panels = [annotated, detected]
        _draw_objects(annotated, objects, scale, classes)
        missed = (match(table, objects).found_by < 0) & ~objects.crowd
        dashed = np.ones(int(missed.sum()), dtype=np.bool_)
        _draw_boxes(detected, objects.boxes[missed] * scale, objects.labels[missed], None, dashed=dashed)
    _draw_boxes(detected, table.boxes * scale, table.labels, _score_captions(table, classes))
    tile = Image.new("RGB", (len(panels) * width + (len(panels) - 1) * gap, height), _PAPER)
    for index, panel in enumerate(panels):
        tile.paste(panel, (index * (width + gap), 0))
    return _captioned(tile, item.name, cell)


def _draw_objects(picture: Image.Image, objects: ObjectTable, scale: float, classes: Sequence[str]) -> None:
    """Draws annotated objects with their classes on a resized image; crowd regions are dashed."""
    rows = zip(objects.labels.tolist(), objects.crowd.tolist(), strict=True)
    captions = [f"{short_name(classes[label])}{' (crowd)' if crowd else ''}" for label, crowd in rows]
    _draw_boxes(picture, objects.boxes * scale, objects.labels, captions, dashed=objects.crowd)


def _resized(picture: Image.Image, longer_side: int) -> tuple[Image.Image, float]:
    """An image resized to this longer side in pixels, and the scale."""
    scale = longer_side / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC), scale


def _captioned(picture: Image.Image, name: str, cell: int) -> Image.Image:
    """An image with its name below; a long name is shortened at the front."""
    if not name:
        return picture
    font = _cell_font(cell)
    tile = Image.new("RGB", (picture.width, picture.height + _height(font) + 6), _PAPER)
    tile.paste(picture, (0, 0))
    name = escaped(name)  # a line break has no length
    while font.getlength(name) > tile.width and len(name) > 1:
        name = "…" + name.removeprefix("…")[1:]
    ImageDraw.Draw(tile).text((0, picture.height + 3), name, fill=_INK, font=font)
    return tile


def _kept(
    detections: Detections, threshold: float | Sequence[float], num_classes: int, agnostic_iou: float | None
) -> DetectionTable:
    table = detection_table({0: detections}, num_classes)
    limits = np.broadcast_to(np.asarray(threshold, dtype=np.float64), (num_classes,)) if num_classes else np.zeros(0)
    rows = np.flatnonzero(table.scores >= limits[table.labels])
    if agnostic_iou is not None:
        rows = rows[nms(table.boxes[rows], agnostic_iou)]
    return table.rows(rows)


def _objects(target: Target) -> ObjectTable:
    boxes = target["boxes"].detach().cpu().double().numpy().reshape(-1, 4)
    count = len(boxes)
    crowd = target.get("iscrowd")
    sides = boxes[:, 2:] - boxes[:, :2]
    return ObjectTable(
        image_ids=np.zeros(count, dtype=np.int64),
        boxes=boxes,
        xywh=np.concatenate([boxes[:, :2], sides], axis=1),
        labels=target["labels"].detach().cpu().numpy().astype(np.int64),
        crowd=np.zeros(count, dtype=np.bool_) if crowd is None else crowd.detach().cpu().numpy().astype(np.bool_),
        area=sides.prod(axis=1),
        annotation_ids=np.arange(1, count + 1),
    )


def _score_captions(table: DetectionTable, classes: Sequence[str]) -> list[str]:
    rows = zip(table.labels.tolist(), table.scores.tolist(), strict=True)
    return [f"{short_name(classes[label])} {score:.2f}" for label, score in rows]


def _draw_boxes(
    canvas: Image.Image,
    boxes: NDArray[np.float64],
    labels: NDArray[np.int64],
    captions: Sequence[str] | None,
    dashed: NDArray[np.bool_] | None = None,
) -> None:
    """Draws boxes, the first on top, then their captions where they overlap least."""
    draw = ImageDraw.Draw(canvas)
    longer = max(canvas.size)
    width = min(6, max(2, round(longer / 140)))
    corners = np.clip(boxes, 0, np.tile(np.asarray(canvas.size) - 1, 2)).round().astype(int).tolist()
    colors = [class_color(label) for label in labels.tolist()]
    for index in reversed(range(len(corners))):
        if dashed is not None and dashed[index]:
            _dashed_box(draw, corners[index], colors[index], width)
        else:
            # A dark outline keeps a light box visible on a light background.
            draw.rectangle(_grown(corners[index]), outline=(0, 0, 0), width=1)
            draw.rectangle(corners[index], outline=colors[index], width=width)
    if captions is None:
        return
    font = _font(max(11, round(longer / 42)))
    taken: list[tuple[int, int, int, int]] = []
    for corner, color, caption in zip(corners, colors, captions, strict=True):
        size = (round(font.getlength(caption)) + 6, _height(font) + 4)
        chip = _caption_box(corner, size, canvas.size, taken)
        taken.append(chip)
        draw.rectangle(chip, fill=color)
        draw.text((chip[0] + 3, chip[1] + 1), caption, fill=text_color(color), font=font)


def _caption_box(
    box: Sequence[int], size: tuple[int, int], canvas: tuple[int, int], taken: Sequence[tuple[int, int, int, int]]
) -> tuple[int, int, int, int]:
    """The position of a caption: above its box if possible, and where it covers other captions and the object least."""
    left, top, right, bottom = box
    width, height = size
    area = width * height
    # Inside the box it hides part of the object; below, it could be taken for that of the next object.
    inside, below = area * min(1.0, area / max(1, (right - left) * (bottom - top))), 0.1 * area
    positions = (
        (left, top - height, 0.0),
        (left, top, inside),
        (left, bottom + 1, below),
        (right - width + 1, top - height, 0.05 * area),
        (right - width + 1, bottom + 1, below),
        (left, bottom - height, inside + below),
    )
    best, least = (0, 0, 0, 0), float("inf")
    for x, y, cost in positions:
        moved_x, moved_y = (max(0, min(at, end - side - 1)) for at, end, side in zip((x, y), canvas, size, strict=True))
        chip = (moved_x, moved_y, moved_x + width, moved_y + height)
        # If the image border shifts the caption, it hides its own object.
        cost += sum(_intersection(chip, other) for other in taken) + (inside + below) * (moved_y != y)
        if cost < least:
            best, least = chip, cost
    return best


def _intersection(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> int:
    """Intersection area of two rectangles."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return width * height if width > 0 and height > 0 else 0


def _dashed_box(draw: ImageDraw.ImageDraw, box: Sequence[int], color: RGB, width: int) -> None:
    left, top, right, bottom = box
    dash = 4 * width
    for x in range(left, right, 2 * dash):
        for y in (top, bottom - width + 1):
            _dash(draw, (x, y, min(x + dash, right), y + width - 1), color)
    for y in range(top, bottom, 2 * dash):
        for x in (left, right - width + 1):
            _dash(draw, (x, y, x + width - 1, min(y + dash, bottom)), color)


def _dash(draw: ImageDraw.ImageDraw, bar: tuple[int, int, int, int], color: RGB) -> None:
    draw.rectangle(_grown(bar), fill=(0, 0, 0))
    draw.rectangle(bar, fill=color)


def _grown(box: Sequence[int]) -> tuple[int, int, int, int]:
    return box[0] - 1, box[1] - 1, box[2] + 1, box[3] + 1


def _cell_font(cell: int) -> ImageFont.FreeTypeFont:
    """The font of a contact sheet, by the longer side of its images."""
    return _font(max(11, cell // 28))


@lru_cache(maxsize=32)
def _font(size: int) -> ImageFont.FreeTypeFont:
    import matplotlib  # includes a font that is available everywhere and covers most alphabets

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)


def _height(font: ImageFont.FreeTypeFont) -> int:
    ascent, descent = font.getmetrics()
    return ascent + descent
