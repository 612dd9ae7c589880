"""Fits calibration maps: from raw scores to the probability that a detection is correct.

Ranking losses decide which box comes first, not how certain it is. A strictly increasing map per class adds this
without changing the order. The default is logistic regression on the logit of the raw score. The parameters of a class
are shrunk towards those of all classes together, with the weight of :data:`PRIOR_MATCHES` matches. Classes with at
least :data:`ISOTONIC_MATCHES` matches may have a centered isotonic curve instead, if cross-validation prefers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rankwise.evaluation.isotonic import centered_isotonic
from rankwise.evaluation.matching import Matches
from rankwise.files.names import join_names
from rankwise.models.score_map import IDENTITY, Curve, ScoreMap, checked, expit, logit

#: The fit of all classes has the weight of this many matches of a class.
PRIOR_MATCHES = 20.0
#: Number of matches of a class that allow more than the two parameters of a logistic curve.
ISOTONIC_MATCHES = 1000
#: Logistic curves are refitted to detections above this probability: most detections are far below it and would distort
#: the curve in the relevant range. Only for classes with :data:`REFIT_MATCHES` matches above it.
REFIT_ABOVE, REFIT_MATCHES, REFIT_ROUNDS = 0.02, 10, 3
#: Number of folds in cross-validation.
FOLDS = 5
#: Minimum slope, per standard deviation of all logits: the map must keep the order even if scores carry no information.
MIN_SLOPE = 0.01
#: Logits with a smaller standard deviation are equal up to rounding, so that the slope has no scale.
EQUAL = 1e-6

Floats = NDArray[np.float64]
Kinds = tuple[str, ...]


class Calibration(ScoreMap):
    """A strictly increasing map per class from raw score to the probability of being correct.

    ``calibration(scores, labels)`` applies it; ``to_dict`` and ``from_dict`` convert it to plain values and back.

    Example:
        >>> import numpy as np
        >>> scores, labels = np.array([0.02, 0.03, 0.01, 0.002]), np.array([0, 0, 0, 0])
        >>> calibration = Calibration.fit(scores, labels, correct=np.array([True, True, False, False]))
        >>> calibration(scores, labels).round(2)
        array([0.65, 0.74, 0.47, 0.15])
    """

    @classmethod
    def fit(
        cls,
        scores: ArrayLike,
        labels: ArrayLike,
        correct: ArrayLike,
        *,
        images: ArrayLike | None = None,
        objects: ArrayLike | None = None,
        kinds: Sequence[str] | None = None,
    ) -> Calibration:
        """Fits a map to detections known to be correct or wrong. The result does not depend on their order.

        Without detections, the map is the identity (except in its tails). If all detections are correct, or all are
        wrong, the probability stays one detection away from 1 or 0.

        Args:
            scores: Raw scores from 0 to 1, [N].
            labels: Class indices, [N].
            correct: Which detections are correct, [N]. Leave out detections on crowd regions.
            images: The image of each detection, [N], so that cross-validation keeps images together.
            objects: Number of objects per class, [C]. Classes without objects use the map of all classes together, and
                their detections, which cannot be correct, are ignored. By default, all classes in ``labels`` are
                assumed to be present.
            kinds: "logistic" or "isotonic" for each class, [C]; chosen by cross-validation by default.

        Raises:
            ValueError: If shapes, scores or labels are invalid.
        """
        present = None if objects is None else np.asarray(objects) > 0
        values, numbers = checked(scores, labels, None if present is None else len(present))
        right = np.asarray(correct)
        if values.ndim != 1 or right.shape != values.shape or not np.isin(right, (0, 1)).all():
            raise ValueError(f"correct must be true or false for each of the {len(values)} scores")
        if present is None:
            present = np.ones(int(numbers.max(initial=0)) + 1, dtype=np.bool_)
        if kinds is not None and len(kinds) != len(present):
            raise ValueError(f"{len(kinds)} kinds were given for {len(present)} classes")
        groups = np.arange(len(values)) if images is None else np.unique(np.asarray(images), return_inverse=True)[1]
        order = np.lexsort((right, values, numbers, groups))  # sorted, so that sums do not depend on the order
        data = _Data(logit(values)[order], numbers[order], right[order].astype(np.bool_), groups[order])
        curves = _fit(data, present, kinds or _choose(data, present))
        return cls(curves, tuple(np.flatnonzero(~present).tolist()))

    @property
    def kinds(self) -> Kinds:
        """The type of fit of each class."""
        return tuple(curve.kind for curve in self.curves)


def describe(score_map: ScoreMap, classes: Sequence[str]) -> str:
    """A sentence about how a map was fitted."""
    isotonic = [name for name, curve in zip(classes, score_map.curves, strict=True) if curve.kind == "isotonic"]
    logistic = len(classes) - len(isotonic)
    parts = [f"logistic for {logistic} of {len(classes)} classes"] if logistic else []
    parts += [f"isotonic for {join_names(isotonic, 5)}"] if isotonic else []
    pooled = [classes[label] for label in score_map.pooled]
    note = f"; the map of all classes together for {join_names(pooled, 5)}: no validation objects" if pooled else ""
    return f"{', '.join(parts)}{note}"


def cross_fitted(
    calibration: ScoreMap,
    scores: Floats,
    labels: NDArray[np.int64],
    correct: NDArray[np.bool_],
    images: NDArray[np.int64],
    objects: NDArray[np.int64],
) -> Floats | None:
    """Cross-fitted probabilities: each image uses a map fitted to other images, for an unbiased evaluation.

    The arguments are those of :meth:`Calibration.fit`; the kinds of ``calibration``, fitted to all detections, are
    kept. None if there are fewer than two images.
    """
    fold = _folds(np.unique(images, return_inverse=True)[1])
    if not len(fold) or fold.max() < 1:
        return None
    kinds = [curve.kind for curve in calibration.curves]
    result = np.empty(len(scores))
    for held_out in (fold == number for number in range(fold.max() + 1)):
        rest = ~held_out
        other = Calibration.fit(
            scores[rest], labels[rest], correct[rest], images=images[rest], objects=objects, kinds=kinds
        )
        result[held_out] = other(scores[held_out], labels[held_out])
    return result


def calibration_data(matches: Matches, classes: int) -> dict[str, Any]:
    """The arguments of :meth:`Calibration.fit` from matches at IoU 0.5 with raw scores, without detections on crowd
    regions."""
    counted = ~matches.ignored
    detections = matches.detections
    return {
        "scores": detections.scores[counted],
        "labels": detections.labels[counted],
        "correct": matches.correct[counted],
        "images": detections.image_ids[counted],
        "objects": matches.objects.per_class(classes),
    }


class _Data:
    """Columns of detections known to be correct or wrong: logits of raw scores, labels, and image numbers from 0."""

    def __init__(
        self, x: Floats, labels: NDArray[np.int64], correct: NDArray[np.bool_], groups: NDArray[np.int64]
    ) -> None:
        self.x, self.labels, self.correct, self.groups = x, labels, correct, groups

    def where(self, mask: NDArray[np.bool_]) -> _Data:
        return _Data(self.x[mask], self.labels[mask], self.correct[mask], self.groups[mask])


def _fit(data: _Data, present: NDArray[np.bool_], kinds: Sequence[str]) -> tuple[Curve, ...]:
    """The curves of all classes."""
    data = data.where(present[data.labels])
    if not len(data.x):
        return (IDENTITY,) * len(present)
    curves = _logistic_curves(data, present)
    for _ in range(REFIT_ROUNDS):
        above = ScoreMap(curves)(expit(data.x), data.labels) > REFIT_ABOVE
        enough = np.bincount(data.labels[above & data.correct], minlength=len(present)) >= REFIT_MATCHES
        curves = _logistic_curves(data.where(above | ~enough[data.labels]), present)
    own = [data.labels == label if kind == "isotonic" else np.False_ for label, kind in enumerate(kinds)]
    return tuple(
        centered_isotonic(data.x[rows], data.correct[rows], curve.slope) if rows.any() else curve
        for rows, curve in zip(own, curves, strict=True)
    )


def _logistic_curves(data: _Data, present: NDArray[np.bool_]) -> tuple[Curve, ...]:
    """A logistic curve per class, shrunk towards that of all classes together."""
    mean, spread = float(data.x.mean()), float(data.x.std())
    if spread < EQUAL:
        spread = 1.0
    z = (data.x - mean) / spread
    matches = int(data.correct.sum())
    # Platt's targets: one extra correct and one extra wrong detection keep the fit finite for any data.
    high, low = (matches + 1) / (matches + 2), 1 / (len(z) - matches + 2)
    target = np.where(data.correct, high, low)
    rate = float(target.mean())
    start = np.array([MIN_SLOPE, np.log(rate / (1 - rate))])
    pooled, information = _logistic(z, target, start, np.zeros((2, 2)))
    prior = PRIOR_MATCHES / max(matches, 1) * information
    curves = []
    for label, known in enumerate(present):
        own, theta = data.labels == label, pooled
        if known and own.any():
            theta, _ = _logistic(z[own], data.correct[own].astype(np.float64), pooled, prior)
        curves.append(Curve("logistic", (mean,), (float(theta[1]),), float(theta[0] / spread)))
    return tuple(curves)


def _choose(data: _Data, present: NDArray[np.bool_]) -> Kinds:
    """The kind of curve of each class: isotonic if there are many matches and it fits held-out images better."""
    many = (np.bincount(data.labels[data.correct], minlength=len(present)) >= ISOTONIC_MATCHES) & present
    fold = _folds(data.groups)
    if not many.any() or fold.max(initial=0) < 1:
        return ("logistic",) * len(present)
    losses = {}
    for kind in ("logistic", "isotonic"):
        kinds = [kind if own else "logistic" for own in many]
        losses[kind] = np.zeros(len(present))
        for part in range(fold.max() + 1):
            rest = data.where((fold == part) & many[data.labels])
            curves = _fit(data.where(fold != part), present, kinds)
            probability = ScoreMap(curves)(expit(rest.x), rest.labels)
            loss = -np.log(np.where(rest.correct, probability, 1 - probability))
            losses[kind] += np.bincount(rest.labels, loss, len(present))
    better = many & (losses["isotonic"] < losses["logistic"])
    return tuple("isotonic" if own else "logistic" for own in better)


def _folds(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The fold of each detection: whole images, with a fixed shuffle."""
    count = int(groups.max(initial=-1)) + 1
    shuffled = np.random.default_rng(0).permutation(count)
    return (shuffled % max(1, min(FOLDS, count)))[groups]


