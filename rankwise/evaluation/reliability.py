"""Reliability of scores: precision by score bin, and the calibration error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwise.evaluation.calibration import calibration_data, cross_fitted
from rankwise.evaluation.matching import Matches
from rankwise.files.names import counted
from rankwise.models.score_map import ScoreMap
from rankwise.numpy_boxes import paired_iou

#: Number of score bins, and the minimum calibrated score: lower ones are hardly ever used.
BINS, ABOVE = 20, 0.05


@dataclass(frozen=True)
class Reliability:
    """Scores and precision in bins of equal width.

    Attributes:
        ece: Expected calibration error: the mean distance between score and precision of a bin, weighted by its
            detections. None without detections.
        laece: The same with the IoU of a match (0 for a wrong detection) as the target, over all classes together.
        count: Number of detections per bin.
        score: Mean score, 0 in an empty bin.
        precision: Fraction of correct detections.
        iou: Mean IoU with the matched object, 0 for a wrong detection.
    """

    ece: float | None
    laece: float | None
    count: list[int]
    score: list[float]
    precision: list[float]
    iou: list[float]


@dataclass(frozen=True)
class ReliabilityCheck:
    """The same detections with raw and with calibrated scores: those whose calibrated score is above 0.05.

    Attributes:
        before: With raw scores.
        after: With calibrated ones.
        cross_fitted: Whether the scores of each image come from a map fitted to other images. Otherwise the map was
            given, or there is only one image.
    """

    before: Reliability
    after: Reliability
    cross_fitted: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> ReliabilityCheck:
        """The inverse of :meth:`to_dict`."""
        return ReliabilityCheck(
            Reliability(**values["before"]), Reliability(**values["after"]), bool(values["cross_fitted"])
        )

    def describe(self) -> str:
        """A sentence with the errors."""
        if self.before.ece is None or self.after.ece is None:
            return "no detection has a calibrated score above 0.05, so the calibration error is unknown"
        how = "cross-validated" if self.cross_fitted else "with the stored calibration"
        count = counted(sum(self.after.count), "detection")
        return (
            f"calibration error {self.before.ece:.3f} with raw scores, {self.after.ece:.3f} with calibrated ones "
            f"(LaECE {self.before.laece:.3f} and {self.after.laece:.3f}; {count}, {how})"
        )


def reliability(scores: NDArray[np.float64], correct: NDArray[np.bool_], iou: NDArray[np.float64]) -> Reliability:
    """The reliability of scores from 0 to 1; the IoU of a detection with its matched object is used if it is correct,
    [N] each."""
    bin_of = np.minimum((scores * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(bin_of, minlength=BINS)
    columns = (scores, correct, np.where(correct, iou, 0))
    score, precision, quality = (np.bincount(bin_of, one, BINS) / np.maximum(count, 1) for one in columns)
    if not len(scores):
        return Reliability(None, None, [0] * BINS, *([0.0] * BINS for _ in range(3)))
    share = count / count.sum()
    ece, laece = (float(share @ np.abs(score - target)) for target in (precision, quality))
    return Reliability(ece, laece, count.tolist(), score.tolist(), precision.tolist(), quality.tolist())


def check_reliability(matches: Matches, score_map: ScoreMap, classes: int, fitted_here: bool) -> ReliabilityCheck:
    """Compares raw and calibrated scores.

    Args:
        matches: Detections with raw scores, matched at IoU 0.5.
        score_map: The map.
        classes: The number of classes.
        fitted_here: Whether the map was fitted to these detections; then cross-fitted maps are used.
    """
    columns = calibration_data(matches, classes)
    raw, labels, correct = columns["scores"], columns["labels"], columns["correct"]
    other = cross_fitted(score_map, **columns) if fitted_here else None
    scores = score_map(raw, labels) if other is None else other
    return compare(raw, scores, correct, matched_iou(matches)[~matches.ignored], other is not None)


def compare(
    raw: NDArray[np.float64],
    scores: NDArray[np.float64],
    correct: NDArray[np.bool_],
    iou: NDArray[np.float64],
    held_out: bool,
) -> ReliabilityCheck:
    """Compares raw and calibrated scores of the same detections; see :func:`reliability`.

    ``held_out`` says whether the scores of each image come from a map fitted to other images.
    """
    counted = scores > ABOVE
    before, after = (reliability(values[counted], correct[counted], iou[counted]) for values in (raw, scores))
    return ReliabilityCheck(before, after, held_out)


def matched_iou(matches: Matches) -> NDArray[np.float64]:
    """The IoU of each detection with its matched object, 0 if there is none, [D]."""
    iou = np.zeros(len(matches.detections))
    found = matches.correct
    boxes, others = matches.detections.boxes[found], matches.objects.boxes[matches.matched[found]]
    iou[found] = paired_iou(boxes, others)
    return iou
