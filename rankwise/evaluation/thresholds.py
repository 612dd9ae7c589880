"""Where to cut the scores: ranking losses give an order, not probabilities, so the cut has to be found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwise.evaluation.matching import Matches

#: The cut where nothing could be measured.
UNMEASURED = 0.5


@dataclass(frozen=True)
class Threshold:
    """A score from which detections are kept (that score included), and how good the kept ones are at IoU 0.5.

    Attributes:
        score: The threshold.
        f1: Harmonic mean of precision and recall, None where there was nothing to measure.
        precision: The part of the kept detections that is right.
        recall: The part of the objects that is found.
    """

    score: float
    f1: float | None = None
    precision: float | None = None
    recall: float | None = None


@dataclass(frozen=True)
class Thresholds:
    """The thresholds with the best F1.

    Attributes:
        overall: One for all classes together.
        per_class: One for each class. A class of which nothing was right (no objects, no detections, no match) has the
            overall score, with no F1.
    """

    overall: Threshold
    per_class: dict[str, Threshold]

    def by_label(self, classes: Sequence[str]) -> list[float]:
        """The score threshold of each class, the overall one for classes that are not known here."""
        return [self.per_class.get(name, self.overall).score for name in classes]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Thresholds:
        """Thresholds out of what :meth:`to_dict` gave."""
        per_class = {name: Threshold(**entry) for name, entry in values["per_class"].items()}
        return Thresholds(Threshold(**values["overall"]), per_class)


@dataclass(frozen=True)
class Sweep:
    """Precision, recall and F1 at every threshold that makes a difference, in falling order.

    Attributes:
        scores: The thresholds, [S].
        precision: [S].
        recall: [S].
        f1: [S].
    """

    scores: NDArray[np.float64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]
    f1: NDArray[np.float64]

    def best(self) -> Threshold | None:
        """The threshold with the best F1, of equals the highest, which keeps the fewest boxes; None if all are 0."""
        if not len(self.f1) or self.f1.max() == 0:
            return None
        row = int(self.f1.argmax())
        values = (self.scores[row], self.f1[row], self.precision[row], self.recall[row])
        return Threshold(*(float(value) for value in values))


def sweep(matches: Matches, label: int | None = None) -> Sweep:
    """Precision, recall and F1 by threshold.

    Detections on crowds and the crowds themselves are left out. Cutting at a score changes no match above it, since
    matches are made in order of falling score: one matching serves all thresholds.

    Args:
        matches: Detections matched with objects.
        label: The class, or None for all classes together.
    """
    counted, wanted = ~matches.ignored, ~matches.objects.crowd
    if label is not None:
        counted = counted & (matches.detections.labels == label)
        wanted = wanted & (matches.objects.labels == label)
    scores = matches.detections.scores[counted]
    order = np.argsort(-scores, kind="stable")
    scores, correct = scores[order], np.cumsum(matches.correct[counted][order])
    # Equal scores fall together: a threshold keeps all of them or none.
    last = np.flatnonzero(np.append(np.diff(scores) != 0, True)) if len(scores) else np.zeros(0, dtype=np.int64)
    kept, correct, objects = last + 1.0, correct[last].astype(np.float64), float(wanted.sum())
    recall = correct / objects if objects else np.zeros(len(last))
    return Sweep(scores[last], correct / kept, recall, 2 * correct / (kept + objects))


def best_thresholds(matches: Matches, classes: Sequence[str]) -> Thresholds:
    """The score thresholds with the best F1, over all classes and for each.

    Args:
        matches: Detections matched with objects at IoU 0.5.
        classes: The names of the labels.
    """
    whole = sweep(matches)
    overall = whole.best()
    if overall is None:  # nothing right at any threshold: keep the one best guess
        overall = Threshold(float(whole.scores[0]) if len(whole.scores) else UNMEASURED)
    per_class = {name: sweep(matches, label).best() or Threshold(overall.score) for label, name in enumerate(classes)}
    return Thresholds(overall, per_class)
