"""The images of a report: the worst ones, small enough for a page, with all boxes and what became of each."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rankwise.data.dataset import DetectionDataset
from rankwise.errors import DataError
from rankwise.report.error_types import Errors, Kind
from rankwise.report.numbers import score_text
from rankwise.report.runs import RunData

#: Longest side of a picture in pixels, and its JPEG quality: enough to see what is wrong.
SIDE, QUALITY = 512, 82

#: All pictures together take at most this many bytes, before they are written as text.
BUDGET = 3_000_000

#: Of an image, so many detections with the highest scores are in the page.
DETECTIONS = 100


def image_errors(run: RunData) -> NDArray[np.int64]:
    """How many errors each image has at the run's chosen threshold, in the order of the dataset."""
    errors, threshold = run.errors, run.evaluation.thresholds.overall.score
    matches = errors.matches
    wrong = ~np.isin(errors.kind, (Kind.CORRECT, Kind.IGNORED)) & (matches.detections.scores >= threshold)
    missed = (np.maximum(errors.found_at, errors.covered_at) < threshold) & ~matches.objects.crowd
    where = np.concatenate([matches.detections.image_ids[wrong], matches.objects.image_ids[missed]])
    ids, counts = np.unique(where, return_counts=True)
    number = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    return np.asarray([number.get(record.image_id, 0) for record in run.dataset.records], dtype=np.int64)


def choose_images(runs: Sequence[RunData], limit: int) -> list[int]:
    """Indices of the images with most errors over all runs, worst first, at most ``limit``.

    Args:
        runs: Runs on the same dataset.
        limit: The most images.
    """
    total = np.sum([image_errors(run) for run in runs], axis=0)
    return np.argsort(-total, kind="stable")[:limit].tolist()


def picture_rows(dataset: DetectionDataset, indices: Sequence[int], budget: int = BUDGET) -> list[dict[str, Any]]:
    """The pictures as data URIs with their objects, until the budget is used up.

    An image that cannot be read any more has no picture, its boxes are there all the same.

    Args:
        dataset: Where they come from.
        indices: Which, the most important first.
        budget: Bytes for all.
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
    """What a run made of an image, as short rows.

    ``detections``: x1, y1, x2, y2, score, label, kind, IoU, and which object of the image the kind speaks of (-1 none),
    by falling score. ``objects``: for each object of the image the score at which it is found and at which a class or
    localisation error is on it, None for never.

    Args:
        errors: The run's errors.
        image_id: The image.
    """
    table, objects = errors.matches.detections, errors.matches.objects
    first, stop = np.searchsorted(table.image_ids, (image_id, image_id + 1))
    first_object, stop_object = np.searchsorted(objects.image_ids, (image_id, image_id + 1))
    detections = []
    for row in range(first, min(stop, first + DETECTIONS)):
        target = int(errors.target[row])
        detections.append(
            [
                *_pixels(table.boxes[row].tolist()),
                score_text(table.scores[row]),
                int(table.labels[row]),
                int(errors.kind[row]),
                round(float(errors.iou[row]), 3),
                target - int(first_object) if target >= 0 else -1,
            ]
        )
    known = zip(errors.found_at[first_object:stop_object], errors.covered_at[first_object:stop_object], strict=True)
    return {
        "detections": detections,
        "objects": [[score_text(at) if np.isfinite(at) else None for at in pair] for pair in known],
    }


def _pixels(box: Sequence[float]) -> list[float]:
    return [round(value, 1) for value in box]
