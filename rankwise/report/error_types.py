"""Error types of detections, missed objects, and the cost of each type in AP.

The types are those of TIDE (Bolya et al., "TIDE: A General Toolbox for Identifying Object Detection Errors", ECCV
2020), with its two thresholds. Detections are matched with objects by COCO's rules at IoU 0.5. An unmatched detection
has the first type that applies:

    localization   0.1 <= IoU < 0.5 with the nearest object of its class
    class          IoU >= 0.5 with an object of another class
    duplicate      IoU >= 0.5 with an object of its class that a detection with a higher score already matched
    both           IoU >= 0.1 with an object of another class: wrong class and wrong box
    background     IoU < 0.1 with every object

An object is **missed** if no detection above the threshold matches it, and no localization or class error above the
threshold refers to it. Detections on crowd regions are not errors, and crowd regions cannot be missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rankwise.evaluation.coco import coco_eval
from rankwise.evaluation.matching import Matches, overlapping_pairs

#: A box with a lower IoU than this has nothing to do with an object.
NEAR = 0.1


class ErrorType(IntEnum):
    """The type of a detection; ``MISSED`` is the type of an object."""

    CORRECT = 0
    MISSED = 1
    BACKGROUND = 2
    LOCALIZATION = 3
    LOCALISATION = 3  # the spelling of earlier versions
    CLASS = 4
    BOTH = 5
    DUPLICATE = 6
    IGNORED = 7


#: The name in earlier versions.
Kind = ErrorType

#: The error types, in the order in which the report shows them.
ERRORS = (
    ErrorType.MISSED,
    ErrorType.BACKGROUND,
    ErrorType.LOCALIZATION,
    ErrorType.CLASS,
    ErrorType.BOTH,
    ErrorType.DUPLICATE,
)

#: Their names in hotcoco.
_TIDE = dict(zip(ERRORS, ("Miss", "Bkg", "Loc", "Cls", "Both", "Dupe"), strict=True))

#: Descriptions of the types for the report.
DEFINITIONS = {
    ErrorType.CORRECT: "matches an object of its class with an IoU of at least 0.5",
    ErrorType.MISSED: "an object that no detection matches and that no class or localization error refers to",
    ErrorType.BACKGROUND: "a detection away from all objects: IoU below 0.1 with each of them",
    ErrorType.LOCALIZATION: "the correct class, but an inaccurate box: IoU between 0.1 and 0.5",
    ErrorType.CLASS: "on an object of another class, with an IoU of at least 0.5",
    ErrorType.BOTH: "near an object of another class: IoU between 0.1 and 0.5, so both class and box are wrong",
    ErrorType.DUPLICATE: "on an object that a detection with a higher score already matched",
    ErrorType.IGNORED: "on a crowd region, where detections count neither as correct nor as wrong",
}


@dataclass(frozen=True)
class Errors:
    """Detections and objects with their error types.

    Attributes:
        matches: Detections matched with objects at IoU 0.5.
        types: The type of each detection, int64 [D]; never ``MISSED``.
        target: Row of the object that the type refers to, -1 for background and crowd regions, int64 [D].
        iou: IoU with that object; for background the highest IoU with any object, float64 [D].
        found_at: Score of the detection that matches each object, -inf if none does, float64 [G].
        covered_at: Highest score of a localization or class error that refers to each object, -inf if there is none,
            float64 [G].
    """

    matches: Matches
    types: NDArray[np.int64]
    target: NDArray[np.int64]
    iou: NDArray[np.float64]
    found_at: NDArray[np.float64]
    covered_at: NDArray[np.float64]

    @property
    def kind(self) -> NDArray[np.int64]:
        """The old name of ``types``."""
        return self.types

    def counts(self, thresholds: NDArray[np.float64]) -> dict[ErrorType, NDArray[np.int64]]:
        """The number of detections or objects of each type, including correct ones, at each threshold, [S] each.

        Args:
            thresholds: The thresholds, [S], in any order.
        """
        scores = self.matches.detections.scores
        numbers: dict[ErrorType, NDArray[np.int64]] = {}
        for error_type in (ErrorType.CORRECT, *ERRORS):
            known = np.sort(scores[self.types == error_type])
            numbers[error_type] = len(known) - np.searchsorted(known, thresholds, side="left")
        known = np.sort(np.maximum(self.found_at, self.covered_at)[~self.matches.objects.crowd])
        numbers[ErrorType.MISSED] = np.searchsorted(known, thresholds, side="left")
        return numbers

    def by_class(self, threshold: float, classes: int) -> dict[ErrorType, NDArray[np.int64]]:
        """The number of detections or objects of each type per class, including correct ones, [C] each.

        Args:
            threshold: The minimum score.
            classes: The number of classes.
        """
        detections, kept = self.matches.detections, self.matches.detections.scores >= threshold
        labels = {
            error_type: detections.labels[kept & (self.types == error_type)]
            for error_type in (ErrorType.CORRECT, *ERRORS)
        }
        labels[ErrorType.MISSED] = self.matches.objects.labels[self.missed(threshold)]
        return {error_type: np.bincount(rows, minlength=classes) for error_type, rows in labels.items()}

    def missed(self, threshold: float) -> NDArray[np.bool_]:
        """Which objects are missed, bool [G].

        Args:
            threshold: The minimum score.
        """
        return (np.maximum(self.found_at, self.covered_at) < threshold) & ~self.matches.objects.crowd

    def confusions(self, threshold: float, classes: int) -> list[tuple[int, int, int]]:
        """Class errors as (class of the object, predicted class, number of errors), most frequent first.

        Args:
            threshold: The minimum score.
            classes: The number of classes.
        """
        rows = np.flatnonzero((self.types == ErrorType.CLASS) & (self.matches.detections.scores >= threshold))
        truth, predicted = self.matches.objects.labels[self.target[rows]], self.matches.detections.labels[rows]
        pairs, counts = np.unique(truth * classes + predicted, return_counts=True)
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
        (matches.correct, ErrorType.CORRECT, matches.matched),
        (matches.ignored, ErrorType.IGNORED, np.full(len(detections), -1)),
        ((own_iou >= NEAR) & (own_iou < matches.iou), ErrorType.LOCALIZATION, own_object),
        (other_iou >= matches.iou, ErrorType.CLASS, other_object),
        (own_iou >= matches.iou, ErrorType.DUPLICATE, own_object),
        (other_iou >= NEAR, ErrorType.BOTH, other_object),
    ]
    conditions = [condition for condition, _, _ in decided]
    types = np.select(conditions, [int(name) for _, name, _ in decided], int(ErrorType.BACKGROUND)).astype(np.int64)
    target = np.select(conditions, [rows for *_, rows in decided], -1).astype(np.int64)
    iou = np.where(np.isin(types, (ErrorType.CLASS, ErrorType.BOTH)), other_iou, own_iou)
    iou = np.where(np.isin(types, (ErrorType.BACKGROUND, ErrorType.IGNORED)), np.maximum(own_iou, other_iou), iou)
    of_match = columns == matches.matched[rows]
    iou[rows[of_match]] = overlap[of_match]

    found_at = np.append(detections.scores, -np.inf)[matches.found_by]
    covered_at = np.full(len(objects), -np.inf)
    covering = np.isin(types, (ErrorType.LOCALIZATION, ErrorType.CLASS))
    np.maximum.at(covered_at, target[covering], detections.scores[covering])
    return Errors(matches, types, target, iou, found_at, covered_at)


def _best_of_another_class(
    matches: Matches, rows: NDArray[np.int64], columns: NDArray[np.int64], overlap: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The highest IoU of each detection with an object of another class, and the row of that object, -1 for none.

    Crowd regions are not objects.
    """
    detections, objects = matches.detections, matches.objects
    keep = (detections.labels[rows] != objects.labels[columns]) & ~objects.crowd[columns]
    rows, columns, overlap = rows[keep], columns[keep], overlap[keep]
    order = np.lexsort((overlap, rows))  # the last assignment to a row remains, so the best pair comes last
    best_iou, best_object = np.zeros(len(detections)), np.full(len(detections), -1, dtype=np.int64)
    best_iou[rows[order]], best_object[rows[order]] = overlap[order], columns[order]
    return best_iou, best_object


def ap50_gains(errors: Errors, classes: int) -> dict[ErrorType, float | None]:
    """The increase in AP50 (in percent) if all errors of one type were corrected, as defined by TIDE.

    None if there are no objects, because AP is then undefined.
    """
    detections, objects = errors.matches.detections, errors.matches.objects
    if objects.crowd.all():
        return dict.fromkeys(ERRORS)
    image_ids = np.unique(np.concatenate([detections.image_ids, objects.image_ids]))
    gains = coco_eval(image_ids, objects, detections, classes).tide_errors(errors.matches.iou, NEAR)["delta_ap"]
    return {error_type: 100 * float(gains[name]) for error_type, name in _TIDE.items()}