def _logistic(z: Floats, target: Floats, start: Floats, pull: Floats) -> tuple[Floats, Floats]:
    """Slope and intercept by Newton's method, and the information [2, 2] of the data there.

    The loss is convex. It has a quadratic prior around the start with the precision matrix ``pull``. If its minimum has
    a slope below the minimum slope, the slope is fixed there.
    """

    def loss(theta: Floats) -> float:
        eta = theta[0] * z + theta[1]
        away = theta - start
        return float((np.logaddexp(0, eta) - target * eta).sum() + away @ pull @ away / 2)

    def derivatives(theta: Floats) -> tuple[Floats, Floats]:
        p = expit(theta[0] * z + theta[1])
        error, weight = p - target, p * (1 - p)
        mixed = weight @ z
        information = np.array([[weight @ (z * z), mixed], [mixed, weight.sum()]])
        return np.array([error @ z, error.sum()]) + pull @ (theta - start), information

    def minimize(theta: Floats, free: NDArray[np.int64]) -> Floats:
        value = loss(theta)
        for _ in range(100):
            gradient, information = derivatives(theta)
            curvature = (information + pull)[np.ix_(free, free)]
            curvature += 1e-12 * max(float(np.trace(curvature)), 1e-12) * np.eye(len(free))
            step = np.zeros(2)
            step[free] = np.linalg.solve(curvature, gradient[free])
            if gradient @ step < 1e-10:  # twice the remaining gain, in nats over all detections
                return theta - step  # close to the minimum, a step squares the error
            size = 1.0
            while size > 1e-6 and not (following := loss(theta - size * step)) < value:
                size /= 2
            if size <= 1e-6:
                break
            theta, value = theta - size * step, following
        return theta

    theta = minimize(start, np.array([0, 1]))
    if theta[0] < MIN_SLOPE:
        theta = minimize(np.array([MIN_SLOPE, theta[1]]), np.array([1]))
    return theta, derivatives(theta)[1]
