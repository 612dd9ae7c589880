"""Calibration and thresholds stored with the weights, and the selection of detections. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwise.errors import ModelError
from rankwise.models.score_map import ScoreMap, number, numbers

#: Advice for a detector without a calibration.
HOW_TO_CALIBRATE = "fit one on the validation images with: rankwise eval RUN"


@dataclass(frozen=True)
class Confidence:
    """Calibration and thresholds of a detector.

    Attributes:
        calibration: Map from raw scores to probabilities; None keeps raw scores.
        thresholds: The threshold with the best F1 by class name, for calibrated scores (for raw ones without a
            calibration); None if unknown.
        precisions: Rows of (precision, score, low, high) in ascending order: the threshold at which all classes
            together reach the precision, and its 95 % interval. Only precisions that were reached.
    """

    calibration: ScoreMap | None = None
    thresholds: dict[str, float] | None = None
    precisions: tuple[tuple[float, float, float, float], ...] = ()

    def at_precision(self, precision: float) -> tuple[float, float, float]:
        """The threshold for a precision of all classes together, and its 95 % interval: (score, low, high).

        Uses the next known precision at or above the given one.

        Args:
            precision: Between 0 and 1, exclusive.

        Raises:
            ModelError: If it was not reached on the validation images.
        """
        if not 0 < precision < 1:
            raise ModelError(f"precision is {precision}: give the desired fraction of correct boxes, such as 0.9")
        if not self.thresholds and not self.precisions:
            raise ModelError(
                f"precision is {precision}, but this detector has no calibration and no thresholds by precision; "
                f"{HOW_TO_CALIBRATE}"
            )
        for known, score, low, high in self.precisions:
            if known >= precision - 1e-9:
                return score, low, high
        most = f"more than {self.precisions[-1][0]:g}" if self.precisions else "even 0.05"
        if not self.precisions and self.calibration is None:
            most += f". If an earlier version evaluated it, none are known: {HOW_TO_CALIBRATE}"
        raise ModelError(f"precision is {precision}, but on the validation images no threshold reached {most}")

    def select(
        self,
        classes: Sequence[str],
        default: float,
        threshold: float | None = None,
        precision: float | None = None,
        calibrated: bool = True,
    ) -> Selection:
        """Selects the detections to report and their scores.

        Args:
            classes: The detector's classes.
            default: The minimum raw score if thresholds are unknown.
            threshold: The minimum score, in units of the reported scores.
            precision: The desired precision, instead of a threshold.
            calibrated: Report calibrated scores if there is a calibration. Thresholds of calibrated scores select the
                same boxes either way.

        Raises:
            ModelError: If both a threshold and a precision are given, or one is out of range.
        """
        count, score_map = len(classes), self.calibration
        if threshold is not None and precision is not None:
            raise ModelError("both a threshold and a precision were given: give only one of them")
        if threshold is not None:
            if not 0 <= threshold <= 1:
                raise ModelError(f"threshold is {threshold}: it must be from 0 to 1")
            return Selection([threshold] * count, score_map if calibrated else None, calibrated)
        if precision is not None:
            return Selection([self.at_precision(precision)[0]] * count, score_map, calibrated)
        if self.thresholds is None:
            limits = [default if score_map is None else 0.0] * count
        else:
            limits = [self.thresholds[name] for name in classes]
        return Selection(limits, score_map, calibrated)

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "calibration": None if self.calibration is None else self.calibration.to_dict(),
            "thresholds": self.thresholds,
            "precisions": [list(row) for row in self.precisions],
        }

    @classmethod
    def from_dict(cls, values: Any, classes: Sequence[str], where: str) -> Confidence:
        """The inverse of :meth:`to_dict`. Everything is checked, because the file may be untrusted.

        Args:
            values: The plain values.
            classes: The detector's classes.
            where: The file, for errors.

        Raises:
            ModelError: If the values are invalid.
        """
        try:
            stored, given = values["calibration"], values["thresholds"]
            thresholds = None
            if given is not None:
                if not isinstance(given, Mapping) or set(given) != set(classes):
                    raise ModelError("its thresholds belong to other classes")
                thresholds = {name: number(given[name]) for name in classes}
                if not _in_range(thresholds.values()):
                    raise ModelError("a threshold is outside [0, 1]")
            rows = [numbers(row) for row in values["precisions"]]
            if any(len(row) != 4 or not 0 < row[0] < 1 or not _in_range(row[1:]) for row in rows):
                raise ModelError("its thresholds by precision are not (precision, score, low, high) within [0, 1]")
            score_map = None if stored is None else ScoreMap.from_dict(stored, len(classes))
            return cls(score_map, thresholds, tuple(sorted((row[0], row[1], row[2], row[3]) for row in rows)))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            reason = str(error) if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
            raise ModelError(f"{where}: invalid calibration or thresholds ({reason})") from error


@dataclass(frozen=True)
class Selection:
    """The rule that selects detections and their scores.

    Attributes:
        limits: The minimum score of each class, calibrated if there is a map.
        score_map: The calibration; None if raw scores are compared.
        calibrated: Whether calibrated scores are reported.
    """

    limits: list[float]
    score_map: ScoreMap | None
    calibrated: bool

    def least_raw(self, default: float) -> float:
        """A raw score below which nothing is reported; at most the given one."""
        limits = np.asarray(self.limits)
        if self.score_map is not None:
            # Slightly less, so that rounding does not drop anything.
            limits = (1 - 1e-6) * self.score_map.inverse(limits, np.arange(len(limits)))
        return float(min(default, limits.min()))

    def __call__(self, detections: Any) -> dict[str, Any]:
        """The reported detections of an image, best first, from boxes, raw scores and labels as arrays or tensors."""
        scores = raw = _array(detections["scores"]).astype(np.float64)
        labels = _array(detections["labels"]).astype(np.int64)
        if self.score_map is not None:
            scores = self.score_map(raw, labels)
        kept = np.flatnonzero(scores >= np.asarray(self.limits)[labels])
        shown = scores if self.calibrated else raw
        kept = kept[np.argsort(-shown[kept], kind="stable")]
        found = {name: values[kept.tolist()] for name, values in detections.items()}
        if self.score_map is not None and self.calibrated:
            old = found["scores"]
            new = shown[kept]
            found["scores"] = new.astype(old.dtype) if isinstance(old, np.ndarray) else old.new_tensor(new)
        return found


def rescored(detections: Any, score_map: ScoreMap, as_scores: Callable[[NDArray[np.float64]], Any]) -> dict[str, Any]:
    """The detections of an image with calibrated scores in full precision, best first.

    ``as_scores`` converts the scores to an array or tensor.
    """
    scores = score_map(_array(detections["scores"]), _array(detections["labels"]))
    order = np.argsort(-scores, kind="stable")
    found = {name: values[order.tolist()] for name, values in detections.items()}
    return {**found, "scores": as_scores(scores[order])}


def _array(values: Any) -> NDArray[Any]:
    return values if isinstance(values, np.ndarray) else values.detach().cpu().numpy()


def _in_range(values: Any) -> bool:
    return all(0 <= value <= 1 for value in values)
