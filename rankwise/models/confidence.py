"""What a score means: per class a strictly increasing map from raw scores to probabilities, and thresholds.

Both are plain numbers that travel with the weights. They are fitted in :mod:`rankwise.evaluation.calibration`; this
module applies them and checks what a file claims. It needs no torch, since exported detectors use it too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rankwise.errors import ModelError

Floats = NDArray[np.float64]

#: From this logit on (0.9975, or 1 in 400) probabilities approach 0 and 1 by the logarithm of the logit only: no
#: validation set supports more, and neighbouring raw scores keep different values instead of all becoming 1.
TAIL = 6.0
#: The most knots of a curve.
MAX_KNOTS = 64


@dataclass(frozen=True)
class Curve:
    """The map of one class: piecewise linear from the logit of the raw score to the logit of the probability.

    Attributes:
        kind: How it was fitted. A logistic curve has one knot.
        x: Logits of raw scores, strictly increasing.
        y: Logits of probabilities there, strictly increasing.
        slope: The slope before the first knot and after the last one, above 0.
    """

    kind: Literal["logistic", "isotonic"]
    x: tuple[float, ...]
    y: tuple[float, ...]
    slope: float

    def __post_init__(self) -> None:
        if self.kind not in ("logistic", "isotonic"):
            raise ModelError(f"a calibration curve has kind {self.kind!r}: expected logistic or isotonic")
        if not 1 <= len(self.x) <= MAX_KNOTS or len(self.y) != len(self.x):
            raise ModelError(
                f"a calibration curve has {len(self.x)} x and {len(self.y)} y: expected as many of each, at most "
                f"{MAX_KNOTS}"
            )
        if not all(map(math.isfinite, (*self.x, *self.y, self.slope))):
            raise ModelError("a calibration curve has a number that is not finite")
        rising = all((np.diff(values) > 0).all() for values in (self.x, self.y))
        if not rising or not self.slope > 0:
            raise ModelError("a calibration curve is not strictly increasing")

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {"kind": self.kind, "x": list(self.x), "y": list(self.y), "slope": self.slope}


#: Probability equals raw score, up to the tails: what is left where nothing is known.
IDENTITY = Curve("logistic", (0.0,), (0.0,), 1.0)


@dataclass(frozen=True)
class ScoreMap:
    """Raw scores to the probability that a detection is right, by class.

    "Right" is a match as COCO counts: an object of the class with IoU 0.5 or more, each object once. The map is
    strictly increasing, so the order within a class and its AP stay as they are.

    Attributes:
        curves: One per class, in the order of the labels.
        pooled: Labels of the classes that have the curve of all classes together, since validation had no object of
            them.
    """

    curves: tuple[Curve, ...]
    pooled: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.curves:
            raise ModelError("a calibration needs a curve for each class, and has none")

    def __call__(self, scores: ArrayLike, labels: ArrayLike) -> Floats:
        """Probabilities, float64, in the shape of the scores.

        Args:
            scores: Raw scores from 0 to 1, any shape.
            labels: Class indices of the same shape.

        Raises:
            ValueError: A score out of range or a label without a curve.
        """
        values, classes = checked(scores, labels, len(self.curves))
        return expit(compress(self._interpolate(logit(values), classes, self._segments)))

    def inverse(self, probabilities: ArrayLike, labels: ArrayLike) -> Floats:
        """The raw scores that are mapped to these probabilities.

        Args:
            probabilities: From 0 to 1, any shape.
            labels: Class indices of the same shape.
        """
        values, classes = checked(probabilities, labels, len(self.curves))
        return expit(self._interpolate(expand(logit(values)), classes, self._inverse_segments))

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {"curves": [curve.to_dict() for curve in self.curves], "pooled": list(self.pooled)}

    @classmethod
    def from_dict(cls, values: Any, classes: int | None = None) -> Self:
        """A map out of what :meth:`to_dict` gave; everything is checked, since the file may be anybody's.

        Args:
            values: The plain values.
            classes: How many classes it must have, where given.

        Raises:
            ModelError: It is not such a map.
        """
        try:
            curves = tuple(
                Curve(curve["kind"], _numbers(curve["x"]), _numbers(curve["y"]), _number(curve["slope"]))
                for curve in values["curves"]
            )
            pooled = tuple(int(label) for label in values.get("pooled", ()))
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"the calibration cannot be read ({type(error).__name__}: {error})") from error
        if classes is not None and len(curves) != classes:
            raise ModelError(f"the calibration has {len(curves)} curves for {classes} classes")
        if any(not 0 <= label < len(curves) for label in pooled):
            raise ModelError(f"the calibration speaks of the classes {pooled}, but has {len(curves)} curves")
        return cls(curves, pooled)

    @cached_property
    def _segments(self) -> tuple[Floats, ...]:
        return segments([(curve.x, curve.y, curve.slope) for curve in self.curves])

    @cached_property
    def _inverse_segments(self) -> tuple[Floats, ...]:
        return segments([(curve.y, curve.x, 1 / curve.slope) for curve in self.curves])

    @staticmethod
    def _interpolate(x: Floats, labels: NDArray[np.int64], parts: tuple[Floats, ...]) -> Floats:
        starts, x0, y0, slope = parts
        flat, row = x.reshape(-1), labels.reshape(-1)
        place = np.zeros(len(flat), dtype=np.int64)
        for column in starts.T:
            place += flat > column[row]
        with np.errstate(invalid="ignore"):  # infinite minus infinite cannot be: knots are finite
            return (y0[row, place] + slope[row, place] * (flat - x0[row, place])).reshape(x.shape)


def segments(curves: Sequence[tuple[Sequence[float], Sequence[float], float]]) -> tuple[Floats, Floats, Floats, Floats]:
    """Curves as tables: where each segment after the first starts [C, K], and x, y and slope of each [C, K + 1].

    A point is in the segment whose number is the count of starts below it. Shorter curves have starts at infinity.

    Args:
        curves: Knots x, knots y and the outer slope of each.
    """
    most = max(len(x) for x, _, _ in curves)
    starts = np.full((len(curves), most), np.inf)
    x0, y0, slope = (np.zeros((len(curves), most + 1)) for _ in range(3))
    for row, (x, y, outer) in enumerate(curves):
        knots = len(x)
        starts[row, :knots] = x
        x0[row], y0[row], slope[row] = x[-1], y[-1], outer
        x0[row, : knots + 1], y0[row, : knots + 1] = [x[0], *x], [y[0], *y]
        slope[row, 1:knots] = np.diff(y) / np.diff(x)
    return starts, x0, y0, slope


def compress(logits: Floats) -> Floats:
    """Logits beyond ±TAIL drawn in by the logarithm: strictly increasing, the identity between."""
    size = np.abs(logits)
    return np.sign(logits) * (np.minimum(size, TAIL) + np.log1p(np.maximum(size - TAIL, 0)))


def expand(logits: Floats) -> Floats:
    """The inverse of :func:`compress`."""
    size = np.abs(logits)
    with np.errstate(over="ignore"):
        return np.sign(logits) * (np.minimum(size, TAIL) + np.expm1(np.maximum(size - TAIL, 0)))


def logit(scores: Floats) -> Floats:
    """log(s / (1 - s)), finite at 0 and 1 too: there it is that of the nearest other float64."""
    inner = np.clip(scores, np.nextafter(0, 1), np.nextafter(1, 0))
    return np.log(inner) - np.log1p(-inner)


def expit(logits: Floats) -> Floats:
    """1 / (1 + exp(-x)) without overflow."""
    low = np.exp(-np.abs(logits))
    return np.where(logits < 0, low, 1.0) / (1 + low)


def checked(scores: ArrayLike, labels: ArrayLike, classes: int | None) -> tuple[Floats, NDArray[np.int64]]:
    """Scores as float64 and labels as int64, if they are what they should be.

    Args:
        scores: From 0 to 1.
        labels: Class indices of the same shape.
        classes: Labels must be below it, where given.

    Raises:
        ValueError: They are not.
    """
    values, numbers = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    if values.shape != numbers.shape:
        raise ValueError(f"{list(values.shape)} scores need as many labels, not {list(numbers.shape)}")
    if numbers.size and numbers.dtype.kind not in "iu":
        raise ValueError(f"labels must be integers, the class indices, not {numbers.dtype}")
    bad = ~((values >= 0) & (values <= 1))
    if bad.any():
        raise ValueError(
            f"a score is {values[bad][0]:g} ({bad.sum()} such): raw scores must be from 0 to 1; "
            "apply a sigmoid to logits first"
        )
    if numbers.size and (numbers.min() < 0 or (classes is not None and numbers.max() >= classes)):
        limit = "" if classes is None else f" of {classes} classes"
        raise ValueError(f"labels are from {numbers.min()} to {numbers.max()}: expected class indices{limit} from 0")
    return values, numbers.astype(np.int64)


@dataclass(frozen=True)
class Confidence:
    """What travels with a detector's weights: how to read its scores, and where to cut them.

    Attributes:
        calibration: Raw scores to probabilities; None leaves them raw.
        thresholds: The score with the best F1 by class name, in units of the calibrated scores (of the raw ones
            without a calibration).
        precisions: For rising precisions the lowest score whose detections of all classes together reach it, with
            its 95 % interval: (precision, score, low, high). Only precisions that were reached.
    """

    calibration: ScoreMap | None
    thresholds: dict[str, float]
    precisions: tuple[tuple[float, float, float, float], ...] = field(default=())

    def at_precision(self, precision: float) -> float:
        """The score threshold for a precision of all classes together: the next one known at or above it.

        Args:
            precision: From 0 to 1, both excluded.

        Raises:
            ModelError: It was not reached on the validation images.
        """
        if not 0 < precision < 1:
            raise ModelError(f"precision is {precision}: give the part of the boxes that shall be right, such as 0.9")
        if not self.precisions:
            raise ModelError(f"precision is {precision}, but thresholds by precision are not known; {HOW_TO_CALIBRATE}")
        for known, score, _, _ in self.precisions:
            if known >= precision - 1e-9:
                return score
        raise ModelError(
            f"precision is {precision}, but on the validation images no threshold reached more than "
            f"{self.precisions[-1][0]:g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {
            "calibration": None if self.calibration is None else self.calibration.to_dict(),
            "thresholds": dict(self.thresholds),
            "precisions": [list(row) for row in self.precisions],
        }

    @classmethod
    def from_dict(cls, values: Any, classes: Sequence[str], where: str) -> Confidence:
        """What :meth:`to_dict` gave; everything is checked, since the file may be anybody's.

        Args:
            values: The plain values.
            classes: The detector's classes.
            where: The file, for errors.

        Raises:
            ModelError: It is not that.
        """
        try:
            stored, thresholds = values["calibration"], values["thresholds"]
            if not isinstance(thresholds, Mapping) or set(thresholds) != set(classes):
                raise ModelError("its thresholds are of other classes than its own")
            rows = [_numbers(row) for row in values["precisions"]]
            if any(len(row) != 4 or not 0 < row[0] < 1 or not _in_range(row[1:]) for row in rows):
                raise ModelError("its thresholds by precision are not (precision, score, low, high) from 0 to 1")
            cuts = {name: _number(thresholds[name]) for name in classes}
            if not _in_range(cuts.values()):
                raise ModelError("a threshold is not from 0 to 1")
            score_map = None if stored is None else ScoreMap.from_dict(stored, len(classes))
            return cls(score_map, cuts, tuple(sorted((row[0], row[1], row[2], row[3]) for row in rows)))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            reason = str(error) if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
            raise ModelError(f"{where}: what it says about its scores is invalid ({reason})") from error


#: What to do about a detector without a calibration.
HOW_TO_CALIBRATE = "fit them on the validation images with: rankwise eval RUN"


def calibrated(
    detections: Any, score_map: ScoreMap, as_scores: Callable[[Floats, Any], Any] = lambda new, old: new
) -> dict[str, Any]:
    """One image's detections with calibrated scores, best first; equal ones keep their order.

    Args:
        detections: ``boxes``, ``scores`` and ``labels``, arrays or tensors.
        score_map: The map.
        as_scores: Makes what the scores shall be out of an array and the old scores.
    """
    old = detections["scores"]
    scores = score_map(_array(old), _array(detections["labels"]))
    order = np.argsort(-scores, kind="stable")
    kept = {name: values[order] for name, values in detections.items()}
    return {**kept, "scores": as_scores(scores[order], old)}


def _array(values: Any) -> NDArray[Any]:
    return values if isinstance(values, np.ndarray) else values.detach().cpu().numpy()


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list | tuple):
        raise TypeError(f"{values!r} is not a list of numbers")
    return tuple(map(_number, values))


def _in_range(values: Any) -> bool:
    return all(0 <= value <= 1 for value in values)
