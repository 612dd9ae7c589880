"""Detections as a COCO results file, the kind a test server takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rankwise.evaluation.tables import detection_table
from rankwise.types import Detections


def results_json(
    detections: Mapping[int, Detections], category_ids: Sequence[int], digits: int = 7
) -> list[dict[str, Any]]:
    """Detections as the entries of a COCO results file, by image, best first.

    Boxes are rounded to a hundredth of a pixel.

    Args:
        detections: Image id to detections, boxes in pixels of the original image, labels from 0.
        category_ids: The category id of each label, as the server knows it.
        digits: Significant digits of the scores: a float32 holds 7, a float64 17.
    """
    table = detection_table(detections, len(category_ids))
    boxes = table.boxes.copy()
    boxes[:, 2:] -= boxes[:, :2]
    columns = (table.image_ids.tolist(), table.labels.tolist(), boxes.round(2).tolist(), table.scores.tolist())
    return [
        {"image_id": image, "category_id": int(category_ids[label]), "bbox": box, "score": float(f"{score:.{digits}g}")}
        for image, label, box, score in zip(*columns, strict=True)
    ]


def write_results(
    path: Path | str, detections: Mapping[int, Detections], category_ids: Sequence[int], digits: int = 7
) -> None:
    """Write a COCO results file.

    Args:
        path: The file.
        detections: Image id to detections, boxes in pixels of the original image, labels from 0.
        category_ids: The category id of each label, as the server knows it.
        digits: Significant digits of the scores.
    """
    entries = (json.dumps(entry) for entry in results_json(detections, category_ids, digits))
    Path(path).write_text("[\n" + ",\n".join(entries) + "\n]\n", encoding="utf-8")


def read_results(path: Path | str, category_ids: Sequence[int]) -> dict[int, Detections]:
    """Detections out of a COCO results file, those of images without any being absent.

    Args:
        path: The file.
        category_ids: The category id of each label.

    Raises:
        ValueError: The file has a category that is none of ``category_ids``.
    """
    label_of = {int(category): label for label, category in enumerate(category_ids)}
    grouped: dict[int, list[dict[str, Any]]] = {}
    for number, entry in enumerate(json.loads(Path(path).read_text(encoding="utf-8"))):
        if entry["category_id"] not in label_of:
            raise ValueError(f"{path}: entry {number} has category {entry['category_id']}, which the dataset lacks")
        grouped.setdefault(int(entry["image_id"]), []).append(entry)
    found: dict[int, Detections] = {}
    for image_id, entries in grouped.items():
        entries.sort(key=lambda entry: -entry["score"])
        boxes = torch.tensor([entry["bbox"] for entry in entries], dtype=torch.float64)
        boxes[:, 2:] += boxes[:, :2]
        found[image_id] = {
            "boxes": boxes.float(),
            "scores": torch.tensor([entry["score"] for entry in entries], dtype=torch.float32),
            "labels": torch.tensor([label_of[entry["category_id"]] for entry in entries], dtype=torch.int64),
        }
    return found
