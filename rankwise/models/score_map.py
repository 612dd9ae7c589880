"""Calibration maps: per class a strictly increasing map from raw scores to probabilities.

They are fitted in :mod:`rankwise.evaluation.calibration` and stored with the weights as plain numbers. This module
applies and validates them. It needs no torch, because exported detectors use it too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rankwise.errors import ModelError

Floats = NDArray[np.float64]

#: Beyond this logit (0.9975, or 1 in 400), probabilities approach 0 and 1 with the logarithm of the logit: no
#: validation set supports more, and neighboring raw scores keep different values instead of all becoming 1.
TAIL = 6.0
#: Maximum number of knots of a curve.
MAX_KNOTS = 64


@dataclass(frozen=True)
class Curve:
    """The map of one class: piecewise linear from the logit of the raw score to the logit of the probability.

    Attributes:
        kind: The type of fit. A logistic curve has one knot.
        x: Logits of raw scores, strictly increasing.
        y: Logits of probabilities there, strictly increasing.
        slope: The slope before the first and after the last knot, above 0.
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
                f"a calibration curve has {len(self.x)} x and {len(self.y)} y: expected equal numbers, at most "
                f"{MAX_KNOTS}"
            )
        if not all(map(math.isfinite, (*self.x, *self.y, self.slope))):
            raise ModelError("a calibration curve has a value that is not finite")
        rising = all((np.diff(values) > 0).all() for values in (self.x, self.y))
        if not rising or not self.slope > 0:
            raise ModelError("a calibration curve is not strictly increasing")

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {"kind": self.kind, "x": list(self.x), "y": list(self.y), "slope": self.slope}


#: Probability equals raw score, except in the tails: the default if nothing is known.
IDENTITY = Curve("logistic", (0.0,), (0.0,), 1.0)


@dataclass(frozen=True)
class ScoreMap:
    """Maps raw scores to the probability that a detection is correct, per class.

    "Correct" is a match by COCO's rules: an object of the class with an IoU of at least 0.5, each object at most once.
    The map is strictly increasing, so the order within a class and its AP do not change.

    Attributes:
        curves: One per class, in the order of the labels.
        pooled: Labels of the classes without validation objects, which use the curve of all classes together.
    """

    curves: tuple[Curve, ...]
    pooled: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.curves:
            raise ModelError("a calibration needs a curve per class, but it has none")

    def __call__(self, scores: ArrayLike, labels: ArrayLike) -> Floats:
        """The probabilities, float64, with the shape of the scores.

        Args:
            scores: Raw scores from 0 to 1, any shape.
            labels: Class indices of the same shape.

        Raises:
            ValueError: If a score is out of range or a label has no curve.
        """
        values, classes = checked(scores, labels, len(self.curves))
        return expit(compress(self._interpolate(logit(values), classes, self.segments)))

    def inverse(self, probabilities: ArrayLike, labels: ArrayLike) -> Floats:
        """The raw scores of these probabilities.

        Args:
            probabilities: From 0 to 1, any shape.
            labels: Class indices of the same shape.
        """
        values, classes = checked(probabilities, labels, len(self.curves))
        return expit(self._interpolate(expand(logit(values)), classes, self._inverse_segments))

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {"curves": [curve.to_dict() for curve in self.curves], "pooled": list(self.pooled)}

    @classmethod
    def from_dict(cls, values: Any, classes: int | None = None) -> Self:
        """The inverse of :meth:`to_dict`. Everything is checked, because the file may be untrusted.

        Args:
            values: The plain values.
            classes: The required number of classes, if given.

        Raises:
            ModelError: If the values are invalid.
        """
        try:
            curves = tuple(
                Curve(curve["kind"], numbers(curve["x"]), numbers(curve["y"]), number(curve["slope"]))
                for curve in values["curves"]
            )
            pooled = tuple(int(label) for label in values.get("pooled", ()))
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"the calibration cannot be read ({type(error).__name__}: {error})") from error
        if classes is not None and len(curves) != classes:
            raise ModelError(f"the calibration has {len(curves)} curves for {classes} classes")
        if any(not 0 <= label < len(curves) for label in pooled):
            raise ModelError(f"the calibration refers to the classes {pooled}, but has {len(curves)} curves")
        return cls(curves, pooled)

    @cached_property
    def segments(self) -> tuple[Floats, Floats, Floats, Floats]:
        """The curves as tables; see :func:`as_segments`."""
        return as_segments([(curve.x, curve.y, curve.slope) for curve in self.curves])

    @cached_property
    def _inverse_segments(self) -> tuple[Floats, ...]:
        return as_segments([(curve.y, curve.x, 1 / curve.slope) for curve in self.curves])

    @staticmethod
    def _interpolate(x: Floats, labels: NDArray[np.int64], parts: tuple[Floats, ...]) -> Floats:
        starts, x0, y0, slope = parts
        flat, row = x.reshape(-1), labels.reshape(-1)
        segment = np.zeros(len(flat), dtype=np.int64)
        for column in starts.T:
            segment += flat > column[row]
        with np.errstate(invalid="ignore"):  # no infinity minus infinity, because knots are finite
            return (y0[row, segment] + slope[row, segment] * (flat - x0[row, segment])).reshape(x.shape)


