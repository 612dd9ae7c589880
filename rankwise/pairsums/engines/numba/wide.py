"""Sums over pairs for positives at any finite distance from each other and from zero, as when a training diverges.

Sorted by logit, the positives far below a sample all count 1, those far above it 0, and only those near it are pairs to
compute. It has no table, so no number is too large; its cost grows with the pairs that are near each other.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rankwise.jit import compiled
from rankwise.pairsums.distances import Distance, Sigmoid, Step


class Kind(NamedTuple):
    """The distance: a step with half width δ, or a sigmoid (or its cross entropy) with steepness λ.

    Attributes:
        step: Whether it is a step.
        scale: 1/2δ or λ.
        above: From this z on rank is 1 and error z, or 1.
        below: Up to this z both are 0.
    """

    step: bool
    scale: float
    above: float
    below: float


def kind_of(distance: Distance) -> Kind:
    """What the compiled code knows of a distance."""
    if isinstance(distance, Step):
        return Kind(True, 0.5 / distance.delta, distance.delta, -distance.delta)
    assert isinstance(distance, Sigmoid)
    return Kind(False, distance.lam, 40 / distance.lam, -765 / distance.lam)


@compiled
def _pair(z: Any, kind: Any) -> Any:
    """Rank and error of a pair; the error is that of cross entropy, times λ."""
    if kind.step:
        rank = min(max(z * kind.scale + 0.5, 0.0), 1.0)
        return rank, rank
    small = math.exp(-abs(z * kind.scale))
    return (1.0 if z >= 0 else small) / (1.0 + small), max(z * kind.scale, 0.0) + math.log1p(small)


@compiled
def _first_near(p: Any, x: Any, above: Any) -> Any:
    """The first of sorted positives that is not far below x."""
    low, high = 0, len(p)
    while low < high:
        middle = (low + high) // 2
        if x - p[middle] >= above:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def sums(part: Any, p: Any, kind: Any, rank: Any, error: Any) -> None:
    """Add each sorted positive's sums of rank and error (times λ) over the negatives of a part."""
    (values, _, _, skip, begin, end), number = part, len(p)
    # Of the samples far above the first so many positives: their number, and the sum of their distances to the last of
    # these. Differences are summed, not logits: a shift that all logits share would cost the digits.
    passed, total = np.zeros(number + 1), np.zeros(number + 1)
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for k in range(begin, stop):
            x = np.float64(values[k])
            if not abs(x) < np.inf:
                continue
            near = _first_near(p, x, kind.above)
            passed[near] += 1.0
            if near > 0:
                total[near] += x - p[near - 1]
            while near < number and x - p[near] > kind.below:
                pair = _pair(x - p[near], kind)
                rank[near] += pair[0]
                error[near] += pair[1]
                near += 1
        begin = end if following >= skip.shape[0] else skip[following, 1]
        following += 1
    above = far = 0.0
    for u in range(number - 1, -1, -1):
        if u + 1 < number:
            far += above * (p[u + 1] - p[u])
        above += passed[u + 1]
        far += total[u + 1]
        rank[u] += above
        error[u] += above if kind.step else far * kind.scale


@compiled
def gradient(part: Any, p: Any, weights: Any, kind: Any, out: Any) -> None:
    """Write Σ_u weights_u · rank(x - p_u) over sorted positives at each negative of a part, and 0 elsewhere."""
    (values, _, _, skip, begin, end), number = part, len(p)
    passed = np.zeros(number + 1)
    passed[0] = np.nan if np.isnan(weights).any() else 0.0
    passed[1:] = np.cumsum(weights)
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for k in range(begin, stop):
            x = np.float64(values[k])
            near = _first_near(p, x, kind.above)
            pushed = passed[near]
            while near < number and x - p[near] > kind.below:
                pushed += weights[near] * _pair(x - p[near], kind)[0]
                near += 1
            out[k] = pushed
        begin = stop
        if following < skip.shape[0]:
            begin = min(end, skip[following, 1])
            out[stop:begin] = 0
        following += 1


@compiled
def among(p: Any, quality: Any, values: Any, kind: Any, everyone: Any, lower: Any, error: Any) -> None:
    """For each positive u and each row of values, Σ values_v · rank(p_v - p_u) over all v and over those of lower
    quality, [K, P], and Σ error over those of lower quality, times λ, [P]."""
    for u in range(len(p)):
        for v in range(len(p)):
            rank, mistake = _pair(p[v] - p[u], kind)
            below = quality[v] < quality[u]
            for k in range(len(values)):
                everyone[k, u] += values[k, v] * rank
                if below:
                    lower[k, u] += values[k, v] * rank
            if below:
                error[u] += mistake
