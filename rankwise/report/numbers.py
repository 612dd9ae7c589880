"""What was measured as plain values, small enough to travel inside a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwise.evaluation.coco import Evaluation
from rankwise.evaluation.correlation import localised
from rankwise.evaluation.thresholds import sweep
from rankwise.report.error_types import ERRORS, Errors, Kind

#: Thresholds a slider can take, about.
THRESHOLDS = 300

#: Points of a training curve; longer ones are averaged in blocks.
POINTS = 400

#: The IoUs that precision-recall curves are shown at, and every how many of COCO's recall levels.
IOUS, EVERY = (0.5, 0.75, 0.9), 2

#: Cells of the density of score and IoU, in each direction.
CELLS = 28

#: Limits of the sizes that found objects are counted by, √area in pixels; COCO's small end at 32, its medium at 96.
SIZES = (0, 16, 32, 64, 96, 192, 384)

#: In a line of metrics.jsonl, not a curve.
_NO_CURVE = {"step", "epoch", "skipped", "seconds"}


def score_text(score: float) -> float:
    """A score with the seven digits that a float32 holds, so that equal scores stay equal in the page."""
    return float(f"{score:.7g}")


def flat_recipe(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A recipe as one level, ``model.head.depth`` for the key; classes by their own name, lists as they are.

    Args:
        recipe: What ``recipe.yaml`` holds.
        prefix: Goes before each key.
    """
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
    """Every number that was logged, by step: name to ``{"x": steps, "y": values}``.

    Where a step is there twice, as after a resumed run, the later line counts.

    Args:
        metrics: The lines of ``metrics.jsonl``.
    """
    found: dict[str, dict[float, float]] = {}
    for row in metrics:
        step = row.get("step")
        if row.get("kind") not in ("train", "eval") or not isinstance(step, int | float):
            continue
        for name, value in row.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
            if number and name not in _NO_CURVE:
                found.setdefault(name, {})[step] = value
    return {name: _thinned(dict(sorted(values.items()))) for name, values in found.items()}


def _thinned(values: Mapping[float, float]) -> dict[str, list[float]]:
    steps, heights = np.asarray(list(values)), np.asarray(list(values.values()), dtype=np.float64)
    blocks = np.array_split(np.arange(len(steps)), min(len(steps), POINTS))
    x = [float(round(steps[block].mean())) for block in blocks]
    return {"x": x, "y": [float(f"{heights[block].mean():.5g}") for block in blocks]}


def summary(evaluation: Evaluation) -> dict[str, Any]:
    """The numbers of the COCO table and the chosen threshold."""
    best = evaluation.thresholds.overall
    counts = {name: getattr(evaluation, name) for name in ("images", "objects", "detections")}
    threshold = {"score": score_text(best.score), "f1": best.f1, "precision": best.precision, "recall": best.recall}
    return evaluation.summary() | counts | {"localised": evaluation.correlation.n, "threshold": threshold}


def class_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """A row for each class: name, objects, AP, and its own best threshold."""
    objects = evaluation.matches.objects
    counts = np.bincount(objects.labels[~objects.crowd], minlength=len(evaluation.per_class)).tolist()
    return [
        {
            "name": name,
            "objects": count,
            "ap": ap,
            "f1": cut.f1,
            "precision": cut.precision,
            "recall": cut.recall,
            "score": score_text(cut.score),
        }
        for (name, ap), count, cut in zip(
            evaluation.per_class.items(), counts, evaluation.thresholds.per_class.values(), strict=True
        )
    ]


def precision_recall(evaluation: Evaluation) -> dict[str, Any]:
    """Precision in thousandths at some levels of recall: the mean over classes, and each class, by IoU.

    A class without objects has None in place of its curve.
    """
    curves = evaluation.curves
    at = np.stack([curves.at(iou)[::EVERY] for iou in IOUS])  # [T, R, C]
    defined = np.isfinite(at).any(axis=(0, 1)).reshape(-1)
    mean = at[..., defined].mean(axis=2) if defined.any() else np.full(at.shape[:2], np.nan)
    return {
        "ious": list(IOUS),
        "recall": curves.recall[::EVERY].round(3).tolist(),
        "mean": _thousandths(mean) if defined.any() else None,
        "classes": [_thousandths(at[..., label]) if defined[label] else None for label in range(at.shape[2])],
    }


