"""Do scores keep what they promise? Reliability by bins of the score, and the calibration error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwise.evaluation.calibration import Calibration, cross_fitted, judged
from rankwise.evaluation.matching import Matches, paired_iou
from rankwise.models.score_map import ScoreMap

#: Bins of the score, and the least calibrated score that counts: below it are the boxes that nobody looks at.
BINS, ABOVE = 20, 0.05


@dataclass(frozen=True)
class Reliability:
    """Scores against what became of the detections, in bins of equal width.

    Attributes:
        ece: Expected calibration error: the mean distance between a bin's score and its precision, weighted by the
            bin's detections. None without detections.
        laece: The same with the IoU of a match (0 for a wrong detection) as the target, over all classes together.
        count: Detections in each bin.
        score: Their mean score, 0 in an empty bin.
        precision: Which part of them is right.
        iou: Their mean IoU with the object they found, 0 for a wrong one.
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
        cross_fitted: Whether the scores of each image come from a map that was fitted to other images. Otherwise the
            map was there before, or there is one image only.
    """

    before: Reliability
    after: Reliability
    cross_fitted: bool

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> ReliabilityCheck:
        """What :meth:`to_dict` gave."""
        return ReliabilityCheck(
            Reliability(**values["before"]), Reliability(**values["after"]), bool(values["cross_fitted"])
        )

    def describe(self) -> str:
        """The errors in a sentence."""
        if self.before.ece is None or self.after.ece is None:
            return "no detection has a calibrated score above 0.05, so nothing can be said about the calibration"
        how = "cross-validated" if self.cross_fitted else "with the map that the weights hold"
        return (
            f"calibration error {self.before.ece:.3f} with raw scores, {self.after.ece:.3f} with calibrated ones "
            f"(LaECE {self.before.laece:.3f} and {self.after.laece:.3f}; {sum(self.after.count):,} detections, {how})"
        )


def reliability(
    scores: NDArray[np.float64], correct: NDArray[np.bool_], iou: NDArray[np.float64], bins: int = BINS
) -> Reliability:
    """Reliability of scores.

    Args:
        scores: From 0 to 1, [N].
        correct: Which detections are right, [N].
        iou: The IoU of each with the object it found, read where it is right, [N].
        bins: How many.
    """
    place = np.minimum((scores * bins).astype(np.int64), bins - 1)
    count = np.bincount(place, minlength=bins)
    columns = (scores, correct, np.where(correct, iou, 0))
    score, precision, quality = (np.bincount(place, one, bins) / np.maximum(count, 1) for one in columns)
    if not len(scores):
        return Reliability(None, None, [0] * bins, [0.0] * bins, [0.0] * bins, [0.0] * bins)
    share = count / count.sum()
    ece, laece = (float(share @ np.abs(score - target)) for target in (precision, quality))
    return Reliability(ece, laece, count.tolist(), score.tolist(), precision.tolist(), quality.tolist())


def check_reliability(matches: Matches, score_map: ScoreMap, classes: int, fitted_here: bool) -> ReliabilityCheck:
    """Compare raw and calibrated scores.

    Args:
        matches: Detections with raw scores, matched at IoU 0.5.
        score_map: The map.
        classes: The number of classes.
        fitted_here: Whether the map was fitted to these detections: then each image is judged by one that was not.
    """
    columns = judged(matches, classes)
    raw, labels, correct = columns["scores"], columns["labels"], columns["correct"]
    other = None
    if fitted_here:
        other = cross_fitted(Calibration(score_map.curves, score_map.pooled), **columns)
    scores = score_map(raw, labels) if other is None else other
    return compare(raw, scores, correct, matched_iou(matches)[~matches.ignored], other is not None)


def compare(
    raw: NDArray[np.float64],
    scores: NDArray[np.float64],
    correct: NDArray[np.bool_],
    iou: NDArray[np.float64],
    held_out: bool,
) -> ReliabilityCheck:
    """Raw and calibrated scores of the same detections.

    Args:
        raw: Raw scores, [N].
        scores: Calibrated ones, [N].
        correct: Which detections are right, [N].
        iou: The IoU of each with the object it found, read where it is right, [N].
        held_out: Whether the scores of each image come from a map that was fitted to other images.
    """
    shown = scores > ABOVE
    before, after = (reliability(values[shown], correct[shown], iou[shown]) for values in (raw, scores))
    return ReliabilityCheck(before, after, held_out)


def matched_iou(matches: Matches) -> NDArray[np.float64]:
    """The IoU of each detection with the object it found, 0 where it found none, [D]."""
    iou = np.zeros(len(matches.detections))
    found = matches.correct
    boxes, others = matches.detections.boxes[found], matches.objects.boxes[matches.matched[found]]
    iou[found] = paired_iou(boxes, others, np.zeros(len(boxes), dtype=np.bool_))
    return iou
