"""Small datasets written as files, for tests of everything that reads them: coloured rectangles, 20 images each."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ["bolt", "gear", "nut"]
COLOURS = [(220, 60, 60), (60, 200, 80), (70, 90, 230)]


@dataclass
class Picture:
    """An image in memory and its boxes, xyxy in whole pixels."""

    stem: str
    pixels: np.ndarray
    boxes: list[tuple[int, int, int, int]]
    labels: list[int]
    crowd: list[bool]

    @property
    def size(self) -> tuple[int, int]:
        return self.pixels.shape[1], self.pixels.shape[0]


def pictures(count: int, seed: int = 0) -> list[Picture]:
    """Rectangles on noise, in images of several sizes, wide and high; the last has no box."""
    dice = random.Random(seed)
    made = []
    for number in range(count):
        width, height = dice.choice([(96, 64), (64, 96), (80, 80), (101, 67)])
        noise = np.random.default_rng(seed * 1000 + number)
        pixels = noise.integers(90, 150, (height, width, 3), dtype=np.uint8)
        boxes, labels = [], []
        for _ in range(dice.randint(1, 3) if number < count - 1 else 0):
            w, h = dice.randint(16, 40), dice.randint(16, 40)
            x, y = dice.randint(0, width - w), dice.randint(0, height - h)
            label = dice.randrange(len(CLASSES))
            pixels[y : y + h, x : x + w] = COLOURS[label]
            boxes.append((x, y, x + w, y + h))
            labels.append(label)
        made.append(Picture(f"picture{number:03d}", pixels, boxes, labels, [False] * len(boxes)))
    return made


def save(picture: Picture, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{picture.stem}.jpg"
    Image.fromarray(picture.pixels).save(path, quality=92)
    return path


def coco_content(made: list[Picture], category_ids: tuple[int, ...] = (3, 7, 90)) -> dict:
    """COCO's JSON, with category ids that are not contiguous."""
    images, annotations = [], []
    for number, picture in enumerate(made, start=100):
        width, height = picture.size
        images.append({"id": number, "file_name": f"{picture.stem}.jpg", "width": width, "height": height})
        for (x0, y0, x1, y1), label, crowd in zip(picture.boxes, picture.labels, picture.crowd, strict=True):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": category_ids[label],
                    "bbox": [x0, y0, x1 - x0, y1 - y0],
                    "area": (x1 - x0) * (y1 - y0),
                    "iscrowd": int(crowd),
                }
            )
    categories = [{"id": number, "name": name} for number, name in zip(category_ids, CLASSES, strict=True)]
    return {"images": images, "annotations": annotations, "categories": categories}


def write_coco_folder(root: Path, train: int = 16, val: int = 4) -> Path:
    """``annotations/instances_<split>.json`` beside ``<split>/``."""
    (root / "annotations").mkdir(parents=True)
    for seed, (split, count) in enumerate({"train": train, "val": val}.items()):
        if count:
            made = pictures(count, seed)
            for picture in made:
                save(picture, root / split)
            (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(coco_content(made)))
    return root


def write_two_years(root: Path, val: int = 4) -> Path:
    """A COCO folder with training and validation splits of 2014 and of 2017."""
    write_coco_folder(root, val=val)
    for split in ("train", "val") if val else ("train",):
        for year in (2014, 2017):
            shutil.copytree(root / split, root / f"{split}{year}")
            shutil.copy(
                root / f"annotations/instances_{split}.json", root / f"annotations/instances_{split}{year}.json"
            )
        (root / f"annotations/instances_{split}.json").unlink()
    return root


def voc_xml(picture: Picture) -> str:
    """VOC's XML, corners counted from 1."""
    objects = "".join(
        f"<object><name>{CLASSES[label]}</name><difficult>{int(crowd)}</difficult><bndbox><xmin>{x0 + 1}</xmin>"
        f"<ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>\n"
        for (x0, y0, x1, y1), label, crowd in zip(picture.boxes, picture.labels, picture.crowd, strict=True)
    )
    width, height = picture.size
    return (
        f"<annotation>\n<filename>{picture.stem}.jpg</filename>\n<size><width>{width}</width><height>{height}</height>"
        f"<depth>3</depth></size>\n{objects}</annotation>\n"
    )


def write_voc_folder(root: Path, train: int = 16, val: int = 4) -> Path:
    """``Annotations``, ``JPEGImages`` and ``ImageSets/Main``."""
    made = pictures(train + val)
    (root / "Annotations").mkdir(parents=True)
    (root / "ImageSets" / "Main").mkdir(parents=True)
    for picture in made:
        save(picture, root / "JPEGImages")
        (root / "Annotations" / f"{picture.stem}.xml").write_text(voc_xml(picture))
    for split, part in {"train": made[val:], "val": made[:val]}.items():
        if part:
            (root / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{p.stem}\n" for p in part))
    return root


def yolo_lines(picture: Picture) -> str:
    width, height = picture.size
    return "".join(
        f"{label} {(x0 + x1) / 2 / width} {(y0 + y1) / 2 / height} {(x1 - x0) / width} {(y1 - y0) / height}\n"
        for (x0, y0, x1, y1), label in zip(picture.boxes, picture.labels, strict=True)
    )


def write_yolo_folder(root: Path, train: int = 16, val: int = 4) -> Path:
    """``data.yaml``, ``images/<split>`` and ``labels/<split>``."""
    root.mkdir(parents=True, exist_ok=True)
    lines = []
    for seed, (split, count) in enumerate({"train": train, "val": val}.items()):
        if not count:
            continue
        lines.append(f"{split}: images/{split}\n")
        (root / "labels" / split).mkdir(parents=True)
        for picture in pictures(count, seed):
            save(picture, root / "images" / split)
            if picture.boxes:  # an image without a file shows no object
                (root / "labels" / split / f"{picture.stem}.txt").write_text(yolo_lines(picture))
    (root / "data.yaml").write_text("path: .\n" + "".join(lines) + f"names: {json.dumps(CLASSES)}\n")
    return root
