"""Sums of the sigmoid and the softplus for each positive, those over positives of lower quality included.

Up to `MAX_PAIRWISE` positives are compared pair by pair. More are sorted by quality and cut into blocks: only pairs in
a block are compared, the positives of lower blocks are summed from a table, as the negatives are.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rankwise.pairsums.engines.numba.jit import compiled, compiled_sum
from rankwise.pairsums.engines.numba.passes import added
from rankwise.pairsums.engines.numba.sigmoid import Located, adjoint, cubic, located, read

#: Up to so many positives are compared with each other pair by pair.
MAX_PAIRWISE = 1024

#: Of more positives, those in a block.
POSITIVES_PER_BLOCK = 512


class Sorted(NamedTuple):
    """Positives in any order, with what sorts them.

    Attributes:
        p: Logits, float64 [P].
        order: Sorts the logits, [P].
        quality: Qualities, float64 [P].
        sorting: Sorts the qualities, [P].
    """

    p: np.ndarray
    order: np.ndarray
    quality: np.ndarray
    sorting: np.ndarray


class ByQuality(NamedTuple):
    """Positives sorted by quality.

    Attributes:
        order: What sorts them, [P].
        lower: How many have lower quality, for each in this order, [P].
        upper: How many have lower or equal quality.
        units: λ times the logit of each in this order, counted from the middle, [P].
        powers: e^units: S of a pair is the ratio of one to the sum of both.
    """

    order: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    units: np.ndarray
    powers: np.ndarray


@compiled
def by_quality(positives: Any, lam: Any) -> Any:
    """The positives by quality."""
    p, order, quality, sorting = positives
    number, middle = len(p), (p[order[0]] + p[order[-1]]) / 2
    lower, upper = np.empty(number, np.int64), np.empty(number, np.int64)
    units, powers = np.empty(number), np.empty(number)
    for i in range(number):
        equal = i > 0 and quality[sorting[i]] == quality[sorting[i - 1]]
        lower[i] = lower[i - 1] if equal else i
        units[i] = (p[sorting[i]] - middle) * lam
        powers[i] = math.exp(units[i])
    for i in range(number - 1, -1, -1):
        upper[i] = upper[i + 1] if i + 1 < number and lower[i + 1] == lower[i] else i + 1
    return ByQuality(sorting, lower, upper, units, powers)


@compiled_sum
def _rank(powers: Any, own: Any, others: Any) -> Any:
    """Σ S(z) over the samples v with these powers; each one's S(-z) is added to the others."""
    result = 0.0
    for v in range(powers.size):
        inverse = 1.0 / (powers[v] + own)
        result += powers[v] * inverse
        others[v] += own * inverse
    return result


@compiled_sum
def _rank_and_error(powers: Any, units: Any, own: Any, unit: Any, others: Any) -> Any:
    """The same, and Σ softplus(z) over up to 512 samples: z if that is positive, and -log(1 - t) with t = S(-|z|).

    The logarithm is that of a product of factors above 1/2, and a series where t is tiny.
    """
    result, product, series, linear = 0.0, 1.0, 0.0, 0.0
    for v in range(powers.size):
        inverse, z = 1.0 / (powers[v] + own), units[v] - unit
        result += powers[v] * inverse
        others[v] += own * inverse
        t = min(powers[v], own) * inverse
        product *= 1.0 if t < 2.0**-8 else 1.0 - t
        series += t * (1.0 + t * (0.5 + t * (1 / 3 + t * (0.25 + t * 0.2)))) if t < 2.0**-8 else 0.0
        linear += z if z > 0.0 else 0.0
    return result, series - math.log(product) + linear


@compiled_sum
def push(powers: Any, weights: Any, own: Any) -> Any:
    """Σ weights_u · S(z) of a sample with the power ``own`` over the positives u with these powers."""
    result = 0.0
    for u in range(powers.size):
        result += weights[u] / (powers[u] + own)
    return result * own


@compiled
def pairs(q: Any, first: Any, end: Any, start: Any, with_error: Any, among: Any, rank: Any, error: Any) -> None:
    """Add the pairs of positives from ``first`` to ``end`` in order of quality with those from ``start`` on below them.

    To each one's sums over those of lower quality, and to those of both over all, in the order of quality.
    """
    for i in range(first, end):
        u, own = q.order[i], q.powers[i]
        for v in range(start, q.lower[i], 512):
            to = min(v + 512, q.lower[i])
            if with_error:
                more, mistakes = _rank_and_error(q.powers[v:to], q.units[v:to], own, q.units[i], among[v:to])
                error[u] += mistakes
            else:
                more = _rank(q.powers[v:to], own, among[v:to])
            rank[u] += more
            among[i] += more
        among[i] += _rank(q.powers[max(start, q.lower[i]) : i], own, among[max(start, q.lower[i]) : i])


