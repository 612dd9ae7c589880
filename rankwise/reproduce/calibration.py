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
from rankwise.evaluation.reliability import check_reliability
from rankwise.evaluation.results import read_results, write_results
from rankwise.models import Detector
from rankwise.models.confidence import rescored
from rankwise.types import Detections

#: Images of the built-in dataset that a calibration is measured on, and their seed: no row was trained on them.
IMAGES, SEED = 2000, 1


def calibration_numbers(run: Path, builtin: bool, folder: Path, row: str) -> dict[str, float | None]:
    """Calibration errors of a run on images that its calibration was not fitted to.

    It is fitted to the detections that the run's evaluation wrote. Those of other images are kept beside them.

    Args:
        run: The run.
        builtin: Whether it was trained on the built-in dataset, whose images can be drawn with another seed.
        folder: Where a reliability diagram goes.
        row: What the table calls the run.
    """
    fit_on, measure_on = _images(run, builtin)
    classes, category_ids = fit_on.classes, fit_on.category_ids
    known = read_results(run / "detections.json", category_ids)
    if builtin:
        other = run / "detections_other.json"
        if not other.is_file():
            detector = Detector.load(run)
            seen = detect(detector, measure_on.with_transform(EvalTransform(detector.settings.input)), 32)
            write_results(other, seen.detections, category_ids)
        found = [known, read_results(other, category_ids)]
    else:
        found = [
            {record.image_id: known[record.image_id] for record in dataset.records if record.image_id in known}
            for dataset in (fit_on, measure_on)
        ]
    fitted, raw = (
        evaluate(dataset.ground_truth(), detections, category_ids, classes)
        for dataset, detections in zip((fit_on, measure_on), found, strict=True)
    )
    calibration = Calibration.fit(**judged(fitted.matches, len(classes)))
    check = check_reliability(raw.matches, calibration, len(classes), fitted_here=False)
    numbers: dict[str, float | None] = {
        "ECE raw": check.before.ece,
        "ECE": check.after.ece,
        "LaECE raw": check.before.laece,
        "LaECE": check.after.laece,
    }
    for column, kind in (("AP change", torch.float64), ("AP change, float32", torch.float32)):
        numbers[column] = _ap_change(raw, measure_on, found[1], calibration, kind)
    figures.save_figure(figures.reliability_diagram(check), folder / f"calibration_reliability_{row}.png")
    return numbers


def _ap_change(
    raw: Evaluation,
    dataset: DetectionDataset,
    detections: dict[int, Detections],
    calibration: Calibration,
    kind: torch.dtype,
) -> float | None:
    """The largest change of a class's AP by calibrated scores of a type."""

    def as_scores(scores: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(scores).to(kind)

    scored = {image: rescored(one, calibration, as_scores) for image, one in detections.items()}
    mapped = evaluate(dataset.ground_truth(), scored, dataset.category_ids, dataset.classes)
    pairs = zip(raw.per_class.values(), mapped.per_class.values(), strict=True)
    return max((abs(now - then) for then, now in pairs if then is not None and now is not None), default=None)


def _images(run: Path, builtin: bool) -> tuple[DetectionDataset, DetectionDataset]:
    """What a calibration is fitted to, and what it is measured on."""
    settings, dataset = open_run(run)
    if builtin:
        return dataset, ShapesDataset("val", size=settings.shapes.size, images=IMAGES, seed=SEED)
    return dataset.subset(list(range(0, len(dataset), 2))), dataset.subset(list(range(1, len(dataset), 2)))
