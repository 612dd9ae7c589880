"""A contact sheet of validation images with detections."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from rankwise.data import DetectionDataset
from rankwise.evaluation.coco import Evaluation
from rankwise.evaluation.drawing import AGNOSTIC_IOU, Seen, contact_sheet
from rankwise.files.writing import write_picture
from rankwise.models.confidence import rescored
from rankwise.types import Detections


def draw_evaluation(
    out: Path, result: Evaluation, dataset: DetectionDataset, found: Mapping[int, Detections], images: int
) -> Path:
    """Draws ``detections.jpg``, a contact sheet of images spread over the dataset; returns the file.

    ``found`` are the detections by image id, with raw scores.
    """
    items = []
    for index in np.linspace(0, len(dataset) - 1, min(images, len(dataset))).round().astype(int).tolist():
        image, record = dataset.load(index)
        seen = found[record.image_id]
        if result.calibration is not None:
            seen = rescored(seen, result.calibration, torch.from_numpy)
        items.append(Seen(image, seen, record.target(), record.name))
    thresholds = result.thresholds.by_label(dataset.classes)
    sheet = contact_sheet(items, dataset.classes, thresholds, agnostic_iou=AGNOSTIC_IOU)
    path = out / "detections.jpg"
    write_picture(path, sheet, "JPEG", quality=90)
    return path
