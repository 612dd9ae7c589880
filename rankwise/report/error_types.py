"""What kind of mistake each detection is, which objects are missed, and what each kind costs in AP.

The kinds follow TIDE (Bolya et al., "TIDE: A General Toolbox for Identifying Object Detection Errors", ECCV 2020),
with its two thresholds: from IoU 0.5 on a box is on an object, below 0.1 it has nothing to do with it. A detection that
found no object (matched as COCO does, at IoU 0.5) is the first of these that holds:

    duplicate      IoU >= 0.5 with an object of its class, which a detection of higher score has found
    class          IoU >= 0.5 with an object of another class
    localisation   IoU >= 0.1, but less than 0.5, with an object of its class
    class          IoU >= 0.1 with an object of another class: wrong in class and in place
    background     IoU < 0.1 with every object

An object is **missed** when no detection that is kept found it, and none that is kept is a localisation or class error
on it. Detections on crowds are no mistakes, and crowds are not missed.

TIDE has a kind of its own for "class and place both wrong"; here it counts as class. A detection between an object of
its class and one of another class is judged by the one it covers, where TIDE always asks for its own class first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rankwise.evaluation.matching import Matches, overlapping_pairs

#: Below this IoU a box has nothing to do with an object.
NEAR = 0.1


class Kind(IntEnum):
    """What a detection is, or (missed) what becomes of an object."""

    CORRECT = 0
    MISSED = 1
    BACKGROUND = 2
    LOCALISATION = 3
    CLASS = 4
    DUPLICATE = 5
    IGNORED = 6


#: The kinds of error, in the order they are shown in.
ERRORS = (Kind.MISSED, Kind.BACKGROUND, Kind.LOCALISATION, Kind.CLASS, Kind.DUPLICATE)

#: What each kind means, for readers of a report.
DEFINITIONS = {
    Kind.CORRECT: "found an object: right class, IoU of 0.5 or more, and no detection of higher score found it",
    Kind.MISSED: "an object that no detection found, and that no class or localisation error is on",
    Kind.BACKGROUND: "a detection on nothing: IoU below 0.1 with every object",
    Kind.LOCALISATION: "right class, but the box is off: IoU between 0.1 and 0.5",
    Kind.CLASS: "on an object of another class",
    Kind.DUPLICATE: "on an object that a detection of higher score has found",
    Kind.IGNORED: "on a crowd, where detections count neither as right nor as wrong",
}


@dataclass(frozen=True)
class Errors:
    """Detections and objects with the kind of error they are.

    Attributes:
        matches: What was judged.
        kind: What each detection is, int64 [D]; never ``MISSED``.
        target: Row of the object that the kind speaks of, -1 for background and crowds, int64 [D].
        iou: IoU with that object; for background the highest with any, float64 [D].
        found_at: Score of the detection that found each object, -inf if none did, float64 [G].
        covered_at: Highest score of a localisation or class error on each object, -inf if there is none, float64 [G].
    """

    matches: Matches
    kind: NDArray[np.int64]
    target: NDArray[np.int64]
    iou: NDArray[np.float64]
    found_at: NDArray[np.float64]
    covered_at: NDArray[np.float64]

    def counts(self, thresholds: NDArray[np.float64]) -> dict[Kind, NDArray[np.int64]]:
        """How many there are of each kind (correct ones too) when scores from a threshold on are kept, [S] each.

        Args:
            thresholds: The thresholds, [S], in any order.
        """
        scores = self.matches.detections.scores
        found: dict[Kind, NDArray[np.int64]] = {}
        for kind in (Kind.CORRECT, *ERRORS):
            if kind is Kind.MISSED:
                known = np.sort(np.maximum(self.found_at, self.covered_at)[~self.matches.objects.crowd])
                found[kind] = np.searchsorted(known, thresholds, side="left")
            else:
                known = np.sort(scores[self.kind == kind])
                found[kind] = len(known) - np.searchsorted(known, thresholds, side="left")
        return found

    def by_class(self, threshold: float, classes: int) -> dict[Kind, NDArray[np.int64]]:
        """How many errors of each kind are of each class: a detection's own, a missed object's own, [C] each.

        Args:
            threshold: Scores from here on are kept.
            classes: The number of classes.
        """
        matches = self.matches
        kept = matches.detections.scores >= threshold
        missed = (np.maximum(self.found_at, self.covered_at) < threshold) & ~matches.objects.crowd
        labels = {
            kind: matches.objects.labels[missed]
            if kind is Kind.MISSED
            else matches.detections.labels[kept & (self.kind == kind)]
            for kind in (Kind.CORRECT, *ERRORS)
        }
        return {kind: np.bincount(rows, minlength=classes) for kind, rows in labels.items()}

    def confusions(self, threshold: float, classes: int) -> list[tuple[int, int, int]]:
        """Class errors as (class of the object, class it was taken for, how often), most frequent first.

        Args:
            threshold: Scores from here on are kept.
            classes: The number of classes.
        """
        rows = np.flatnonzero((self.kind == Kind.CLASS) & (self.matches.detections.scores >= threshold))
        truth, taken_for = self.matches.objects.labels[self.target[rows]], self.matches.detections.labels[rows]
        pairs, counts = np.unique(truth * classes + taken_for, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [(int(pairs[i]) // classes, int(pairs[i]) % classes, int(counts[i])) for i in order]


def classify(matches: Matches) -> Errors:
    """Say of each detection what kind of error it is, if it is one.

    Args:
        matches: Detections matched with objects at IoU 0.5.
    """
    detections, objects = matches.detections, matches.objects
    rows, columns, overlap = overlapping_pairs(detections, objects, same_class=False)
    other_iou, other_object = _best_of_another_class(matches, rows, columns, overlap)
    own_iou, own_object = matches.best_iou, matches.best_object
    decided = [
        (matches.correct, Kind.CORRECT, matches.matched),
        (matches.ignored, Kind.IGNORED, np.full(len(detections), -1)),
        (own_iou >= matches.iou, Kind.DUPLICATE, own_object),
        (other_iou >= matches.iou, Kind.CLASS, other_object),
        (own_iou >= NEAR, Kind.LOCALISATION, own_object),
        (other_iou >= NEAR, Kind.CLASS, other_object),
    ]
    conditions = [condition for condition, _, _ in decided]
    kind = np.select(conditions, [int(name) for _, name, _ in decided], int(Kind.BACKGROUND)).astype(np.int64)
    target = np.select(conditions, [rows for *_, rows in decided], -1).astype(np.int64)
    iou = np.where(kind == Kind.CLASS, other_iou, own_iou)
    iou = np.where(np.isin(kind, (Kind.BACKGROUND, Kind.IGNORED)), np.maximum(own_iou, other_iou), iou)
    taken = columns == matches.matched[rows]
    iou[rows[taken]] = overlap[taken]

    found_at = np.append(detections.scores, -np.inf)[matches.found_by]
    covered_at = np.full(len(objects), -np.inf)
    partly = np.isin(kind, (Kind.LOCALISATION, Kind.CLASS))
    np.maximum.at(covered_at, target[partly], detections.scores[partly])
    return Errors(matches, kind, target, iou, found_at, covered_at)


def _best_of_another_class(
    matches: Matches, rows: NDArray[np.int64], columns: NDArray[np.int64], overlap: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Each detection's highest IoU with an object of another class, crowds aside, and that object's row or -1."""
    detections, objects = matches.detections, matches.objects
    keep = (detections.labels[rows] != objects.labels[columns]) & ~objects.crowd[columns]
    rows, columns, overlap = rows[keep], columns[keep], overlap[keep]
    order = np.lexsort((overlap, rows))  # assigned in this order, the last of a row stays: its best
    best_iou, best_object = np.zeros(len(detections)), np.full(len(detections), -1, dtype=np.int64)
    best_iou[rows[order]], best_object[rows[order]] = overlap[order], columns[order]
    return best_iou, best_object


