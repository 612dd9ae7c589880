"""Eight drawn images of 64 pixels with two objects each, as files of YOLO's and COCO's format."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

SIZE, IMAGES = 64, 8
CLASSES = ["rectangle", "ellipse"]
COLOURS = [(220, 60, 40), (40, 120, 220)]


def draw() -> list[tuple[Image.Image, list[tuple[int, list[int]]]]]:
    """Images, each with the class and the box (x, y, width, height) of its objects."""
    dice, drawn = random.Random(0), []
    for _ in range(IMAGES):
        image, objects = Image.new("RGB", (SIZE, SIZE), (90, 90, 90)), []
        pen = ImageDraw.Draw(image)
        for half in range(2):
            width, height, kind = dice.randint(18, 28), dice.randint(18, 28), dice.randint(0, 1)
            x, y = dice.randint(0, 3) + 32 * half, dice.randint(0, SIZE - height)
            corners = (x, y, x + width - 1, y + height - 1)
            (pen.ellipse if kind else pen.rectangle)(corners, fill=COLOURS[kind])
            objects.append((kind, [x, y, width, height]))
        drawn.append((image, objects))
    return drawn


def write_yolo(folder: Path, repeats: int, task: str = "detect") -> Path:
    """A dataset for ultralytics whose epoch shows every image so many times."""
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    for number, (image, objects) in enumerate(draw()):
        image.save(folder / "images" / f"{number}.png")
        lines = [f"{kind} {' '.join(map(str, yolo_numbers(box, task)))}\n" for kind, box in objects]
        (folder / "labels" / f"{number}.txt").write_text("".join(lines))
    names = [str(folder / "images" / f"{number}.png") for number in range(IMAGES)]
    (folder / "train.txt").write_text("\n".join(names * repeats))
    points = "kpt_shape: [4, 3]\nflip_idx: [1, 0, 3, 2]\n" if task == "pose" else ""
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: train.txt\nval: images\nnames: {CLASSES}\n{points}")
    return folder / "data.yaml"


def yolo_numbers(box: list[int], task: str) -> list[float]:
    """What follows the class in ultralytics' labels: a box, its corners, or a box and its corners as visible points."""
    x, y, width, height = (value / SIZE for value in box)
    corners = [[x, y], [x + width, y], [x + width, y + height], [x, y + height]]
    centred = [x + width / 2, y + height / 2, width, height]
    if task == "pose":
        return centred + [value for corner in corners for value in (*corner, 2)]
    return centred if task == "detect" else [value for corner in corners for value in corner]


def write_coco(folder: Path, repeats: int) -> Path:
    """A dataset for rfdetr whose epoch shows every image so many times."""
    for split, times in (("train", repeats), ("valid", 1)):
        (folder / split).mkdir(parents=True)
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for image, objects in draw() * times:
            name = f"{len(images)}.png"
            image.save(folder / split / name)
            images.append({"id": len(images) + 1, "file_name": name, "width": SIZE, "height": SIZE})
            for kind, box in objects:
                area = {"area": box[2] * box[3], "iscrowd": 0, "bbox": box, "category_id": kind + 1}
                annotations.append({"id": len(annotations) + 1, "image_id": len(images), **area})
        kinds = [{"id": number + 1, "name": name, "supercategory": "shape"} for number, name in enumerate(CLASSES)]
        content = {"images": images, "annotations": annotations, "categories": kinds}
        (folder / split / "_annotations.coco.json").write_text(json.dumps(content))
    return folder
