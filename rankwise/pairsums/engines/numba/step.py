"""Sums of the step over all pairs, exact: between the ends of the positives' ramps everything is linear.

The ends p_u - δ and p_u + δ of all ramps cut the line into cells, in which the samples' number and the sum of their
offsets are known. Summed from above they give Σ max(0, x - end) at each end, and a ramp is the difference of two such
sums. In the adjoint, offset and slope change at each end by the weight of its positive. In order of quality the same
sums over positives come from a Fenwick tree.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rankwise.jit import compiled
from rankwise.pairsums.engines.numba.passes import EDGES_TABLES, Edges, added, edges, evaluate, moments

#: The farthest that positives may be from each other, and from zero, in units of δ, to keep 10 and 8 digits.
WIDEST, FARTHEST = 1e5, 1e7


class Ramps(NamedTuple):
    """The positives' ramps.

    Attributes:
        positives: Logits, counted from the edges' origin, [P].
        begin: Which edge each begins at, [P].
        end: Which edge each ends at, [P].
        delta: Half the width of a ramp.
    """

    positives: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    delta: float


class Order(NamedTuple):
    """The positives among each other.

    Attributes:
        positives: Logits, counted from their middle, [P].
        rank: Index of each in the order of logits, [P].
        low: How many positives are below each ramp's begin, [P].
        high: How many are below its end, [P].
        delta: Half the width of a ramp.
    """

    positives: np.ndarray
    rank: np.ndarray
    low: np.ndarray
    high: np.ndarray
    delta: float


def layout(p: np.ndarray, delta: float) -> tuple[Edges, Ramps] | None:
    """The cells between the ends of all ramps of positives, [P]; None if they are too far apart or from zero."""
    least, most = float(p.min()), float(p.max())
    if most - least > WIDEST * delta or max(-least, most) > FARTHEST * delta:
        return None
    ends = np.concatenate([p - delta, p + delta])
    cells: tuple[Edges, Ramps] = _cells(p, delta, ends, ends.argsort())
    return cells


@compiled
def _cells(p: Any, delta: Any, ends: Any, order: Any) -> Any:
    cells, which = edges(ends, order), _inverse(order)
    return cells, Ramps(p - cells.origin, which[: len(p)], which[len(p) :], delta)


@compiled
def _inverse(order: Any) -> Any:
    inverse = np.empty_like(order)
    for i in range(len(order)):
        inverse[order[i]] = i
    return inverse


@compiled
def _ordered(p: Any, order: Any, delta: Any) -> Any:
    """The positives, [P], which ``order`` sorts, among each other."""
    number = len(p)
    low, high, below, above = np.empty(number, np.int64), np.empty(number, np.int64), 0, 0
    for u in order:
        while p[order[below]] < p[u] - delta:
            below += 1
        while above < number and p[order[above]] < p[u] + delta:
            above += 1
        low[u], high[u] = below, above
    return Order(p - (p[order[0]] + p[order[-1]]) / 2, _inverse(order), low, high, delta)


@compiled
def _read(table: Any, ramps: Any, rank: Any) -> None:
    """Each positive's sum of H over the samples of a table of number and sum of offsets, [cells + 1, 2], used up."""
    for cell in range(len(table) - 3, -1, -1):
        table[cell] += table[cell + 1]
    for u in range(len(rank)):
        begin, end, p = table[ramps.begin[u] + 1], table[ramps.end[u] + 1], ramps.positives[u]
        above_begin = begin[1] - (p - ramps.delta) * begin[0]  # Σ max(0, x - begin)
        above_end = end[1] - (p + ramps.delta) * end[0]
        rank[u] = (above_begin - above_end) / (2 * ramps.delta)


@compiled
def _adjoint(ramps: Any, weights: Any, out: Any) -> None:
    """Offset and slope in each cell, [cells + 1, 2] of zeros, of Σ_u weights_u · H(x - p_u)."""
    for u in range(len(weights)):
        slope, p = weights[u] / (2 * ramps.delta), ramps.positives[u]
        out[ramps.begin[u] + 1, 0] -= (p - ramps.delta) * slope
        out[ramps.begin[u] + 1, 1] += slope
        out[ramps.end[u] + 1, 0] += (p + ramps.delta) * slope
        out[ramps.end[u] + 1, 1] -= slope
    for cell in range(1, len(out) - 1):
        out[cell] += out[cell - 1]


