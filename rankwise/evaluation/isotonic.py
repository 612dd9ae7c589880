"""Centered isotonic regression: the best increasing fit, made strictly increasing.

Oron and Flournoy, "Centered isotonic regression", 2017 (https://arxiv.org/abs/1701.05964): each flat block of the
ordinary fit becomes one point at its center, and the points are connected. Here, centers and connections are by rank,
so that a monotonic transform of the scores changes nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankwise.models.score_map import MAX_KNOTS, Curve, logit


def centered_isotonic(x: NDArray[np.float64], correct: NDArray[np.bool_], slope: float) -> Curve:
    """A strictly increasing curve through the rates of correct detections at logits x, at least one.

    Every distinct x is a knot; if there are too many, those that describe the curve best are kept. ``slope`` is that
    beyond the lowest and highest x.
    """
    from scipy.optimize import isotonic_regression

    knots, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    rates = np.bincount(inverse, correct, len(knots)) / counts
    fit = isotonic_regression(rates, weights=counts)
    ends, values = fit.blocks, fit.x[fit.blocks[:-1]]
    # Rates of 0 and 1, which only the outer blocks can have, are moved by half a detection; other rates are farther
    # away.
    half = 0.5 / (len(x) + 1)
    values = np.clip(values, half, 1 - half)
    rank = np.cumsum(counts) - (counts - 1) / 2 - 1  # the mean rank of each x among all detections
    weight = np.add.reduceat(counts, ends[:-1])
    center = np.add.reduceat(rank * counts, ends[:-1]) / weight
    # Half of an outer block is beyond its center: there the rate continues halfway to 0 or 1.
    positions = np.concatenate([[-0.5], center, [counts.sum() - 0.5]])
    heights = logit(np.concatenate([[values[0] / 2], values, [(1 + values[-1]) / 2]]))
    heights = np.interp(rank, positions, heights)
    rising = np.append(True, np.diff(heights) > 0)  # rounding may merge neighbors
    chosen = _important(rank[rising], heights[rising])
    return Curve("isotonic", tuple(knots[rising][chosen].tolist()), tuple(heights[rising][chosen].tolist()), slope)


def _important(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices of at most MAX_KNOTS points: the ends, then repeatedly the point farthest from the current curve."""
    if len(x) <= MAX_KNOTS:
        return np.arange(len(x))
    kept = [0, len(x) - 1]
    while len(kept) < MAX_KNOTS:
        away = np.abs(np.interp(x, x[kept], y[kept]) - y)
        if away.max() < 1e-3:
            break
        kept = sorted([*kept, int(away.argmax())])
    return np.asarray(kept)
