"""How well scores are calibrated on images that the calibration has not seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwise.config.datasets import open_run
from rankwise.data import DetectionDataset, EvalTransform, ShapesDataset
from rankwise.evaluation import figures
from rankwise.evaluation.calibration import Calibration, judged
from rankwise.evaluation.coco import Evaluation, evaluate
from rankwise.evaluation.inference import detect
from rankwise.evaluation.reliability import compare, matched_iou
from rankwise.evaluation.results import read_results, write_results
from rankwise.models import Detector
from rankwise.models.confidence import rescored
from rankwise.types import Detections

#: Images of the built-in dataset that a calibration is measured on, and their seed: no row was trained on them.
IMAGES, SEED = 2000, 1

#: Images to fit to, images to measure on, and the detections of both.
Pair = tuple[DetectionDataset, DetectionDataset, dict[int, Detections], dict[int, Detections]]


def calibration_numbers(run: Path, builtin: bool, folder: Path, row: str) -> dict[str, float | None]:
    """Calibration errors of a run on images that its calibration was not fitted to.

    It is fitted to the detections that the run's evaluation wrote. Those of other images are kept beside them.

    Args:
        run: The run.
        builtin: Whether it was trained on the built-in dataset, whose images can be drawn with another seed.
        folder: Where a reliability diagram goes.
        row: What the table calls the run.
    """
    parts, changes = [], {"AP change": torch.float64, "AP change, float32": torch.float32}
    numbers: dict[str, float | None] = dict.fromkeys(changes, 0.0)
    for fit_on, measure_on, known, found in _pairs(run, builtin):
        classes, category_ids = fit_on.classes, fit_on.category_ids
        fitted, raw = (
            evaluate(dataset.ground_truth(), detections, category_ids, classes)
            for dataset, detections in ((fit_on, known), (measure_on, found))
        )
        calibration = Calibration.fit(**judged(fitted.matches, len(classes)))
        columns = judged(raw.matches, len(classes))
        scores = calibration(columns["scores"], columns["labels"])
        iou = matched_iou(raw.matches)[~raw.matches.ignored]
        parts.append((columns["scores"], scores, columns["correct"], iou))
        for column, kind in changes.items():
            change = _ap_change(raw, measure_on, found, calibration, kind)
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
    kind: torch.dtype,
) -> float:
    """The largest change of a class's AP by calibrated scores of a type."""

    def as_scores(scores: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(scores).to(kind)

    scored = {image: rescored(one, calibration, as_scores) for image, one in detections.items()}
    mapped = evaluate(dataset.ground_truth(), scored, dataset.category_ids, dataset.classes)
    pairs = zip(raw.per_class.values(), mapped.per_class.values(), strict=True)
    return max((abs(now - then) for then, now in pairs if then is not None and now is not None), default=0.0)


def _pairs(run: Path, builtin: bool) -> list[Pair]:
    """What a calibration is fitted to and what it is measured on, and the detections of both."""
    settings, dataset = open_run(run)
    known = read_results(run / "detections.json", dataset.category_ids)
    if not builtin:
        halves = [dataset.subset(list(range(first, len(dataset), 2))) for first in (0, 1)]
        found = [{i: known[i] for record in half.records if (i := record.image_id) in known} for half in halves]
        return [(halves[0], halves[1], found[0], found[1]), (halves[1], halves[0], found[1], found[0])]
    other = ShapesDataset("val", size=settings.shapes.size, images=IMAGES, seed=SEED)
    kept = run / "detections_other.json"
    if not kept.is_file():
        detector = Detector.load(run)
        seen = detect(detector, other.with_transform(EvalTransform(detector.settings.input)), 32)
        write_results(kept, seen.detections, dataset.category_ids)
    return [(dataset, other, known, read_results(kept, dataset.category_ids))]
