"""Error types of detections, missed objects, and the cost of each type in AP.

The kinds are those of TIDE (Bolya et al., "TIDE: A General Toolbox for Identifying Object Detection Errors", ECCV
2020), with its two thresholds. A detection that found no object (matched as COCO does, at IoU 0.5) is the first of
these that holds:

    localisation   0.1 <= IoU < 0.5 with the nearest object of its class
    class          IoU >= 0.5 with an object of another class
    duplicate      IoU >= 0.5 with an object of its class, which a detection of higher score has found
    both           IoU >= 0.1 with an object of another class: wrong class and wrong box
    background     IoU < 0.1 with every object

An object is **missed** when no detection that is kept found it, and none that is kept is a localisation or class error
on it. Detections on crowds are not errors, and crowds are not missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rankwise.evaluation.coco import coco_eval
from rankwise.evaluation.matching import Matches, overlapping_pairs

#: Below this IoU, a box does not belong to an object.
NEAR = 0.1


class Kind(IntEnum):
    """The type of a detection, or (missed) of an object."""

    CORRECT = 0
    MISSED = 1
    BACKGROUND = 2
    LOCALISATION = 3
    CLASS = 4
    BOTH = 5
    DUPLICATE = 6
    IGNORED = 7


#: The error types, in the order of display.
ERRORS = (Kind.MISSED, Kind.BACKGROUND, Kind.LOCALISATION, Kind.CLASS, Kind.BOTH, Kind.DUPLICATE)

#: Their names in hotcoco.
_TIDE = dict(zip(ERRORS, ("Miss", "Bkg", "Loc", "Cls", "Both", "Dupe"), strict=True))

#: Descriptions of the types for the report.
DEFINITIONS = {
    Kind.CORRECT: "found an object: right class, IoU of 0.5 or more, and no detection of higher score found it",
    Kind.MISSED: "an object that no detection found, and that no class or localisation error is on",
    Kind.BACKGROUND: "a detection on nothing: IoU below 0.1 with every object",
    Kind.LOCALISATION: "right class, but the box is off: IoU between 0.1 and 0.5",
    Kind.CLASS: "on an object of another class, with an IoU of 0.5 or more",
    Kind.BOTH: "near an object of another class: IoU between 0.1 and 0.5, so class and box are wrong",
    Kind.DUPLICATE: "on an object that a detection of higher score has found",
    Kind.IGNORED: "on a crowd, where detections count neither as right nor as wrong",
}


@dataclass(frozen=True)
class Errors:
    """Detections and objects with their error types.

    Attributes:
        matches: The matches.
        kind: The type of each detection, int64 [D]; never ``MISSED``.
        target: Row of the object that the type refers to, -1 for background and crowds, int64 [D].
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
        """The number of each type (including correct ones) at each threshold, [S] each.

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
        """The number of errors of each type per class, [C] each.

        Args:
            threshold: The minimum score.
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
            threshold: The minimum score.
            classes: The number of classes.
        """
        rows = np.flatnonzero((self.kind == Kind.CLASS) & (self.matches.detections.scores >= threshold))
        truth, taken_for = self.matches.objects.labels[self.target[rows]], self.matches.detections.labels[rows]
        pairs, counts = np.unique(truth * classes + taken_for, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [(int(pairs[i]) // classes, int(pairs[i]) % classes, int(counts[i])) for i in order]


def classify(matches: Matches) -> Errors:
    """Determines the error type of each detection.

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
        ((own_iou >= NEAR) & (own_iou < matches.iou), Kind.LOCALISATION, own_object),
        (other_iou >= matches.iou, Kind.CLASS, other_object),
        (own_iou >= matches.iou, Kind.DUPLICATE, own_object),
        (other_iou >= NEAR, Kind.BOTH, other_object),
    ]
    conditions = [condition for condition, _, _ in decided]
    kind = np.select(conditions, [int(name) for _, name, _ in decided], int(Kind.BACKGROUND)).astype(np.int64)
    target = np.select(conditions, [rows for *_, rows in decided], -1).astype(np.int64)
    iou = np.where(np.isin(kind, (Kind.CLASS, Kind.BOTH)), other_iou, own_iou)
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
    """The increase in AP50 (in percent) if all errors of one type were corrected, as defined by TIDE.

    None if AP is undefined, that is without objects.

    Args:
        errors: The errors.
        classes: The number of classes.
    """
    detections, objects = errors.matches.detections, errors.matches.objects
    if objects.crowd.all():
        return dict.fromkeys(ERRORS)
    image_ids = np.unique(np.concatenate([detections.image_ids, objects.image_ids]))
    gains = coco_eval(image_ids, objects, detections, classes).tide_errors(errors.matches.iou, NEAR)["delta_ap"]
    return {kind: 100 * float(gains[name]) for kind, name in _TIDE.items()}
