"""COCO metrics of detections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankwise.evaluation.calibration import Calibration, calibration_data
from rankwise.evaluation.correlation import Correlation, correlate, localized
from rankwise.evaluation.matching import Matches, match
from rankwise.evaluation.reliability import ReliabilityCheck, check_reliability
from rankwise.evaluation.tables import DetectionTable, ObjectTable, detection_table, object_table, sorted_image_ids
from rankwise.evaluation.thresholds import Thresholds, best_thresholds, with_intervals
from rankwise.models.confidence import Confidence
from rankwise.models.score_map import ScoreMap
from rankwise.types import Detections

if TYPE_CHECKING:
    from hotcoco import COCOeval
    from rich.console import Console
    from rich.table import Table

ALL, SMALL, MEDIUM, LARGE = range(4)  # COCO's area ranges, in its order


@dataclass(frozen=True)
class Curves:
    """Precision-recall curves, interpolated as in COCO, with at most 100 detections per class and image.

    Attributes:
        ious: The IoU thresholds, 0.5 to 0.95, [T].
        recall: 0 to 1 in steps of 0.01, [R].
        precision: [T, R, C]; NaN for classes without objects.
    """

    ious: NDArray[np.float64]
    recall: NDArray[np.float64]
    precision: NDArray[np.float64]

    def at(self, iou: float) -> NDArray[np.float64]:
        """Precision at one of the IoUs, [R, C]."""
        return self.precision[int(np.abs(self.ious - iou).argmin())]


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a detector on a dataset. AP is in percent, and None if there are no such objects.

    Attributes:
        ap: Mean over the IoUs 0.5 to 0.95 and the classes.
        ap50: At IoU 0.5.
        ap75: At IoU 0.75.
        aps: Of objects below 32² pixels.
        apm: Of objects between 32² and 96² pixels.
        apl: Of objects above 96² pixels.
        per_class: AP of each class.
        correlation: Correlation of score and IoU, over detections with an IoU above 0.5.
        thresholds: Score thresholds, for calibrated scores if there is a calibration.
        images: Number of images.
        objects: Number of objects, without crowd regions.
        detections: Number of detections.
        curves: Precision against recall, for figures.
        matches: Detections matched with objects at IoU 0.5, for figures and reports; calibrated scores if there is a
            calibration.
        raw_matches: The same with raw scores.
        calibration: Map from raw scores to the probability of being correct; None if scores are raw.
        reliability: Reliability of the calibrated scores; None if scores are raw.
        given_thresholds: Whether the thresholds are those of the run, chosen on other images.
    """

    ap: float | None
    ap50: float | None
    ap75: float | None
    aps: float | None
    apm: float | None
    apl: float | None
    per_class: dict[str, float | None]
    correlation: Correlation
    thresholds: Thresholds
    images: int
    objects: int
    detections: int
    curves: Curves = field(repr=False, compare=False)
    matches: Matches = field(repr=False, compare=False)
    raw_matches: Matches = field(repr=False, compare=False)
    calibration: ScoreMap | None = field(default=None, repr=False)
    reliability: ReliabilityCheck | None = field(default=None, repr=False)
    given_thresholds: bool = False

    def summary(self) -> dict[str, float | None]:
        """The main metrics by name, for logging."""
        names = ("ap", "ap50", "ap75", "aps", "apm", "apl")
        correlation = self.correlation
        coefficients = {"pcc": correlation.pcc, "scc": correlation.scc, "kcc": correlation.kcc}
        return {name: getattr(self, name) for name in names} | coefficients

    def to_dict(self) -> dict[str, Any]:
        """The metrics as plain values, for ``eval.json``."""
        plain = ("ap", "ap50", "ap75", "aps", "apm", "apl", "per_class", "images", "objects", "detections")
        parts: dict[str, Any] = {"correlation": self.correlation.to_dict(), "thresholds": self.thresholds.to_dict()}
        if self.calibration is not None and self.reliability is not None:
            parts |= {"calibration": self.calibration.to_dict(), "reliability": self.reliability.to_dict()}
        if self.given_thresholds:
            parts["given_thresholds"] = True
        return {name: getattr(self, name) for name in plain} | parts

    def confidence(self) -> Confidence:
        """Calibration and thresholds, to be stored with the weights."""
        rows = [
            (percent / 100, known.score, *(known.interval or (known.score, known.score)))
            for percent, known in sorted(self.thresholds.by_precision.items())
        ]
        return Confidence(
            self.calibration, {name: best.score for name, best in self.thresholds.per_class.items()}, tuple(rows)
        )

    def table(self) -> Table:
        """The metrics as a table for the terminal."""
        from rankwise.evaluation.tabulate import evaluation_table

        return evaluation_table(self)

    def print_table(self, console: Console | None = None) -> None:
        """Prints the metrics as a table.

        Args:
            console: Where to print; the standard output by default.
        """
        from rich.console import Console

        (console or Console()).print(self.table())


