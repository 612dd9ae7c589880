"""A dataset for detection: records of what is annotated, and images read when they are asked for."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from rankwise.errors import DataError
from rankwise.files.parsing import read_bytes
from rankwise.images.reading import MAX_PIXELS, read_image
from rankwise.images.settings import MEAN_COLOUR
from rankwise.types import Target

#: Takes an image, uint8 [3, H, W], and its target, and gives both changed alike.
Transform = Callable[[Tensor, Target], tuple[Tensor, Target]]

#: A crowd box that covers every anchor of any image, also those that stick out of it.
_EVERYTHING = (-1e5, -1e5, 1e5, 1e5)


@dataclass(frozen=True)
class ImageRecord:
    """One image and its annotations, in pixels of the file.

    Attributes:
        image_id: The number by which results speak of the image.
        name: How messages speak of the image: its path within the dataset.
        path: The image file, None if the image is drawn.
        width: Width in pixels.
        height: Height in pixels.
        boxes: xyxy, float32 [N, 4].
        labels: Index into the dataset's classes, int64 [N].
        iscrowd: Whether a box is a region to ignore, bool [N].
        area: What COCO's small, medium and large go by, float64 [N].
    """

    image_id: int
    name: str
    path: Path | None
    width: int
    height: int
    boxes: np.ndarray
    labels: np.ndarray
    iscrowd: np.ndarray
    area: np.ndarray

    def target(self) -> Target:
        """The annotations as tensors of their own, for an image at its original size."""
        size = (self.height, self.width)
        return {
            "boxes": torch.from_numpy(self.boxes.copy()),
            "labels": torch.from_numpy(self.labels.copy()),
            "iscrowd": torch.from_numpy(self.iscrowd.copy()),
            "image_id": self.image_id,
            "name": self.name,
            "size": size,
            "original_size": size,
        }


class DetectionDataset(Dataset[tuple[Tensor, Target]]):
    """Images with boxes: ``dataset[i]`` is an image, uint8 [3, H, W], and its target, after the transform.

    Under ``skip_bad`` an image that cannot be read comes as a blank one that is ignore region all over, so that it
    teaches nothing and every batch keeps its size; its target says under ``fault`` what was wrong.

    Args:
        records: What is annotated, one entry an image.
        classes: Names of the classes; label k is ``classes[k]``.
        category_ids: The number of each class in the dataset's own files; label k is ``category_ids[k]``.
        transform: Applied to each image and its target; none leaves both as they are in the file.
        notes: What a user should hear about the dataset, such as how many bad items were left out.
        skip_bad: Whether an unreadable image is skipped instead of being an error.
        max_pixels: Images with more pixels than this are refused.
    """

    def __init__(
        self,
        records: Sequence[ImageRecord],
        classes: Sequence[str],
        category_ids: Sequence[int],
        transform: Transform | None = None,
        notes: Sequence[str] = (),
        skip_bad: bool = False,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        if len(classes) != len(category_ids):
            raise ValueError(
                f"there are {len(classes)} classes and {len(category_ids)} category ids; give one id a class"
            )
        self.records = records
        self.classes = list(classes)
        self.category_ids = list(category_ids)
        self.transform = transform
        self.notes = list(notes)
        self.skip_bad = skip_bad
        self.max_pixels = max_pixels

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        try:
            image, record = self.load(index)
        except DataError as error:
            if not self.skip_bad:
                raise
            return self.blank(index, fault=str(error))
        target = record.target()
        return self.transform(image, target) if self.transform else (image, target)

    def load(self, index: int) -> tuple[Tensor, ImageRecord]:
        """The image as its file has it, uint8 [3, H, W], and its record; the transform is not applied."""
        record = self.records[index]
        assert record.path is not None, "records without a file belong to datasets that draw their images"
        image = read_image(record.path, self.max_pixels)
        height, width = image.shape[-2:]
        if (height, width) != (record.height, record.width):
            raise DataError(wrong_size(record, width, height))
        return image, record

    def with_transform(self, transform: Transform | None) -> DetectionDataset:
        """The same dataset, records shared, with another transform."""
        other = copy.copy(self)
        other.transform = transform
        return other

    def subset(self, indices: Sequence[int]) -> DetectionDataset:
        """The images at these indices as a dataset of their own."""
        other = copy.copy(self)
        other.records = [self.records[index] for index in indices]
        return other

    def fingerprint(self) -> str:
        """A hash of all annotations, of image files' sizes, and of the content of some: equal if nothing has changed.

        To be quick on a large dataset, no more than 10,000 files are asked for their size and 256 read, spread evenly.
        """
        digest = hashlib.sha256(repr(self.classes).encode("utf-8", "surrogatepass"))
        for record in self.records:
            digest.update(repr((record.name, record.width, record.height)).encode("utf-8", "surrogatepass"))
            for array in (record.boxes, record.labels, record.iscrowd):
                digest.update(np.ascontiguousarray(array).data)
        for record in self.records[:: max(1, len(self.records) // 10_000)]:
            digest.update(str(record.path and record.path.stat().st_size).encode())
        for record in self.records[:: max(1, len(self.records) // 256)]:
            if record.path is not None:
                digest.update(read_bytes(record.path, limit=2**32))
        return digest.hexdigest()

    def ground_truth(self) -> dict[str, Any]:
        """Everything annotated as COCO's JSON has it: images, annotations with xywh boxes, categories."""
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for record in self.records:
            images.append(
                {"id": record.image_id, "file_name": record.name, "width": record.width, "height": record.height}
            )
            boxes = record.boxes.astype(np.float64)
            boxes[:, 2:] -= boxes[:, :2]
            rows = zip(
                boxes.tolist(), record.labels.tolist(), record.iscrowd.tolist(), record.area.tolist(), strict=True
            )
            for box, label, crowd, area in rows:
                annotations.append(
                    {
                        "id": len(annotations) + 1,  # 0 would read as "no match" in pycocotools
                        "image_id": record.image_id,
                        "category_id": self.category_ids[label],
                        "bbox": box,
                        "area": area,
                        "iscrowd": int(crowd),
                    }
                )
        categories = [{"id": id_, "name": name} for id_, name in zip(self.category_ids, self.classes, strict=True)]
        return {"images": images, "annotations": annotations, "categories": categories}

    def blank(self, index: int, fault: str | None) -> tuple[Tensor, Target]:
        """A blank image, ignore region all over, in place of the one at ``index``.

        Args:
            index: Whose name and size it bears.
            fault: Why that one is not shown; None says that nothing is wrong with it.
        """
        record = self.records[index]
        # Small, since the image may have been refused for its size; the transform brings it to the detector's.
        scale = min(1.0, 64 / max(record.height, record.width))
        height, width = max(1, round(record.height * scale)), max(1, round(record.width * scale))
        image = torch.tensor(MEAN_COLOUR, dtype=torch.uint8)[:, None, None].repeat(1, height, width)
        target = record.target() | {
            "boxes": torch.zeros(0, 4),
            "labels": torch.zeros(0, dtype=torch.int64),
            "iscrowd": torch.zeros(0, dtype=torch.bool),
        }
        if self.transform:
            image, target = self.transform(image, target)
        return image, target | {
            "boxes": torch.tensor([_EVERYTHING]),
            "labels": torch.zeros(1, dtype=torch.int64),
            "iscrowd": torch.ones(1, dtype=torch.bool),
            "fault": fault,
        }


def wrong_size(record: ImageRecord, width: int, height: int) -> str:
    """What to say of an image whose file does not have the size that is annotated."""
    hint = "correct the annotated size, or put the image back that was annotated"
    if (width, height) == (record.height, record.width):
        hint = "its EXIF orientation turns it by 90 degrees: annotate it as a viewer shows it, or strip the orientation"
    return (
        f"{record.name}: the file has {width} × {height} pixels, the annotations say "
        f"{record.width} × {record.height}; {hint}"
    )
