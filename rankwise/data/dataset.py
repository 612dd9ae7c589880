"""A detection dataset: annotation records, and images that are read on access."""

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

from rankwise.data.combine import Combine
from rankwise.errors import DataError
from rankwise.files.parsing import read_bytes
from rankwise.images.reading import MAX_PIXELS, read_image
from rankwise.images.settings import MEAN_COLOUR
from rankwise.types import Target

#: Maps an image, uint8 [3, H, W], and its target to the transformed pair.
Transform = Callable[[Tensor, Target], tuple[Tensor, Target]]

#: A crowd box that covers every anchor of any image, even those that extend beyond it.
_EVERYTHING = (-1e5, -1e5, 1e5, 1e5)


@dataclass(frozen=True)
class ImageRecord:
    """One image and its annotations, in pixels of the file.

    Attributes:
        image_id: The id of the image in results.
        name: The name of the image in messages: its path in the dataset.
        path: The image file, None if the image is generated.
        width: Width in pixels.
        height: Height in pixels.
        boxes: xyxy, float32 [N, 4].
        labels: Indices of the classes, int64 [N].
        iscrowd: Whether a box is a region to ignore, bool [N].
        area: Areas for COCO's object sizes, float64 [N].
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
        """The annotations as new tensors, for an image at its original size."""
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

    With ``skip_bad``, an unreadable image is replaced by a blank one that is entirely an ignore region. It does not
    affect training and keeps the batch size. ``fault`` in its target is the reason.

    Args:
        records: The annotations, one entry per image.
        classes: Names of the classes; label k is ``classes[k]``.
        category_ids: The number of each class in the files of the dataset; label k is ``category_ids[k]``.
        transform: Applied to each image and its target; None applies nothing.
        notes: Messages about the dataset, such as the number of skipped items.
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
                f"there are {len(classes)} classes and {len(category_ids)} category ids; give one id per class"
            )
        self.records = records
        self.classes = list(classes)
        self.category_ids = list(category_ids)
        self.transform = transform
        self.notes = list(notes)
        self.skip_bad = skip_bad
        self.max_pixels = max_pixels
        self.combine: Combine | None = None

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
        if self.combine is not None:
            image, target = self.combine(image, target, self._another)
        return self.transform(image, target) if self.transform else (image, target)

    def _another(self) -> tuple[Tensor, Target] | None:
        """A random image and its target; None if it is unreadable and ``skip_bad`` is set."""
        try:
            image, record = self.load(int(torch.randint(len(self), ())))
        except DataError:
            if not self.skip_bad:
                raise
            return None
        return image, record.target()

    def load(self, index: int) -> tuple[Tensor, ImageRecord]:
        """The image of the file, uint8 [3, H, W], and its record, without the transform."""
        record = self.records[index]
        assert record.path is not None, "records without a file need a dataset that generates its images"
        image = read_image(record.path, self.max_pixels)
        height, width = image.shape[-2:]
        if (height, width) != (record.height, record.width):
            raise DataError(wrong_size(record, width, height))
        return image, record

    def with_transform(self, transform: Transform | None, combine: Combine | None = None) -> DetectionDataset:
        """The same dataset with another transform; records are shared.

        Args:
            transform: Applied to each image and its target.
            combine: Mosaic and mixup, applied before the transform.
        """
        other = copy.copy(self)
        other.transform, other.combine = transform, combine
        return other

    def subset(self, indices: Sequence[int]) -> DetectionDataset:
        """A dataset of the images at these indices."""
        other = copy.copy(self)
        other.records = [self.records[index] for index in indices]
        return other

    def fingerprint(self) -> str:
        """A hash of all annotations, of image file sizes and of some file contents; equal if nothing has changed.

        For speed, at most 10,000 file sizes are checked and 256 files are read, evenly spaced.
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
        """All annotations in COCO format: images, annotations with xywh boxes, categories."""
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for record in self.records:
            size = {"width": record.width, "height": record.height}
            images.append({"id": record.image_id, "file_name": record.name, **size})
            boxes = record.boxes.astype(np.float64)
            boxes[:, 2:] -= boxes[:, :2]
            columns = (column.tolist() for column in (boxes, record.labels, record.iscrowd, record.area))
            for box, label, crowd, area in zip(*columns, strict=True):
                annotations.append(
                    {
                        "id": len(annotations) + 1,  # pycocotools takes 0 as "no match"
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
        """A blank image, entirely an ignore region, in place of the one at ``index``.

        Args:
            index: The image that it replaces.
            fault: Why the image is replaced; None if it is not faulty.
        """
        record = self.records[index]
        # Small, because the image may have been refused for its size; the transform resizes it.
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
    """The message about an image whose file does not have the annotated size."""
    hint = "correct the annotated size, or restore the annotated image"
    if (width, height) == (record.height, record.width):
        hint = "its EXIF orientation rotates it by 90 degrees: annotate the rotated image, or strip the orientation"
    return (
        f"{record.name}: the file has {width} × {height} pixels, the annotations say "
        f"{record.width} × {record.height}; {hint}"
    )
