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


def write_yolo(folder: Path, repeats: int) -> Path:
    """A dataset for ultralytics whose epoch shows every image so many times."""
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    for number, (image, objects) in enumerate(draw()):
        image.save(folder / "images" / f"{number}.png")
        lines = [
            f"{kind} {(x + w / 2) / SIZE} {(y + h / 2) / SIZE} {w / SIZE} {h / SIZE}\n"
            for kind, (x, y, w, h) in objects
        ]
        (folder / "labels" / f"{number}.txt").write_text("".join(lines))
    names = [str(folder / "images" / f"{number}.png") for number in range(IMAGES)]
    (folder / "train.txt").write_text("\n".join(names * repeats))
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: train.txt\nval: images\nnames: {CLASSES}\n")
    return folder / "data.yaml"


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
