"""Calibration errors on images that the calibration was not fitted to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwise.config.datasets import open_run
from rankwise.data import DetectionDataset, EvalTransform, ShapesDataset
from rankwise.evaluation import figures
from rankwise.evaluation.calibration import Calibration, calibration_data
from rankwise.evaluation.coco import Evaluation
from rankwise.evaluation.inference import detect
from rankwise.evaluation.reliability import compare, matched_iou
from rankwise.evaluation.results import evaluate_on, read_results, write_results
from rankwise.models import Detector
from rankwise.models.confidence import rescored
from rankwise.types import Detections

#: Number and seed of the images of the built-in dataset for measuring calibration errors. No row was trained on them.
IMAGES, SEED = 2000, 1

#: The dataset for the fit, the dataset for the measurement, and the detections of both.
Split = tuple[DetectionDataset, DetectionDataset, dict[int, Detections], dict[int, Detections]]


def calibration_numbers(run: Path, builtin: bool, folder: Path, row: str) -> dict[str, float | None]:
    """Calibration errors of a run on images that the calibration was not fitted to.

    On the built-in dataset, the calibration is fitted to the validation images and measured on images with another
    seed. On other datasets, each half of the validation images is measured with a calibration fitted to the other half.

    Args:
        run: The run folder.
        builtin: Whether the run was trained on the built-in dataset.
        folder: Output folder of the reliability diagram.
        row: The name of the row.
    """
    parts, changes = [], {"AP change": torch.float64, "AP change, float32": torch.float32}
    numbers: dict[str, float | None] = dict.fromkeys(changes, 0.0)
    for fit_on, measure_on, known, found in _splits(run, builtin):
        fitted, raw = evaluate_on(fit_on, known), evaluate_on(measure_on, found)
        calibration = Calibration.fit(**calibration_data(fitted.matches, len(fit_on.classes)))
        columns = calibration_data(raw.matches, len(fit_on.classes))
        scores = calibration(columns["scores"], columns["labels"])
        iou = matched_iou(raw.matches)[~raw.matches.ignored]
        parts.append((columns["scores"], scores, columns["correct"], iou))
        for column, precision in changes.items():
            change = _ap_change(raw, measure_on, found, calibration, precision)
            numbers[column] = max(numbers[column] or 0.0, change)
    raw_scores, scores, correct, iou = (np.concatenate(column) for column in zip(*parts, strict=True))
    check = compare(raw_scores, scores, correct, iou, held_out=True)
    numbers |= {"ECE raw": check.before.ece, "ECE": check.after.ece}
    numbers |= {"LaECE raw": check.before.laece, "LaECE": check.after.laece}
    figures.save_figure(figures.reliability_diagram(check), folder / f"calibration_reliability_{row}.png")
    return numbers


def _ap_change(
    raw: Evaluation,
    dataset: DetectionDataset,
    detections: dict[int, Detections],
    calibration: Calibration,
    precision: torch.dtype,
) -> float:
    """The largest change in the AP of a class caused by calibrated scores of this precision."""

    def as_scores(scores: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(scores).to(precision)

    scored = {image: rescored(one, calibration, as_scores) for image, one in detections.items()}
    mapped = evaluate_on(dataset, scored)
    pairs = zip(raw.per_class.values(), mapped.per_class.values(), strict=True)
    return max((abs(now - then) for then, now in pairs if then is not None and now is not None), default=0.0)


def _splits(run: Path, builtin: bool) -> list[Split]:
    """The datasets to fit to and to measure on, with their detections; those of new images are kept in the run."""
    settings, dataset = open_run(run)
    known = read_results(run / "detections.json", dataset.category_ids)
    if not builtin:
        halves = [dataset.subset(list(range(first, len(dataset), 2))) for first in (0, 1)]
        found = [{i: known[i] for record in half.records if (i := record.image_id) in known} for half in halves]
        return [(halves[0], halves[1], found[0], found[1]), (halves[1], halves[0], found[1], found[0])]
    others = ShapesDataset("val", size=settings.shapes.size, images=IMAGES, seed=SEED)
    file = run / "detections_other.json"
    if not file.is_file():
        detector = Detector.load(run)
        seen = detect(detector, others.with_transform(EvalTransform(detector.settings.input)), 32)
        write_results(file, seen.detections, dataset.category_ids)
    return [(dataset, others, known, read_results(file, dataset.category_ids))]