def _thousandths(values: NDArray[np.float64]) -> list[list[int]]:
    return (1000 * np.nan_to_num(values)).round().astype(int).tolist()


def threshold_sweep(evaluation: Evaluation, errors: Errors) -> dict[str, Any]:
    """Precision, recall, F1, errors of each kind and found objects of each size at thresholds in rising order.

    Half of the thresholds are even in score, half in the number of detections kept; the chosen one is among them. There
    is always one, also where nothing was detected.
    """
    values, chosen = sweep(evaluation.matches), evaluation.thresholds.overall.score
    if not len(values.scores):
        scores, rows = np.asarray([chosen]), np.zeros(0, dtype=np.int64)
        heights: dict[str, list[Any]] = {"precision": [None], "recall": [0.0], "f1": [0.0]}
    else:
        every = values.scores[::-1]
        even = np.searchsorted(every, np.linspace(every[0], every[-1], THRESHOLDS // 2))
        by_rank = np.linspace(0, len(every) - 1, THRESHOLDS // 2).round().astype(np.int64)
        rows = len(every) - 1 - np.unique(np.concatenate([even, by_rank, [np.searchsorted(every, chosen)]]))
        scores = values.scores[rows]
        heights = {name: getattr(values, name)[rows].round(4).tolist() for name in ("precision", "recall", "f1")}
    counts = errors.counts(scores)
    return (
        {"scores": [score_text(score) for score in scores]}
        | heights
        | {kind.name.lower(): counts[kind].tolist() for kind in (Kind.CORRECT, *ERRORS)}
        | {"sizes": _found_by_size(errors, scores)}
    )


def _found_by_size(errors: Errors, scores: NDArray[np.float64]) -> dict[str, Any]:
    """How many objects there are of each size, and how many of them are found at each threshold."""
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
    """How many well-localised detections have which raw score and IoU, with quartiles of the score by IoU.

    ``cells`` are (column, row, count) of a grid over IoU 0.5 to 1 and the range of the scores; ``quartiles`` are
    (IoU, 25 %, 50 %, 75 %).
    """
    scores, ious = localised(evaluation.raw_matches, above=0.5)
    if not len(scores):
        return {"low": 0, "high": 1, "cells": [], "quartiles": []}
    low, high = float(scores.min()), float(scores.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts, _, _ = np.histogram2d(ious, scores, bins=CELLS, range=((0.5, 1), (low, high)))
    columns, rows = np.nonzero(counts)
    edges = np.linspace(0.5, 1, 11)
    cells = np.clip(np.digitize(ious, edges) - 1, 0, 9)
    quartiles = [
        [round(float(edges[cell : cell + 2].mean()), 3), *(score_text(q) for q in np.percentile(own, (25, 50, 75)))]
        for cell in range(10)
        if len(own := scores[cells == cell]) >= 5  # fewer make no quartiles
    ]
    return {
        "low": low,
        "high": high,
        "cells": np.stack([columns, rows, counts[columns, rows]], axis=1).astype(int).tolist(),
        "quartiles": quartiles,
    }


def reliability(evaluation: Evaluation) -> dict[str, Any] | None:
    """Calibration errors and, for each bin that holds detections, score, part that is right and their number.

    None where scores are raw.
    """
    check = evaluation.reliability
    if check is None:
        return None
    found: dict[str, Any] = {"cross_fitted": check.cross_fitted}
    for name, one in (("raw", check.before), ("calibrated", check.after)):
        rows = [
            [round(score, 4), round(right, 4), count]
            for score, right, count in zip(one.score, one.precision, one.count, strict=True)
            if count
        ]
        found[name] = {"ece": one.ece, "laece": one.laece, "bins": rows}
    return found


def error_numbers(errors: Errors, evaluation: Evaluation, gains: Mapping[Kind, float | None]) -> dict[str, Any]:
    """What each kind costs in AP50, errors by class and the most frequent confusions at the chosen threshold."""
    classes, threshold = len(evaluation.per_class), evaluation.thresholds.overall.score
    by_class = errors.by_class(threshold, classes)
    return {
        "gains": {kind.name.lower(): gain for kind, gain in gains.items()},
        "by_class": {kind.name.lower(): counts.tolist() for kind, counts in by_class.items()},
        "confusions": errors.confusions(threshold, classes)[:6],
    }
