"""Ground truth and detections of many images as columns, one row per object or detection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # exported detectors return arrays and run without torch
    from rankwise.types import Detections


@dataclass(frozen=True)
class ObjectTable:
    """The annotated objects of a dataset, sorted by image id, then in the order of the annotations.

    Attributes:
        image_ids: The image id of each object, int64 [G].
        boxes: xyxy, float64 [G, 4].
        xywh: The annotated boxes: corner and size, which cannot be recomputed exactly from ``boxes``, [G, 4].
        labels: Contiguous class labels, int64 [G].
        crowd: Which boxes are crowd regions, bool [G]: a detection there is neither correct nor wrong.
        area: The annotated area, possibly that of a mask, for COCO's area ranges, float64 [G].
        annotation_ids: The annotation id (or the index from 1 if there is none), int64 [G].
    """

    image_ids: NDArray[np.int64]
    boxes: NDArray[np.float64]
    xywh: NDArray[np.float64]
    labels: NDArray[np.int64]
    crowd: NDArray[np.bool_]
    area: NDArray[np.float64]
    annotation_ids: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def per_class(self, classes: int) -> NDArray[np.int64]:
        """Number of objects of each class, without crowd regions, [C]."""
        return np.bincount(self.labels[~self.crowd], minlength=classes)


@dataclass(frozen=True)
class DetectionTable:
    """The detections of many images, sorted by image id, then by descending score.

    Attributes:
        image_ids: The image id of each detection, int64 [D].
        boxes: xyxy, float64 [D, 4]; boxes with negative sides have been set to zero size.
        scores: float64 [D].
        labels: Contiguous class labels, int64 [D].
    """

    image_ids: NDArray[np.int64]
    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, chosen: NDArray[np.int64]) -> DetectionTable:
        """A table of some of the rows.

        Args:
            chosen: Their indices, in the new order.
        """
        return DetectionTable(self.image_ids[chosen], self.boxes[chosen], self.scores[chosen], self.labels[chosen])


def sorted_image_ids(ground_truth: Mapping[str, Any]) -> NDArray[np.int64]:
    """The ids of all images of a COCO-style dict, sorted."""
    return np.unique(np.asarray([image["id"] for image in ground_truth["images"]], dtype=np.int64))


def object_table(ground_truth: Mapping[str, Any], category_ids: Sequence[int]) -> ObjectTable:
    """Columns of the annotations of a COCO-style dict.

    Annotations of categories that are not in ``category_ids``, or of unknown images, are ignored, as in COCO's own
    evaluation.

    Args:
        ground_truth: ``images`` and ``annotations`` as in a COCO file.
        category_ids: The category id of each label.
    """
    label_of = {int(category): label for label, category in enumerate(category_ids)}
    known = set(sorted_image_ids(ground_truth).tolist())
    rows = [
        (row["image_id"], label_of[row["category_id"]], bool(row.get("iscrowd", 0)), row.get("id", number), row)
        for number, row in enumerate(ground_truth.get("annotations", ()), start=1)
        if row["category_id"] in label_of and row["image_id"] in known
    ]
    rows.sort(key=lambda row: row[0])
    xywh = np.asarray([row["bbox"] for *_, row in rows], dtype=np.float64).reshape(-1, 4)
    area = [row.get("area", row["bbox"][2] * row["bbox"][3]) for *_, row in rows]
    return ObjectTable(
        image_ids=np.asarray([row[0] for row in rows], dtype=np.int64),
        boxes=np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1),
        xywh=xywh,
        labels=np.asarray([row[1] for row in rows], dtype=np.int64),
        crowd=np.asarray([row[2] for row in rows], dtype=np.bool_),
        area=np.asarray(area, dtype=np.float64),
        annotation_ids=np.asarray([row[3] for row in rows], dtype=np.int64),
    )


def detection_table(detections: Mapping[int, Detections], num_classes: int | None = None) -> DetectionTable:
    """Columns of the detections of many images, independent of the order of the images.

    Args:
        detections: Detections by image id, as tensors or arrays.
        num_classes: The number of classes, if known.

    Raises:
        ValueError: If scores or boxes are not finite, lengths differ, or labels are out of range; it names the image.
    """
    image_ids = sorted(detections)
    for image_id in image_ids:
        shapes = [list(detections[image_id][key].shape) for key in ("boxes", "scores", "labels")]
        n = shapes[0][0] if shapes[0] else 0
        if shapes != [[n, 4], [n], [n]]:
            raise ValueError(
                f"image {image_id}: detections need boxes [N, 4], scores [N] and labels [N], "
                f"but have {shapes[0]}, {shapes[1]} and {shapes[2]}"
            )
    lengths = [len(detections[image_id]["scores"]) for image_id in image_ids]
    rows = np.repeat(np.asarray(image_ids, dtype=np.int64), lengths)
    # Concatenated before they leave the device: three copies in total, not three per image.
    boxes = _joined(detections, image_ids, "boxes").reshape(-1, 4)
    scores = _joined(detections, image_ids, "scores")
    labels = _joined(detections, image_ids, "labels").astype(np.int64)
    _refuse(~np.isfinite(scores), rows, "a score that is not finite; did the training diverge?")
    _refuse(~np.isfinite(boxes).all(axis=1), rows, "a box with a coordinate that is not finite")
    _refuse(labels < 0, rows, "a negative label")
    if num_classes is not None:
        _refuse(labels >= num_classes, rows, f"a label above {num_classes - 1}, the last of {num_classes} classes")
    boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2])
    order = np.lexsort((-scores, rows))  # stable: equal scores keep the order of the detector
    return DetectionTable(rows, boxes, scores, labels).rows(order)


def _joined(detections: Mapping[int, Detections], image_ids: Sequence[int], key: str) -> NDArray[np.float64]:
    columns: list[Any] = [detections[image_id][key] for image_id in image_ids]
    if not columns:
        return np.zeros(0)
    if isinstance(columns[0], np.ndarray):
        return np.concatenate(columns).astype(np.float64)
    import torch

    return torch.cat(columns).detach().cpu().to(torch.float64).numpy()


def _refuse(bad: Any, image_ids: NDArray[np.int64], what: str) -> None:
    if bad.any():
        raise ValueError(f"image {image_ids[bad][0]}: a detection has {what} ({bad.sum()} in total)")