@compiled
def sums_of_few(
    tables: Any, positives: Any, lattice: Any, k: Any, lam: Any, with_error: Any, with_lower: Any, out: Any
) -> Any:
    """Each positive's sums over the negatives, over all positives, and over those of lower quality.

    Args:
        tables: Moments of the negatives, [2, cells + 1, 4]; used up.
        positives: The positives, `Sorted`.
        lattice: The cells.
        k: The `Kernels` of these cells.
        lam: Steepness λ.
        with_error: Whether to sum softplus too.
        with_lower: Whether to sum over the positives of lower quality.
        out: S and softplus over negatives, S over positives, S and softplus over those of lower quality, [5, P].

    Returns:
        The positives on the lattice and by quality.
    """
    at, q = located(positives.p, positives.order, lattice), by_quality(positives, lam)
    read(added(tables), at, k, with_error, out[0], out[1])
    out[2:] = 0.0
    among = np.full(len(q.order), 0.5)  # itself
    pairs(q, 0, len(among), 0, with_error and with_lower, among, out[3], out[4])
    for i in range(len(among)):
        out[2, q.order[i]] = among[i]
    return at, q


@compiled
def higher_of_few(at: Any, k: Any, q: Any, weights: Any, rows: Any, out: Any) -> None:
    """For each positive v, the sum of weights_u · S(p_v - p_u) over the positives u of higher quality."""
    ordered = weights[q.order]
    for i in range(len(q.order)):
        out[q.order[i]] = push(q.powers[q.upper[i] :], ordered[q.upper[i] :], q.powers[i])


@compiled
def sums_of_many(
    tables: Any, positives: Any, lattice: Any, k: Any, lam: Any, with_error: Any, with_lower: Any, out: Any
) -> Any:
    """The same as `sums_of_few` for more positives."""
    at, q = located(positives.p, positives.order, lattice), by_quality(positives, lam)
    table = added(tables)
    read(table, at, k, with_error, out[0], out[1])
    out[2:] = 0.0
    of_positives = np.zeros(table.shape)
    _scatter(at, np.arange(len(q.order)), of_positives)
    read(of_positives, at, k, False, out[2], out[2])
    if with_lower:
        _lower(len(table), at, k, q, with_error, out[3], out[4])
    return at, q


@compiled
def higher_of_many(at: Any, k: Any, q: Any, weights: Any, rows: Any, out: Any) -> None:
    """The same as `higher_of_few` for more positives; ``rows`` are those of the tables."""
    number = inside = len(q.order)
    ordered, cubics = weights[q.order], np.zeros((rows, 4))
    for end in range(number, 0, -POSITIVES_PER_BLOCK):
        first, whole = max(0, end - POSITIVES_PER_BLOCK), q.upper[end - 1]
        if whole < inside:
            adjoint(_some(at, q.order[whole:inside]), weights, k, cubics)
            inside = whole
        for i in range(first, end):
            v, begin = q.order[i], q.upper[i]
            out[v] = push(q.powers[begin:whole], ordered[begin:whole], q.powers[i])
            out[v] += cubic(cubics[at.cell[at.position[v]]], at.offset[at.position[v]])


@compiled
def _scatter(at: Any, chosen: Any, table: Any) -> None:
    """Add the moments of some positives to their cells."""
    for i in chosen:
        power = 1.0
        for a in range(4):
            table[at.cell[i], a] += power
            power *= at.offset[i]


@compiled
def _some(at: Any, chosen: Any) -> Any:
    """Some of the positives on the lattice."""
    these = np.sort(at.position[chosen])
    return Located(at.order[these], at.cell[these], at.offset[these], at.position)


@compiled
def _lower(rows: Any, at: Any, k: Any, q: Any, with_error: Any, rank: Any, error: Any) -> None:
    """Each positive's sums of S, and of softplus if wanted, over the positives of lower quality: of many."""
    number, inside = len(q.order), 0
    table, unused = np.zeros((rows, 4)), np.zeros(number)
    for first in range(0, number, POSITIVES_PER_BLOCK):
        end, whole = min(first + POSITIVES_PER_BLOCK, number), q.lower[first]
        if whole > 0:
            _scatter(at, at.position[q.order[inside:whole]], table)
            inside = whole
            read(table, _some(at, q.order[first:end]), k, with_error, rank, error)
        pairs(q, first, end, whole, with_error, unused, rank, error)
