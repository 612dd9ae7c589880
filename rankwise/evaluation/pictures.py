"""The figures of an evaluation, including a contact sheet of validation images with detections."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from rankwise.data import DetectionDataset
from rankwise.evaluation import figures
from rankwise.evaluation.coco import Evaluation
from rankwise.evaluation.drawing import AGNOSTIC_IOU, Seen, contact_sheet
from rankwise.files.writing import write_whole
from rankwise.models.confidence import rescored
from rankwise.types import Detections


def draw_evaluation(
    out: Path,
    metrics: Path,
    result: Evaluation,
    dataset: DetectionDataset,
    found: Mapping[int, Detections],
    images: int,
) -> list[Path]:
    """Draws a contact sheet and the figures of an evaluation; returns the files.

    Args:
        out: Output folder.
        metrics: The ``metrics.jsonl`` of the run, for the training curves, if there is one.
        result: The evaluation.
        dataset: The images.
        found: The detections by image id, with raw scores.
        images: Number of images on the contact sheet, spread over the dataset.
    """
    drawn = {
        "precision_recall.png": figures.precision_recall(result.curves, dataset.classes),
        "score_against_iou.png": figures.score_against_iou(result.raw_matches),
        "thresholds.png": figures.threshold_sweep(result),
        "box_sizes.png": figures.box_sizes(result),
    }
    if result.reliability is not None:
        drawn["reliability.png"] = figures.reliability_diagram(result.reliability)
    if metrics.is_file():
        drawn["training.png"] = figures.training_curves(figures.read_metrics(metrics))
    for name, figure in drawn.items():
        figures.save_figure(figure, out / name)

    items = []
    for index in np.linspace(0, len(dataset) - 1, min(images, len(dataset))).round().astype(int).tolist():
        image, record = dataset.load(index)
        seen = found[record.image_id]
        if result.calibration is not None:
            seen = rescored(seen, result.calibration, torch.from_numpy)
        items.append(Seen(image, seen, record.target(), record.name))
    thresholds = result.thresholds.by_label(dataset.classes)
    sheet = contact_sheet(items, dataset.classes, thresholds, agnostic_iou=AGNOSTIC_IOU)
    write_whole(out / "detections.jpg", lambda part: sheet.save(part, "JPEG", quality=90))
    return [out / "detections.jpg", *(out / name for name in drawn)]
