"""Matching of detections with objects by COCO's rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rankwise.evaluation.tables import DetectionTable, ObjectTable
from rankwise.numpy_boxes import paired_iou


@dataclass(frozen=True)
class Matches:
    """Detections matched with objects at one IoU.

    Attributes:
        detections: The detections, D rows.
        objects: The ground truth, G rows.
        iou: The minimum IoU of a match.
        matched: Row of the object matched by each detection, -1 for none, int64 [D].
        ignored: Detections on crowd regions, which count neither as correct nor as wrong, bool [D].
        found_by: Row of the detection matched with each object, -1 for none, int64 [G].
        best_iou: Highest IoU of each detection with an object of its class, matched or not, without crowd regions,
            float64 [D].
        best_object: Row of that object, -1 if no such object overlaps, int64 [D].
    """

    detections: DetectionTable
    objects: ObjectTable
    iou: float
    matched: NDArray[np.int64]
    ignored: NDArray[np.bool_]
    found_by: NDArray[np.int64]
    best_iou: NDArray[np.float64]
    best_object: NDArray[np.int64]

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Which detections are true positives, bool [D]."""
        return self.matched >= 0

    def rescored(self, scores: NDArray[np.float64]) -> Matches:
        """The same matches with new scores that keep the order within each class, sorted by them.

        Args:
            scores: The new score of each detection, [D].
        """
        old = self.detections
        order = np.lexsort((-scores, old.image_ids))
        new_row = np.empty(len(order), dtype=np.int64)
        new_row[order] = np.arange(len(order))
        return replace(
            self,
            detections=replace(old, scores=scores).rows(order),
            matched=self.matched[order],
            ignored=self.ignored[order],
            found_by=np.append(new_row, -1)[self.found_by],
            best_iou=self.best_iou[order],
            best_object=self.best_object[order],
        )


def match(detections: DetectionTable, objects: ObjectTable, iou: float = 0.5) -> Matches:
    """Matches detections with objects greedily, as in COCO.

    Within an image and a class, in descending order of score, each detection is matched with the free object that it
    overlaps most, if the IoU is at least ``iou``. An unmatched detection with at least that fraction of its area in a
    crowd box is ignored. The number of detections per image is not limited here.

    Args:
        detections: From :func:`rankwise.evaluation.tables.detection_table`.
        objects: From :func:`rankwise.evaluation.tables.object_table`.
        iou: The minimum IoU of a match.
    """
    iou = min(iou, 1 - 1e-10)  # as in COCO: a perfect box matches at IoU 1 despite rounding
    rows, columns, overlap = overlapping_pairs(detections, objects)
    ignored = np.zeros(len(detections), dtype=np.bool_)
    on_crowd = objects.crowd[columns]
    ignored[rows[on_crowd & (overlap >= iou)]] = True
    rows, columns, overlap = rows[~on_crowd], columns[~on_crowd], overlap[~on_crowd]

    # Sorted by detection, then by IoU; the later object wins ties, as in COCO. The last entry of a detection is its
    # best.
    order = np.lexsort((columns, overlap, rows))
    rows, columns, overlap = rows[order], columns[order], overlap[order]
    last = np.flatnonzero(np.append(rows[1:] != rows[:-1], True)) if len(rows) else np.zeros(0, dtype=np.int64)
    best_iou = np.zeros(len(detections))
    best_object = np.full(len(detections), -1, dtype=np.int64)
    best_iou[rows[last]], best_object[rows[last]] = overlap[last], columns[last]

    enough = overlap >= iou
    matched, found_by = _match_greedily(detections, objects, rows[enough], columns[enough])
    ignored &= matched < 0
    return Matches(detections, objects, iou, matched, ignored, found_by, best_iou, best_object)


def overlapping_pairs(
    detections: DetectionTable, objects: ObjectTable, same_class: bool = True, at_once: int = 1 << 21
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """All overlapping pairs of a detection and an object of the same image: their rows and the IoU.

    For a crowd box, the IoU is the fraction of the detection inside it. ``at_once`` pairs are compared at a time, to
    limit memory.
    """
    order, start, count = _objects_of_detections(detections, objects, same_class)
    ends = np.cumsum(count)
    found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
    first = 0
    while first < len(count):
        done = ends[first - 1] if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, done + at_once, side="right")))
        counts = count[first:stop]
        rows = np.repeat(np.arange(first, stop), counts)
        offset = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        columns = order[start[rows] + offset]
        overlap = paired_iou(detections.boxes[rows], objects.boxes[columns], objects.crowd[columns])
        keep = overlap > 0
        found.append((rows[keep], columns[keep], overlap[keep]))
        first = stop
    if not found:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    rows, columns, overlap = (np.concatenate(part) for part in zip(*found, strict=True))
    return rows, columns, overlap


def _objects_of_detections(
    detections: DetectionTable, objects: ObjectTable, same_class: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Objects grouped by image (and class): their order, and the offset and count for each detection."""
    _, image = np.unique(np.concatenate([objects.image_ids, detections.image_ids]), return_inverse=True)
    group = image.astype(np.int64)
    if same_class:
        labels = np.concatenate([objects.labels, detections.labels])
        group = group * (labels.max(initial=0) + 1) + labels
    of_objects, of_detections = group[: len(objects)], group[len(objects) :]
    order = np.argsort(of_objects, kind="stable")
    start = np.searchsorted(of_objects[order], of_detections, side="left")
    stop = np.searchsorted(of_objects[order], of_detections, side="right")
    return order, start, stop - start


def _match_greedily(
    detections: DetectionTable, objects: ObjectTable, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Matches each detection with its best free object; the pairs are sorted by detection, best last.

    The first detections of all images and classes are matched at once, then all second ones, and so on. Groups share no
    objects, so the order within each group is respected.
    """
    matched = np.full(len(detections), -1, dtype=np.int64)
    found_by = np.full(len(objects), -1, dtype=np.int64)
    if not len(rows):
        return matched, found_by
    candidates, candidate = np.unique(rows, return_inverse=True)
    image, label = detections.image_ids[candidates], detections.labels[candidates]
    # Detections are sorted by image and descending score, so a stable sort by class keeps the order of each group.
    order = np.lexsort((np.arange(len(candidates)), label, image))
    new_group = np.append(True, (np.diff(image[order]) != 0) | (np.diff(label[order]) != 0))
    begins = np.maximum.accumulate(np.where(new_group, np.arange(len(order)), 0))
    turn = np.empty(len(candidates), dtype=np.int64)
    turn[order] = np.arange(len(order)) - begins

    by_turn = np.argsort(turn[candidate], kind="stable")
    limits = np.append(0, np.cumsum(np.bincount(turn[candidate])))
    for begin, end in pairwise(limits):
        pairs = by_turn[begin:end]
        pairs = pairs[found_by[columns[pairs]] < 0]
        matched[rows[pairs]] = columns[pairs]  # of several pairs of a detection, the last one written is its best
        taken = np.unique(rows[pairs])
        found_by[matched[taken]] = taken
    return matched, found_by
