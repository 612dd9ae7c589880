"""The output of ``rankwise predict``: images, videos, JSON, COCO and YOLO files, crops. Does not need torch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rankwise.evaluation.drawing import AGNOSTIC_IOU, draw_detections, to_pil
from rankwise.files.names import counted
from rankwise.files.writing import make_folder, write_picture, write_text
from rankwise.images.sources import Camera, Frame, VideoWriter, is_video
from rankwise.numpy_boxes import nms

#: Where the best box suppresses overlapping boxes of other classes: in drawn images, in all results, or nowhere.
AgnosticNms = Literal["pictures", "always", "never"]

#: Output in addition to ``predictions.json``: nothing, ``annotations.json`` for COCO, or ``labels/`` for YOLO.
Format = Literal["json", "coco", "yolo"]


@dataclass(frozen=True)
class Item:
    """An image to detect objects in: of a file or camera, in the type the detector takes, and the frame of a video."""

    source: Path | Camera
    image: Any
    frame: Frame | None = None


@dataclass(frozen=True)
class Output:
    """What to write.

    Attributes:
        folder: The output folder.
        agnostic_nms: Where a box suppresses overlapping boxes of other classes.
        pictures: Whether to draw images.
        format: An additional output format.
        crop: Whether to save each object as a separate image.
    """

    folder: Path
    agnostic_nms: AgnosticNms = "pictures"
    pictures: bool = True
    format: Format = "json"
    crop: bool = False


class Writer:
    """Writes detections one image at a time. As a context manager, it deletes unfinished videos if an error leaves it.

    Args:
        sources: The images and videos.
        output: What to write.
        classes: The class names.

    Attributes:
        entries: The entries of ``predictions.json``.
    """

    def __init__(self, sources: Sequence[Path | Camera], output: Output, classes: Sequence[str]) -> None:
        self.output, self.folder, self.classes = output, output.folder, classes
        self.entries: list[dict[str, Any]] = []
        self._names = picture_names(sources, output.folder)
        self._stems = picture_names(sources)
        self._videos: dict[Path | Camera, VideoWriter] = {}
        self._sizes: list[tuple[int, int]] = []  # (width, height) of each image
        self._labels: list[list[int]] = []
        self._crops = 0
        make_folder(output.folder)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for video in self._videos.values() if kind else ():
            video.discard()

    def add(self, item: Item, detections: Any) -> str:
        """Writes the output of one image, from boxes, scores and labels as tensors or arrays; returns a line on it."""
        if self.output.agnostic_nms == "always":
            rows = nms(np.asarray(detections["boxes"].tolist()).reshape(-1, 4), AGNOSTIC_IOU).tolist()
            detections = {name: values[rows] for name, values in detections.items()}
        boxes, scores, labels = (detections[name].tolist() for name in ("boxes", "scores", "labels"))
        objects = [
            {"box": [round(side, 2) for side in box], "score": float(f"{score:.7g}"), "class": self.classes[label]}
            for box, score, label in zip(boxes, scores, labels, strict=True)
        ]
        entry: dict[str, Any] = {"image": str(item.source)}
        if item.frame is not None:
            entry |= {"frame": item.frame.number, "seconds": round(item.frame.number / item.frame.rate, 3)}
        if self.output.pictures:
            entry["picture"] = self._names[item.source]
            self._draw(item, detections)
        self.entries.append(entry | {"objects": objects})
        width, height = to_pil(item.image).size if self.output.format != "json" else (0, 0)
        self._sizes.append((width, height))
        self._labels.append(labels)
        if self.output.format == "yolo":
            self._write_labels(item, boxes, labels, width, height)
        if self.output.crop:
            self._write_crops(item, boxes, labels)
        name = self._names[item.source]
        elsewhere = self.output.pictures and isinstance(item.source, Path) and Path(name).stem != item.source.stem
        drawn = f", drawn in {self.folder / name}" if elsewhere else ""
        return f"{item.source}: {counted(len(objects), 'object')}{drawn}"

    def close(self, seconds: float) -> list[str]:
        """Writes the output of all images together and returns lines about it; ``seconds`` is the total duration."""
        for video in self._videos.values():
            video.close()
        write_text(self.folder / "predictions.json", json.dumps(self.entries, indent=1) + "\n")
        written = ["predictions.json"]
        if self.output.format == "coco":
            write_text(self.folder / "annotations.json", json.dumps(self._coco()) + "\n")
            written.append("annotations.json")
        if self.output.format == "yolo":
            write_text(self.folder / "classes.txt", "".join(f"{name}\n" for name in self.classes))
            written.append("labels/")
        if self.output.crop:
            written.append(counted(self._crops, "crop"))
        if self.output.pictures:
            pictures = len({entry["picture"] for entry in self.entries})
            written.insert(0, counted(pictures, "video" if len(self._videos) == pictures > 0 else "picture"))
        count, rate = len(self.entries), len(self.entries) / max(seconds, 1e-9)
        named = ", ".join(written[:-1]) + (" and " if len(written) > 1 else "") + written[-1]
        return [f"{named} in {self.folder}/", f"{counted(count, 'image')} in {seconds:.1f} s, {rate:.1f} images/s"]

    def _draw(self, item: Item, detections: Any) -> None:
        iou = None if self.output.agnostic_nms == "never" else AGNOSTIC_IOU
        path = self.folder / self._names[item.source]
        if item.frame is None:
            drawn = draw_detections(item.image, detections, self.classes, agnostic_iou=iou)
            # Low compression is several times as fast, and the files are slightly larger.
            write_picture(path, drawn, "PNG", compress_level=1)
            return
        drawn = draw_detections(item.image, detections, self.classes, min_size=1, agnostic_iou=iou)
        if item.source not in self._videos:
            for video in self._videos.values():  # no frames of earlier videos follow
                video.close()
            self._videos[item.source] = VideoWriter(path, item.frame.rate)
        self._videos[item.source].add(np.asarray(drawn))

    def _stem(self, item: Item) -> str:
        """The base name of the output files of an image."""
        frame = "" if item.frame is None else f"_{item.frame.number:06d}"
        return f"{Path(self._stems[item.source]).stem}{frame}"

    def _write_labels(self, item: Item, boxes: list[Any], labels: list[int], width: int, height: int) -> None:
        """Writes a YOLO label file without scores, so that it can be corrected and used for training."""
        make_folder(self.folder / "labels")
        lines = []
        for (left, top, right, bottom), label in zip(boxes, labels, strict=True):
            values = [(left + right) / 2 / width, (top + bottom) / 2 / height]
            values += [(right - left) / width, (bottom - top) / height]
            lines.append(f"{label} " + " ".join(f"{min(1.0, max(0.0, value)):.6f}" for value in values) + "\n")
        write_text(self.folder / "labels" / f"{self._stem(item)}.txt", "".join(lines))

    def _write_crops(self, item: Item, boxes: list[Any], labels: list[int]) -> None:
        picture = to_pil(item.image)
        for number, (box, label) in enumerate(zip(boxes, labels, strict=True), start=1):
            left, top, right, bottom = (round(side) for side in box)
            area = (max(0, left), max(0, top), min(picture.width, right), min(picture.height, bottom))
            if area[2] <= area[0] or area[3] <= area[1]:
                continue
            folder = self.folder / "crops" / _file_name(self.classes[label])
            make_folder(folder)
            write_picture(folder / f"{self._stem(item)}-{number}.png", picture.crop(area), "PNG", compress_level=1)
            self._crops += 1

    def _coco(self) -> dict[str, Any]:
        """All detections as COCO annotations with scores; image and category ids start at 1."""
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        rows = zip(self.entries, self._sizes, self._labels, strict=True)
        for number, (entry, (width, height), labels) in enumerate(rows, start=1):
            frame = {"frame": entry["frame"]} if "frame" in entry else {}
            images.append({"id": number, "file_name": entry["image"], "width": width, "height": height} | frame)
            for thing, label in zip(entry["objects"], labels, strict=True):
                left, top, right, bottom = thing["box"]
                sides = [round(right - left, 2), round(bottom - top, 2)]
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": number,
                        "category_id": label + 1,
                        "bbox": [left, top, *sides],
                        "area": round(sides[0] * sides[1], 2),
                        "iscrowd": 0,
                        "score": thing["score"],
                    }
                )
        categories = [{"id": number, "name": name} for number, name in enumerate(self.classes, start=1)]
        return {"images": images, "annotations": annotations, "categories": categories}


def picture_names(sources: Sequence[Path | Camera], out: Path | None = None) -> dict[Path | Camera, str]:
    """The output name of each image: its own name, with a number if names collide or an input in ``out`` would be
    overwritten."""
    names: dict[Path | Camera, str] = {}
    images = {_identity(source) for source in sources if isinstance(source, Path)} - {None}
    taken: set[str] = set()
    for source in sources:
        ending = ".mp4" if is_video(source) else ".png"
        name, number = f"{source.stem}{ending}", 2
        while name in taken or (out is not None and _identity(out / name) in images):
            name, number = f"{source.stem}-{number}{ending}", number + 1
        taken.add(name)
        names[source] = name
    return names


def _identity(path: Path) -> tuple[int, int] | None:
    """The identity of the file behind a path, independent of links and case; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _file_name(text: str) -> str:
    """A class name as a folder name, at most 240 bytes long in UTF-8: systems allow 255."""
    return re.sub(r"[^\w .-]", "_", text)[:60].strip(" .") or "_"
