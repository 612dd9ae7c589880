"""The images of a report: those with the most errors, reduced in size, with all boxes and their error types."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rankwise.data.dataset import DetectionDataset
from rankwise.errors import DataError
from rankwise.report.error_types import Errors, ErrorType
from rankwise.report.numbers import rounded_score
from rankwise.report.runs import RunData

#: Longer side of an image in pixels, and its JPEG quality.
SIDE, QUALITY = 512, 82

#: Maximum number of bytes of all images together, before base64 encoding.
BUDGET = 3_000_000

#: Maximum number of detections per image; those with the highest scores are kept.
MAX_DETECTIONS = 100


def image_errors(run: RunData) -> NDArray[np.int64]:
    """The number of errors of each image at the threshold with the best F1, in the order of the dataset."""
    errors, threshold = run.errors, run.evaluation.thresholds.overall.score
    matches = errors.matches
    wrong = ~np.isin(errors.types, (ErrorType.CORRECT, ErrorType.IGNORED)) & (matches.detections.scores >= threshold)
    missed = matches.objects.image_ids[errors.missed(threshold)]
    number_of = Counter([*matches.detections.image_ids[wrong].tolist(), *missed.tolist()])
    return np.asarray([number_of[record.image_id] for record in run.dataset.records], dtype=np.int64)


def choose_images(runs: Sequence[RunData], limit: int) -> list[int]:
    """Indices of the images with the most errors over all runs on the same dataset, in descending order."""
    total = np.sum([image_errors(run) for run in runs], axis=0)
    return np.argsort(-total, kind="stable")[:limit].tolist()


def picture_rows(dataset: DetectionDataset, indices: Sequence[int], budget: int = BUDGET) -> list[dict[str, Any]]:
    """Images as data URIs with their objects, the first ones first, until the budget of bytes is used up.

    An unreadable image is replaced by the error; its boxes are still listed.
    """
    rows: list[dict[str, Any]] = []
    for index in indices:
        record = dataset.records[index]
        source, fault = None, None
        try:
            jpeg = _jpeg(dataset, index)
        except (DataError, OSError) as error:
            fault = str(error)
        else:
            budget -= len(jpeg)
            if budget < 0 and rows:
                break
            source = "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")
        objects = zip(record.boxes.tolist(), record.labels.tolist(), record.iscrowd.tolist(), strict=True)
        rows.append(
            {
                "id": record.image_id,
                "name": record.name,
                "width": record.width,
                "height": record.height,
                "src": source,
                "fault": fault,
                "objects": [[*_pixels(box), label, int(crowd)] for box, label, crowd in objects],
            }
        )
    return rows


def _jpeg(dataset: DetectionDataset, index: int) -> bytes:
    image = Image.fromarray(dataset.load(index)[0].permute(1, 2, 0).numpy())
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY, optimize=True)
    return file.getvalue()


def box_rows(errors: Errors, image_id: int) -> dict[str, list[Any]]:
    """The detections and objects of an image, as rows for JSON.

    ``detections``: x1, y1, x2, y2, score, label, type, IoU, and the index of the object that the type refers to (-1 for
    none), in descending order of score. ``objects``: the score of the detection that matches each object, and the
    highest score of a class or localization error that refers to it; None if there is none.
    """
    table, objects = errors.matches.detections, errors.matches.objects
    first, stop = np.searchsorted(table.image_ids, (image_id, image_id + 1))
    first_object, stop_object = np.searchsorted(objects.image_ids, (image_id, image_id + 1))
    detections = []
    for row in range(first, min(stop, first + MAX_DETECTIONS)):
        target = int(errors.target[row])
        detections.append(
            [
                *_pixels(table.boxes[row].tolist()),
                rounded_score(table.scores[row]),
                int(table.labels[row]),
                int(errors.types[row]),
                round(float(errors.iou[row]), 3),
                target - int(first_object) if target >= 0 else -1,
            ]
        )
    known = zip(errors.found_at[first_object:stop_object], errors.covered_at[first_object:stop_object], strict=True)
    return {
        "detections": detections,
        "objects": [[rounded_score(at) if np.isfinite(at) else None for at in pair] for pair in known],
    }


def _pixels(box: Sequence[float]) -> list[float]:
    return [round(value, 1) for value in box]