@compiled
def _prefix(tree: Any, end: Any, out: Any) -> None:
    """The sums over the first ``end`` leaves of a Fenwick tree."""
    out[:] = 0.0
    while end > 0:
        out += tree[end]
        end -= end & -end


@compiled
def _ask(tree: Any, total: Any, order: Any, u: Any, low: Any, high: Any, out: Any) -> None:
    """For each of the values, Σ values_v · H(p_v - p_u) over the positives v in the tree."""
    _prefix(tree, order.low[u], low)
    _prefix(tree, order.high[u], high)
    for k in range(len(total)):
        inside, moment = high[2 * k] - low[2 * k], high[2 * k + 1] - low[2 * k + 1]
        out[k, u] = total[k] - high[2 * k] + (moment - order.positives[u] * inside) / (2 * order.delta) + 0.5 * inside


@compiled
def sums(part: Any, cells: Any, ramps: Any, positives: Any, values: Any, out: Any) -> Any:
    """Each positive's sum of H over the negatives of a part; with the first part also those over positives.

    Args:
        part: The samples.
        cells: `Edges`.
        ramps: The ramps of the positives.
        positives: The positives, `Sorted`.
        values: How much each counts as a sample, [K, P].
        out: The sums over the negatives, and Σ values_v · H(p_v - p_u) over all positives, u itself included, for each
            row of values; if there is space, also over those of lower quality; zeros [1 + K or 1 + 2K, P].

    Returns:
        The largest magnitude in the part, as an integer.
    """
    tables = np.zeros((EDGES_TABLES, 2 * len(values[0]) + 2, 2))
    largest = moments(part, cells, tables)
    _read(added(tables), ramps, out[0])
    if part.begin == 0:
        order = _ordered(positives.p, positives.order, ramps.delta)
        _among(order, positives.quality, positives.sorting, values, out[1 : 1 + len(values)], out[1 + len(values) :])
    return largest


@compiled
def push(positives: Any, weights: Any, delta: Any, higher: Any) -> Any:
    """For each positive v, Σ_u weights_u · H(p_v - p_u): over all u, or over those of higher quality."""
    # H(p_v - p_u) = H((-p_u) - (-p_v)): the same sums as above, of mirrored positives
    p, order, quality, sorting = positives
    found, none = np.empty((1, len(p))), np.empty((0, 0))
    mirrored = _ordered(-p, order[::-1].copy(), delta)
    everyone, lower = (none, found) if higher else (found, none)
    _among(mirrored, -quality, sorting[::-1].copy(), weights.reshape(1, -1), everyone, lower)
    return found[0]


@compiled
def gradient(part: Any, cells: Any, ramps: Any, weights: Any, out: Any) -> None:
    """Write Σ_u weights_u · H(x_v - p_u) at each negative v of a part, and 0 elsewhere: see `passes.evaluate`."""
    lines = np.zeros((2 * len(weights) + 2, 2))
    _adjoint(ramps, weights, lines)
    if np.isnan(weights).any():
        lines[:-1] = np.nan
    evaluate(part, cells, lines, out)


@compiled
def _among(order: Any, quality: Any, by_quality: Any, values: Any, everyone: Any, lower: Any) -> None:
    kinds, number = values.shape
    tree, total = np.zeros((number + 1, 2 * kinds)), np.zeros(kinds)  # Σ values and Σ values · p, for each row
    low, high = np.empty(2 * kinds), np.empty(2 * kinds)
    first = 0
    while first < number:
        end = first
        while end < number and quality[by_quality[end]] == quality[by_quality[first]]:
            if lower.size:
                _ask(tree, total, order, by_quality[end], low, high, lower)
            end += 1
        for v in by_quality[first:end]:
            for k in range(kinds):
                total[k] += values[k, v]
            node = order.rank[v] + 1
            while node <= number:
                for k in range(kinds):
                    tree[node, 2 * k] += values[k, v]
                    tree[node, 2 * k + 1] += values[k, v] * order.positives[v]
                node += node & -node
        first = end
    if everyone.size:
        for u in range(number):
            _ask(tree, total, order, u, low, high, everyone)