def ap50_gains(errors: Errors, classes: int) -> dict[Kind, float | None]:
    """By how much AP50 (in percent) would rise if all errors of one kind were put right, the others left as they are.

    Putting right means: a background or duplicate detection disappears; a localisation or class error becomes the
    finder of its object, or disappears if that object has one already or another error of the kind with a higher
    score; a missed object is not counted. "Missed" is an object with no detection at any score here. None where
    AP is not defined, that is without objects.

    Args:
        errors: The errors.
        classes: The number of classes.
    """
    matches = errors.matches
    detections, objects = matches.detections, matches.objects
    counted, wanted = ~matches.ignored, ~objects.crowd
    labels, correct = detections.labels, matches.correct
    number = np.bincount(objects.labels[wanted], minlength=classes)
    now = _ap50(detections.scores, labels, correct, counted, number)
    gains: dict[Kind, float | None] = {}
    for kind in ERRORS:
        then_number, then_labels, then_correct, then_counted = number, labels, correct, counted
        wrong = errors.kind == kind
        if kind is Kind.MISSED:
            missed = wanted & (matches.found_by < 0) & np.isneginf(errors.covered_at)
            then_number = number - np.bincount(objects.labels[missed], minlength=classes)
        elif kind in (Kind.BACKGROUND, Kind.DUPLICATE):
            then_counted = counted & ~wrong
        else:
            mended = _finders(errors, wrong)
            then_counted, then_correct, then_labels = counted & (~wrong | mended), correct | mended, labels.copy()
            then_labels[mended] = objects.labels[errors.target[mended]]
        then = _ap50(detections.scores, then_labels, then_correct, then_counted, then_number)
        gains[kind] = None if now is None or then is None else then - now
    return gains


def _finders(errors: Errors, wrong: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which of some wrong detections would find an object: the best of each object that nobody has found."""
    scores = errors.matches.detections.scores
    rows = np.flatnonzero(wrong)
    rows = rows[errors.matches.found_by[errors.target[rows]] < 0]
    rows = rows[np.argsort(-scores[rows], kind="stable")]
    _, first = np.unique(errors.target[rows], return_index=True)
    finders = np.zeros(len(scores), dtype=np.bool_)
    finders[rows[first]] = True
    return finders


def _ap50(
    scores: NDArray[np.float64],
    labels: NDArray[np.int64],
    correct: NDArray[np.bool_],
    counted: NDArray[np.bool_],
    number: NDArray[np.int64],
) -> float | None:
    """COCO's AP at the matches' IoU in percent, over the classes that have objects."""
    levels = np.linspace(0, 1, 101)
    rows = np.flatnonzero(counted)
    rows = rows[np.lexsort((-scores[rows], labels[rows]))]
    ends = np.cumsum(np.bincount(labels[rows], minlength=len(number)))[:-1]
    each = []
    for hits, objects in zip(np.split(correct[rows], ends), number, strict=True):
        if objects <= 0:
            continue
        found = np.cumsum(hits)
        precision = np.maximum.accumulate((found / np.arange(1, len(hits) + 1))[::-1])[::-1]
        places = np.searchsorted(found / objects, levels, side="left")
        each.append(np.append(precision, 0.0)[places].mean())
    return 100 * float(np.mean(each)) if each else None
