"""Score thresholds by best F1, by precision, or by best LRP, with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwise.evaluation.matching import Matches
from rankwise.evaluation.reliability import matched_iou

#: The threshold if nothing could be measured.
UNMEASURED = 0.5
#: The precisions with stored thresholds, in percent.
PRECISIONS = range(5, 100)
#: Number of bootstrap rounds, and the coverage of an interval.
ROUNDS, INTERVAL = 200, 0.95
#: Intervals of calibrated scores wider than this cause a warning.
WIDE = 0.2
#: Maximum number of (round, detection) pairs in memory.
_PAIRS = 1 << 22


@dataclass(frozen=True)
class Threshold:
    """A minimum score (inclusive), and the quality of the kept detections at IoU 0.5.

    Attributes:
        score: The threshold.
        f1: Harmonic mean of precision and recall, None if there was nothing to measure.
        precision: Fraction of correct detections.
        recall: Fraction of detected objects.
        interval: 95 % bootstrap interval of the threshold; None if it was not computed or is unknown.
    """

    score: float
    f1: float | None = None
    precision: float | None = None
    recall: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def uncertain(self) -> bool:
        """Whether the interval is wide: another validation set of this size might give another threshold."""
        return self.interval is not None and self.interval[1] - self.interval[0] > WIDE


@dataclass(frozen=True)
class Thresholds:
    """Score thresholds by criterion.

    Attributes:
        overall: The best F1 of all classes together.
        per_class: The best F1 of each class. A class without a correct detection has the overall threshold and no F1.
        lrp: The lowest LRP error (localization, false positives and missed objects) of all classes together; None if it
            was not measured.
        by_precision: For each precision in percent that was reached, the threshold with the highest recall, over all
            classes together.
    """

    overall: Threshold
    per_class: dict[str, Threshold]
    lrp: Threshold | None = None
    by_precision: dict[int, Threshold] = field(default_factory=dict)

    def by_label(self, classes: Sequence[str]) -> list[float]:
        """The threshold of each class; the overall one for unknown classes."""
        return [self.per_class.get(name, self.overall).score for name in classes]

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Sweep:
    """Precision, recall and F1 at every distinct threshold, in descending order.

    Attributes:
        scores: The thresholds, [S].
        precision: [S].
        recall: [S].
        f1: [S].
        lrp: Localization-recall-precision error with IoU 0.5, [S] (https://arxiv.org/abs/1807.01696).
    """

    scores: NDArray[np.float64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]
    f1: NDArray[np.float64]
    lrp: NDArray[np.float64]

    def best(self) -> Threshold | None:
        """The threshold with the best F1, the highest if there are several; None if all are 0."""
        return self.at(int(self.f1.argmax())) if len(self.f1) and self.f1.max() > 0 else None

    def best_lrp(self) -> Threshold | None:
        """The threshold with the lowest LRP error, the highest if there are several; None if nothing is correct."""
        return self.at(int(self.lrp.argmin())) if len(self.f1) and self.f1.max() > 0 else None

    def at_precision(self, precision: float) -> Threshold | None:
        """The threshold with the highest recall at this precision, the highest if there are several; or None."""
        enough = np.flatnonzero((self.precision >= precision) & (self.f1 > 0))
        return self.at(int(np.searchsorted(self.recall, self.recall[enough[-1]]))) if len(enough) else None

    def at(self, row: int) -> Threshold:
        """The threshold of a row."""
        columns = (self.scores, self.f1, self.precision, self.recall)
        score, f1, precision, recall = (float(column[row]) for column in columns)
        return Threshold(score, f1, precision, recall)


def sweep(matches: Matches, label: int | None = None) -> Sweep:
    """Precision, recall, F1 and LRP by threshold.

    Crowd regions and detections on them are ignored. Matching proceeds in descending order of score, so a threshold
    does not change the matches above it, and one matching is enough for all thresholds.

    Args:
        matches: Detections matched with objects.
        label: The class, or None for all classes together.
    """
    ranked = _Ranked(matches, label)
    last = ranked.last
    correct = np.cumsum(ranked.correct)[last].astype(np.float64)
    loss = np.cumsum(ranked.loss)[last]
    kept, objects = last + 1.0, float(len(ranked.object_image_ids))
    recall = correct / objects if objects else np.zeros(len(last))
    f1, lrp = _f1_and_lrp(correct, kept, loss, objects)
    return Sweep(ranked.scores[last], correct / kept, recall, f1, lrp)


def best_thresholds(matches: Matches, classes: Sequence[str]) -> Thresholds:
    """The thresholds with the best F1, over all classes and per class.

    Args:
        matches: Detections matched with objects at IoU 0.5.
        classes: The names of the labels.
    """
    whole = sweep(matches)
    overall = whole.best()
    if overall is None:  # nothing is correct at any threshold: keep only the best detection
        overall = Threshold(float(whole.scores[0]) if len(whole.scores) else UNMEASURED)
    per_class = {name: sweep(matches, label).best() or Threshold(overall.score) for label, name in enumerate(classes)}
    by_precision = {percent: found for percent in PRECISIONS if (found := whole.at_precision(percent / 100))}
    return Thresholds(overall, per_class, whole.best_lrp(), by_precision)


def at_scores(matches: Matches, classes: Sequence[str], scores: Mapping[str, float]) -> Thresholds:
    """The quality of given thresholds, one per class name, such as those of a run on other images.

    The scores of the matches are in the units of the thresholds.
    """
    limits = np.array([scores[name] for name in classes])
    found, objects = matches.detections, matches.objects
    kept = (found.scores >= limits[found.labels]) & ~matches.ignored

    def measured(score: float, label: int | None) -> Threshold:
        counted = kept if label is None else kept & (found.labels == label)
        wanted = int((~objects.crowd & (label is None or objects.labels == label)).sum())
        correct, number = int(matches.correct[counted].sum()), int(counted.sum())
        if not wanted:
            return Threshold(score)
        return Threshold(score, 2 * correct / (number + wanted), correct / number if number else None, correct / wanted)

    per_class = {name: measured(scores[name], label) for label, name in enumerate(classes)}
    return Thresholds(measured(float(limits.min()), None), per_class)


def with_intervals(
    thresholds: Thresholds, matches: Matches, image_ids: NDArray[np.int64], rounds: int = ROUNDS, seed: int = 0
) -> Thresholds:
    """Adds bootstrap intervals to thresholds by resampling the images with replacement.

    With a single image, or without a correct detection, there are no intervals.

    Args:
        thresholds: The result of :func:`best_thresholds` for these matches.
        matches: Detections matched with objects at IoU 0.5.
        image_ids: All images, with or without objects and detections, in ascending order.
        rounds: Number of bootstrap rounds.
        seed: Random seed.
    """
    number = len(image_ids)
    if number < 2 or thresholds.overall.f1 is None:  # without a correct detection there is nothing to measure
        return thresholds
    weights = np.random.default_rng(seed).multinomial(number, np.full(number, 1 / number), size=rounds)
    whole = _bootstrap(matches, None, image_ids, weights)
    by_precision = {
        percent: replace(known, interval=_interval(whole.by_precision[percent]))
        for percent, known in thresholds.by_precision.items()
    }
    per_class = {}
    for label, (name, known) in enumerate(thresholds.per_class.items()):
        if known.f1 is not None:
            known = replace(known, interval=_interval(_bootstrap(matches, label, image_ids, weights).f1))
        per_class[name] = known
    return Thresholds(
        replace(thresholds.overall, interval=_interval(whole.f1)),
        per_class,
        None if thresholds.lrp is None else replace(thresholds.lrp, interval=_interval(whole.lrp)),
        by_precision,
    )


class _Ranked:
    """Detections of a class, or of all if ``label`` is None, that are not ignored, best first."""

    def __init__(self, matches: Matches, label: int | None) -> None:
        counted, wanted = ~matches.ignored, ~matches.objects.crowd
        if label is not None:
            counted = counted & (matches.detections.labels == label)
            wanted = wanted & (matches.objects.labels == label)
        order = np.flatnonzero(counted)
        order = order[np.argsort(-matches.detections.scores[order], kind="stable")]
        self.scores, self.correct = matches.detections.scores[order], matches.correct[order]
        # The localization error of each match, 0 to 1.
        self.loss = np.where(self.correct, (1 - matched_iou(matches)[order]) / (1 - matches.iou), 0)
        # A threshold keeps either all detections with equal scores or none.
        self.last = np.flatnonzero(np.append(np.diff(self.scores) != 0, True)) if len(order) else order
        self.image_ids = matches.detections.image_ids[order]
        self.object_image_ids = matches.objects.image_ids[wanted]


@dataclass(frozen=True)
class _Bootstrap:
    """The best thresholds of each bootstrap round, NaN if no detection was correct, [R]; those by precision only of all
    classes together."""

    f1: NDArray[np.float64]
    lrp: NDArray[np.float64]
    by_precision: dict[int, NDArray[np.float64]]


def _bootstrap(
    matches: Matches, label: int | None, image_ids: NDArray[np.int64], weights: NDArray[np.int64]
) -> _Bootstrap:
    """The best thresholds of each round for a class with correct detections, or for all if ``label`` is None.

    Weights are how often each image was drawn, [R, images].
    """
    ranked = _Ranked(matches, label)
    objects_by_image = np.bincount(np.searchsorted(image_ids, ranked.object_image_ids), minlength=len(image_ids))
    # The best threshold is always at a match.
    correct = np.cumsum(ranked.correct)
    last = ranked.last[np.diff(correct[ranked.last], prepend=0) > 0]
    stop = last[-1] + 1
    image, scores = np.searchsorted(image_ids, ranked.image_ids[:stop]), ranked.scores[last]
    f1_scores, lrp_scores, by_precision = [], [], []
    chunk = max(1, _PAIRS // stop)
    for first in range(0, len(weights), chunk):
        some = weights[first : first + chunk]
        objects = (some @ objects_by_image)[:, None]
        each = some[:, image].astype(np.float64)
        kept = np.cumsum(each, axis=1)[:, last]
        hits, losses = (np.cumsum(each * column[:stop], axis=1)[:, last] for column in (ranked.correct, ranked.loss))
        f1, lrp = _f1_and_lrp(hits, kept, losses, objects)
        nothing = hits[:, -1] == 0
        f1_scores.append(np.where(nothing, np.nan, scores[f1.argmax(axis=1)]))
        lrp_scores.append(np.where(nothing, np.nan, scores[lrp.argmin(axis=1)]))
        if label is None:
            precision = np.where(hits > 0, hits / np.maximum(kept, 1), 0)
            # The highest precision from here on is decreasing, so the lowest threshold is found by bisection.
            ahead = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
            rows = np.stack([np.searchsorted(-row, -np.asarray(PRECISIONS) / 100, side="right") - 1 for row in ahead])
            early = np.stack([np.searchsorted(row, row[at]) for row, at in zip(hits, rows, strict=True)])
            by_precision.append(np.where(rows >= 0, scores[early], np.nan))
    by_percent = dict(zip(PRECISIONS, np.concatenate(by_precision).T, strict=True)) if by_precision else {}
    return _Bootstrap(np.concatenate(f1_scores), np.concatenate(lrp_scores), by_percent)


def _f1_and_lrp(correct: Any, kept: Any, loss: Any, objects: Any) -> tuple[Any, Any]:
    """F1 and LRP error from the numbers of correct and kept detections, the localization error and the objects."""
    f1 = 2 * correct / np.maximum(kept + objects, 1)
    return f1, (loss + kept + objects - 2 * correct) / np.maximum(kept + objects - correct, 1)


def _interval(scores: NDArray[np.float64]) -> tuple[float, float] | None:
    """The interval of the scores; rounds that did not reach the goal count as the highest score."""
    if np.isnan(scores).all():
        return None
    filled = np.where(np.isnan(scores), 1.0, scores)
    low, high = np.quantile(filled, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], method="nearest")
    return float(low), float(high)