def evaluate(
    ground_truth: Mapping[str, Any],
    detections: Mapping[int, Detections],
    category_ids: Sequence[int],
    classes: Sequence[str],
) -> Evaluation:
    """Evaluates detections against ground truth: COCO metrics, correlation of score and IoU, best thresholds.

    The result does not depend on the order of the images in either argument.

    Args:
        ground_truth: A COCO-style dict with ``images``, ``annotations`` and ``categories``. Each image listed counts,
            with or without objects or detections.
        detections: Detections by image id; boxes are in pixels of the original image, labels start at 0.
        category_ids: The category id of each label.
        classes: The name of each label.

    Raises:
        ValueError: If detections are not finite, have labels out of range, or belong to unknown images.
    """
    if len(category_ids) != len(classes):
        raise ValueError(f"{len(category_ids)} category ids for {len(classes)} classes: give one per class")
    image_ids = sorted_image_ids(ground_truth)
    unknown = sorted(set(detections) - set(image_ids.tolist()))
    if unknown:
        raise ValueError(
            f"detections for image {unknown[0]}, which the ground truth does not list ({len(unknown)} such images)"
        )
    objects = object_table(ground_truth, category_ids)
    table = detection_table(detections, len(classes))
    curves, precision = _precision(image_ids, objects, table, len(classes))
    matches = match(table, objects, 0.5)
    names = unique_names(classes, category_ids)
    return Evaluation(
        ap=_mean(curves.precision),
        ap50=_mean(curves.at(0.5)),
        ap75=_mean(curves.at(0.75)),
        aps=_mean(precision[..., SMALL]),
        apm=_mean(precision[..., MEDIUM]),
        apl=_mean(precision[..., LARGE]),
        per_class={name: _mean(curves.precision[:, :, label]) for label, name in enumerate(names)},
        correlation=correlate(*localized(matches, above=0.5)),
        thresholds=best_thresholds(matches, names),
        images=len(image_ids),
        objects=int((~objects.crowd).sum()),
        detections=len(table),
        curves=curves,
        matches=matches,
        raw_matches=matches,
    )


def calibrated(
    evaluation: Evaluation, image_ids: NDArray[np.int64] | Sequence[int], score_map: ScoreMap | None = None
) -> Evaluation:
    """The same evaluation with calibrated scores and intervals of its thresholds; AP and correlation do not change.

    AP is that of the raw scores, because the map keeps the order within each class. The correlation is also that of raw
    scores, as in the paper.

    Args:
        evaluation: The evaluation of raw scores.
        image_ids: All evaluated images.
        score_map: The calibration; fitted to these detections by default.
    """
    raw, names = evaluation.raw_matches, list(evaluation.per_class)
    used: ScoreMap = Calibration.fit(**calibration_data(raw, len(names))) if score_map is None else score_map
    matches = raw.rescored(used(raw.detections.scores, raw.detections.labels))
    thresholds = with_intervals(best_thresholds(matches, names), matches, np.unique(np.asarray(image_ids)))
    check = check_reliability(raw, used, len(names), fitted_here=score_map is None)
    return replace(evaluation, thresholds=thresholds, matches=matches, calibration=used, reliability=check)


def unique_names(classes: Sequence[str], category_ids: Sequence[int]) -> list[str]:
    """Unique class names: repeated names get their category id."""
    names = list(classes)
    return [
        name if names.count(name) == 1 else f"{name} ({key})" for name, key in zip(names, category_ids, strict=True)
    ]


def coco_eval(
    image_ids: NDArray[np.int64], objects: ObjectTable, detections: DetectionTable, num_classes: int
) -> COCOeval:
    """hotcoco's evaluation of detections: matched, but not yet accumulated; ``image_ids`` must ascend."""
    from hotcoco import COCO, COCOeval  # only imported for evaluations

    # Renumbered from 1: annotation ids may be 0 or repeat, image ids may be negative or too large for a float.
    truth = COCO.from_arrays(
        images=[{"id": number} for number in range(1, len(image_ids) + 1)],
        categories=[{"id": label + 1, "name": str(label)} for label in range(num_classes)],
        image_ids=np.searchsorted(image_ids, objects.image_ids) + 1,
        category_ids=objects.labels + 1,
        boxes=objects.xywh,
        area=objects.area,
        iscrowd=objects.crowd,
    )
    images = np.searchsorted(image_ids, detections.image_ids) + 1
    xywh = np.concatenate([detections.boxes[:, :2], detections.boxes[:, 2:] - detections.boxes[:, :2]], axis=1)
    found = truth.load_res(np.column_stack([images, xywh, detections.scores, detections.labels + 1]))
    coco = COCOeval(truth, found, "bbox")
    coco.evaluate()
    return coco


def _precision(
    image_ids: NDArray[np.int64], objects: ObjectTable, detections: DetectionTable, num_classes: int
) -> tuple[Curves, NDArray[np.float64]]:
    """Precision by IoU, recall, class and area range, [T, R, C, 4], NaN where undefined, and the curves."""
    coco = coco_eval(image_ids, objects, detections, num_classes)
    coco.accumulate()
    assert coco.eval is not None  # for mypy: there after accumulate()
    precision = np.asarray(coco.eval["precision"])[..., -1]  # at most 100 detections
    precision = np.where(precision < 0, np.nan, precision)
    ious, recall = np.asarray(coco.params.iou_thrs), np.asarray(coco.params.rec_thrs)
    return Curves(ious, recall, precision[..., ALL]), precision


def _mean(precision: NDArray[np.float64]) -> float | None:
    defined = precision[~np.isnan(precision)]
    return 100 * float(defined.mean()) if len(defined) else None