def as_segments(
    curves: Sequence[tuple[Sequence[float], Sequence[float], float]],
) -> tuple[Floats, Floats, Floats, Floats]:
    """Curves, each as knots x, knots y and the outer slope, as tables: the start of each segment after the first [C,
    K], and x, y and slope of each [C, K + 1].

    The index of the segment of a point is the number of starts below it. Shorter curves are padded with infinity.
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
    """Compresses logits beyond ±TAIL logarithmically: strictly increasing, the identity in between."""
    size = np.abs(logits)
    return np.sign(logits) * (np.minimum(size, TAIL) + np.log1p(np.maximum(size - TAIL, 0)))


def expand(logits: Floats) -> Floats:
    """The inverse of :func:`compress`."""
    size = np.abs(logits)
    with np.errstate(over="ignore"):
        return np.sign(logits) * (np.minimum(size, TAIL) + np.expm1(np.maximum(size - TAIL, 0)))


def logit(scores: Floats) -> Floats:
    """log(s / (1 - s)), finite at 0 and 1, where the nearest other float64 is used."""
    inner = np.clip(scores, np.nextafter(0, 1), np.nextafter(1, 0))
    return np.log(inner) - np.log1p(-inner)


def expit(logits: Floats) -> Floats:
    """1 / (1 + exp(-x)) without overflow."""
    low = np.exp(-np.abs(logits))
    return np.where(logits < 0, low, 1.0) / (1 + low)


def checked(scores: ArrayLike, labels: ArrayLike, classes: int | None) -> tuple[Floats, NDArray[np.int64]]:
    """Scores from 0 to 1 and class indices of the same shape, as float64 and int64.

    Raises:
        ValueError: If they are invalid.
    """
    values, indices = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    if values.shape != indices.shape:
        raise ValueError(f"{list(values.shape)} scores need as many labels, not {list(indices.shape)}")
    if indices.size and indices.dtype.kind not in "iu":
        raise ValueError(f"labels must be integers, the class indices, not {indices.dtype}")
    bad = ~((values >= 0) & (values <= 1))
    if bad.any():
        raise ValueError(
            f"a score is {values[bad][0]:g} ({bad.sum()} such): raw scores must be from 0 to 1; "
            "apply a sigmoid to logits first"
        )
    if indices.size and (indices.min() < 0 or (classes is not None and indices.max() >= classes)):
        limit = "" if classes is None else f" of {classes} classes"
        raise ValueError(f"labels are from {indices.min()} to {indices.max()}: expected class indices{limit} from 0")
    return values, indices.astype(np.int64)


def number(value: Any) -> float:
    """A plain number; anything else, including a bool, is a TypeError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def numbers(values: Any) -> tuple[float, ...]:
    """A list of plain numbers; anything else is a TypeError."""
    if not isinstance(values, list | tuple):
        raise TypeError(f"{values!r} is not a list of numbers")
    return tuple(map(number, values))
