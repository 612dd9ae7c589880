"""The numbers of a report as plain values for JSON, reduced to the size of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwise.evaluation.coco import Evaluation
from rankwise.evaluation.correlation import localized, score_quartiles
from rankwise.evaluation.thresholds import Threshold, sweep
from rankwise.files.parsing import is_number
from rankwise.report.error_types import ERRORS, Errors, ErrorType

#: Approximate number of thresholds on a slider.
THRESHOLDS = 300

#: Maximum number of points of a training curve; longer curves are averaged in blocks.
POINTS = 400

#: The IoUs of the precision-recall curves, and the step between the recall levels of COCO that they show.
IOUS, RECALL_STEP = (0.5, 0.75, 0.9), 2

#: Number of bins per axis in the density of score and IoU.
BINS = 28

#: Lower limits of the object sizes for recall by size, √area in pixels. COCO's small objects end at 32, medium at 96.
SIZES = (0, 16, 32, 64, 96, 192, 384)

#: Entries of metrics.jsonl that are not curves.
_NO_CURVE = {"step", "epoch", "skipped", "seconds"}


def rounded_score(score: float) -> float:
    """A score with seven significant digits, the precision of a float32, so that equal scores remain equal in JSON."""
    return float(f"{score:.7g}")


def flat_recipe(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A recipe as a flat dict with keys such as ``model.head.depth``; classes become their names, lists stay lists."""
    flat: dict[str, Any] = {}
    for key, value in recipe.items():
        if key == "class_path":
            flat[prefix.rstrip(".")] = str(value).rpartition(".")[2]
        elif isinstance(value, Mapping) and value:
            flat |= flat_recipe(value, prefix if key == "init_args" else f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def training_curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Every logged number in the lines of ``metrics.jsonl`` by step: ``{"x": steps, "y": values}`` by name.

    If a step occurs twice, as in a resumed run, the later line is used.
    """
    found: dict[str, dict[float, float]] = {}
    for row in metrics:
        if row.get("kind") not in ("train", "eval"):
            continue
        for name, value in row.items():
            if is_number(value) and name not in _NO_CURVE:
                found.setdefault(name, {})[row["step"]] = value
    return {name: _averaged(dict(sorted(values.items()))) for name, values in found.items()}


def _averaged(values: Mapping[float, float]) -> dict[str, list[float]]:
    """A curve with at most :data:`POINTS` points, each the mean of a block."""
    steps, heights = np.asarray(list(values)), np.asarray(list(values.values()), dtype=np.float64)
    blocks = np.array_split(np.arange(len(steps)), min(len(steps), POINTS))
    x = [float(round(steps[block].mean())) for block in blocks]
    return {"x": x, "y": [float(f"{heights[block].mean():.5g}") for block in blocks]}


def summary(evaluation: Evaluation) -> dict[str, Any]:
    """The COCO metrics, the counts, and the threshold with the best F1."""
    counts = {name: getattr(evaluation, name) for name in ("images", "objects", "detections")}
    best = _threshold(evaluation.thresholds.overall)
    return evaluation.summary() | counts | {"localized": evaluation.correlation.n, "threshold": best}


def class_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """One row per class: name, objects, AP, and its best threshold."""
    counts = evaluation.matches.objects.per_class(len(evaluation.per_class)).tolist()
    return [
        {"name": name, "objects": count, "ap": ap} | _threshold(evaluation.thresholds.per_class[name])
        for (name, ap), count in zip(evaluation.per_class.items(), counts, strict=True)
    ]


def _threshold(best: Threshold) -> dict[str, float | None]:
    return {"score": rounded_score(best.score), "f1": best.f1, "precision": best.precision, "recall": best.recall}


def precision_recall(evaluation: Evaluation) -> dict[str, Any]:
    """Precision in thousandths by recall, for each IoU: the mean over the classes, and each class.

    The curve of a class without objects is None.
    """
    curves = evaluation.curves
    at = np.stack([curves.at(iou)[::RECALL_STEP] for iou in IOUS])  # [T, R, C]
    defined = np.isfinite(at).any(axis=(0, 1)).reshape(-1)
    mean = at[..., defined].mean(axis=2) if defined.any() else np.full(at.shape[:2], np.nan)
    return {
        "ious": list(IOUS),
        "recall": curves.recall[::RECALL_STEP].round(3).tolist(),
        "mean": _thousandths(mean) if defined.any() else None,
        "classes": [_thousandths(at[..., label]) if defined[label] else None for label in range(at.shape[2])],
    }


def _thousandths(values: NDArray[np.float64]) -> list[list[int]]:
    return (1000 * np.nan_to_num(values)).round().astype(int).tolist()


def threshold_sweep(evaluation: Evaluation, errors: Errors) -> dict[str, Any]:
    """Precision, recall, F1, errors by type and detected objects by size, at thresholds in ascending order.

    Half of the thresholds are evenly spaced in score, the other half in the number of detections above them. The
    threshold with the best F1 is always among them, even if there are no detections.
    """
    values, best = sweep(evaluation.matches), evaluation.thresholds.overall.score
    if not len(values.scores):
        scores = np.asarray([best])
        heights: dict[str, list[Any]] = {"precision": [None], "recall": [0.0], "f1": [0.0]}
    else:
        every = values.scores[::-1]
        even = np.searchsorted(every, np.linspace(every[0], every[-1], THRESHOLDS // 2))
        by_rank = np.linspace(0, len(every) - 1, THRESHOLDS // 2).round().astype(np.int64)
        rows = len(every) - 1 - np.unique(np.concatenate([even, by_rank, [np.searchsorted(every, best)]]))
        scores = values.scores[rows]
        heights = {name: getattr(values, name)[rows].round(4).tolist() for name in ("precision", "recall", "f1")}
    counts = errors.counts(scores)
    return (
        {"scores": [rounded_score(score) for score in scores]}
        | heights
        | {error_type.name.lower(): counts[error_type].tolist() for error_type in (ErrorType.CORRECT, *ERRORS)}
        | {"sizes": _found_by_size(errors, scores)}
    )


def _found_by_size(errors: Errors, scores: NDArray[np.float64]) -> dict[str, Any]:
    """The number of objects in each size range, and how many of them are detected at each threshold."""
    objects = errors.matches.objects
    wanted = ~objects.crowd
    size = np.searchsorted(SIZES, np.sqrt(objects.area[wanted]), side="right") - 1
    found_at = [np.sort(errors.found_at[wanted][size == index]) for index in range(len(SIZES))]
    return {
        "limits": SIZES,
        "objects": [len(known) for known in found_at],
        "found": [(len(known) - np.searchsorted(known, scores)).tolist() for known in found_at],
    }


def score_density(evaluation: Evaluation) -> dict[str, Any]:
    """A histogram of raw score and IoU of well-localized detections, with the quartiles of the score by IoU.

    ``cells`` are (IoU bin, score bin, count), with IoU from 0.5 to 1 and scores from ``low`` to ``high``; empty bins
    are left out. ``quartiles`` are (IoU, 25 %, 50 %, 75 %).
    """
    scores, ious = localized(evaluation.raw_matches, above=0.5)
    if not len(scores):
        return {"low": 0, "high": 1, "cells": [], "quartiles": []}
    low, high = float(scores.min()), float(scores.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts, _, _ = np.histogram2d(ious, scores, bins=BINS, range=((0.5, 1), (low, high)))
    columns, rows = np.nonzero(counts)
    return {
        "low": low,
        "high": high,
        "cells": np.stack([columns, rows, counts[columns, rows]], axis=1).astype(int).tolist(),
        "quartiles": [[round(iou, 3), *map(rounded_score, row)] for iou, *row in score_quartiles(scores, ious)],
    }


def reliability(evaluation: Evaluation) -> dict[str, Any] | None:
    """Calibration errors, and for each nonempty bin the mean score, the fraction of correct detections and the count.

    None if scores are raw.
    """
    check = evaluation.reliability
    if check is None:
        return None
    found: dict[str, Any] = {"cross_fitted": check.cross_fitted}
    for name, one in (("raw", check.before), ("calibrated", check.after)):
        rows = [
            [round(score, 4), round(precision, 4), count]
            for score, precision, count in zip(one.score, one.precision, one.count, strict=True)
            if count
        ]
        found[name] = {"ece": one.ece, "laece": one.laece, "bins": rows}
    return found


def error_numbers(errors: Errors, evaluation: Evaluation, gains: Mapping[ErrorType, float | None]) -> dict[str, Any]:
    """The cost of each error type in AP50, and errors by class and frequent confusions at the best threshold."""
    classes, threshold = len(evaluation.per_class), evaluation.thresholds.overall.score
    by_class = errors.by_class(threshold, classes)
    return {
        "gains": {error_type.name.lower(): gain for error_type, gain in gains.items()},
        "by_class": {error_type.name.lower(): counts.tolist() for error_type, counts in by_class.items()},
        "confusions": errors.confusions(threshold, classes)[:6],
    }
