"""Sums of the sigmoid and the softplus over all pairs, from moments 0 to 3 in the cells of a lattice.

Around each positive is a window of cells, in which both functions are Taylor expansions about the cells' centers. Below
the window S(z) = Σ_j ±e^(jz), and likewise above it, so that everything outside is J prefix sums over the cells that
decay from cell to cell: one value of each per positive. The adjoint goes the same way back and leaves a cubic per cell.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rankwise.jit import compiled, compiled_sum
from rankwise.pairsums.engines.numba.expansions import PRECISION, J, Kernels, kernels
from rankwise.pairsums.engines.numba.passes import LATTICE_TABLES, Lattice, added, evaluate, moments

#: The share of the first term of a series below which one is left out.
NEGLIGIBLE = 1e-15

#: Up to this many positives are compared with each other pair by pair; `many` is for more.
MAX_PAIRWISE = 1024

#: The widest spread of the positives, in units of 1/λ, for which e^(±λp) stays finite.
WIDEST = 1300.0


class Located(NamedTuple):
    """Positives on a lattice, sorted by logit.

    Attributes:
        order: Their own indices, [P].
        cell: Their cells, [P].
        offset: Their offsets in these, [P].
        position: Where each positive of the group is among those sorted, [number of all].
    """

    order: np.ndarray
    cell: np.ndarray
    offset: np.ndarray
    position: np.ndarray


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


def layout(p: np.ndarray, order: np.ndarray, lam: float, dtype: Any) -> tuple[Lattice, Kernels] | None:
    """A lattice around positives, float64 [P], for samples of a dtype; None if they are too far apart or from zero.

    Args:
        p: The positives.
        order: What sorts them, [P].
        lam: Steepness λ.
        dtype: Of the samples.
    """
    precision = PRECISION[dtype.itemsize]
    scale = 2.0 ** math.ceil(math.log2(lam * precision.cells))
    width, least, most = lam / scale, math.floor(p[order[0]] * scale), math.floor(p[order[-1]] * scale)
    low = least - math.ceil(precision.below / width) - 2
    high = most + math.ceil(precision.above / width) + 2
    if (most - least) * width > WIDEST or max(-low, high) > precision.largest:
        return None
    cells = Lattice(*map(dtype.type, (scale, low, high, 1e30 if dtype.itemsize == 4 else 1e60, 0.5)))
    return cells, kernels(width, math.ceil(precision.window / width))


@compiled
def located(p: Any, order: Any, lattice: Any) -> Any:
    """The positives, which ``order`` sorts, on a lattice."""
    cell, offset, position = np.empty(len(p), np.int64), np.empty(len(p)), np.empty(len(p), np.int64)
    for i in range(len(p)):
        v = p[order[i]] * np.float64(lattice.scale)
        cell[i] = np.int64(np.floor(v) - np.float64(lattice.low))
        offset[i] = v - np.floor(v) - 0.5
        position[order[i]] = i
    return Located(order, cell, offset, position)


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
def _dots(x: Any, rows: Any, out: Any) -> None:
    """The dot products of x with four rows."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for k in range(x.size):
        a += x[k] * rows[0, k]
        b += x[k] * rows[1, k]
        c += x[k] * rows[2, k]
        d += x[k] * rows[3, k]
    out[0], out[1], out[2], out[3] = a, b, c, d


@compiled_sum
def _add_rows(x: Any, rows: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    """Add four rows, each by its factor."""
    for k in range(x.size):
        x[k] += a * rows[0, k] + b * rows[1, k] + c * rows[2, k] + d * rows[3, k]


@compiled
def cubic(c: Any, f: Any) -> Any:
    return c[0] + f * (c[1] + f * (c[2] + f * c[3]))


@compiled_sum
def _pass_cell(acc: Any, decay: Any, moments: Any, powers: Any) -> None:
    """Move prefix sums past a cell, whose moments join them."""
    a, b, c, d = moments[0], moments[1], moments[2], moments[3]
    for j in range(J):
        acc[j] = acc[j] * decay[j] + a * powers[0, j] + b * powers[1, j] + c * powers[2, j] + d * powers[3, j]


@compiled
def read(table: Any, at: Any, k: Any, with_error: Any, rank: Any, error: Any) -> None:
    """Each positive's sums of S, and of softplus if wanted, over the samples of a table of moments, [cells + 1, 4].

    They are written at the own indices of the positives ``at``; the first cell is not read, nor what follows the cells.
    """
    cells, number, window = len(table) - 1, len(at.cell), k.window
    flat, length = table.reshape(-1), (2 * window + 1) * 4
    acc, near, near_error = np.zeros(J), np.zeros(4), np.zeros(4)
    rise, fall = k.rise.T.copy(), k.fall.T.copy()
    b, alive = 1, False
    for i in range(number):  # upwards: the cells below each window, and those in it
        u, cell, offset = at.order[i], at.cell[i], at.offset[i]
        while b < cell - window:
            alive = alive or table[b, 0] != 0.0
            if alive:
                _pass_cell(acc, k.decay, table[b], rise)
            b += 1
        if i == 0 or cell != at.cell[i - 1]:
            start = (cell - window) * 4
            _dots(flat[start : start + length], k.rank, near)
            if with_error:
                _dots(flat[start : start + length], k.error, near_error)
        below = math.exp(-k.width * (window + 0.5 + offset))
        tail, tail_error, power = 0.0, 0.0, -1.0
        for j in range(J):
            power *= -below
            tail += power * acc[j]
            tail_error += power * acc[j] / (j + 1)
        rank[u] = cubic(near, offset) + tail
        if with_error:
            error[u] = cubic(near_error, offset) + tail_error
    acc[:] = 0.0
    b, alive = cells - 2, False
    passed, position = table[cells - 1, 0], table[cells - 1, 0] * (cells - 1) + table[cells - 1, 1]
    for i in range(number - 1, -1, -1):  # downwards: the cells above each window
        u, cell, offset = at.order[i], at.cell[i], at.offset[i]
        while b > cell + window:
            alive = alive or table[b, 0] != 0.0
            if alive:
                passed += table[b, 0]
                position += table[b, 0] * b + table[b, 1]
                _pass_cell(acc, k.decay, table[b], fall)
            b -= 1
        below = math.exp(-k.width * (window + 0.5 - offset))
        tail, tail_error, power = 0.0, 0.0, -1.0
        for j in range(J):
            power *= -below
            tail += power * acc[j]
            tail_error += power * acc[j] / (j + 1)
        rank[u] += passed - tail
        if with_error:
            error[u] += k.width * (position - passed * (cell + offset)) + tail_error


@compiled
def adjoint(at: Any, weights: Any, k: Any, out: Any) -> None:
    """Add to the cubic of each cell, [cells + 1, 4], Σ_u weights_u · S(x - p_u), for the positives u at ``at``."""
    cells, number, window = len(out) - 1, len(at.cell), k.window
    flat, length = out.reshape(-1), (2 * window + 1) * 4
    moments, acc = np.zeros(4), np.zeros(J)
    for i in range(number):  # in the windows
        power = weights[at.order[i]]
        for g in range(4):
            moments[g] += power
            power *= at.offset[i]
        if i + 1 == number or at.cell[i + 1] != at.cell[i]:
            start = (at.cell[i] - window) * 4
            _add_rows(flat[start : start + length], k.rank, moments[0], moments[1], moments[2], moments[3])
            moments[:] = 0.0
    i, terms = number - 1, 0  # terms that are not negligible
    for b in range(at.cell[number - 1] - window - 1, 0, -1):  # downwards: below the windows
        for j in range(terms):
            acc[j] *= k.decay[j]
        while i >= 0 and at.cell[i] - window - 1 == b:
            _inject(acc, weights[at.order[i]], math.exp(-k.width * (window + 0.5 + at.offset[i])))
            i, terms = i - 1, J
        while terms > 1 and abs(acc[terms - 1]) < NEGLIGIBLE * abs(acc[0]):
            terms -= 1
            acc[terms] = 0.0
        _add_series(acc, terms, k.rise, out[b])
    acc[:] = 0.0
    i, terms, passed = 0, 0, 0.0
    for b in range(at.cell[0] + window + 1, cells - 1):  # upwards: above them
        for j in range(terms):
            acc[j] *= k.decay[j]
        while i < number and at.cell[i] + window + 1 == b:
            _inject(acc, -weights[at.order[i]], math.exp(-k.width * (window + 0.5 - at.offset[i])))
            passed += weights[at.order[i]]
            i, terms = i + 1, J
        while terms > 0 and abs(acc[terms - 1]) < NEGLIGIBLE * abs(passed):
            terms -= 1
            acc[terms] = 0.0
        _add_series(acc, terms, k.fall, out[b])
        out[b, 0] += passed
    out[cells - 1, 0] += passed


@compiled
def _inject(acc: Any, weight: Any, fall: Any) -> None:
    for j in range(J):
        weight *= fall
        acc[j] += weight
        weight = -weight


@compiled
def _add_series(acc: Any, terms: Any, powers: Any, out: Any) -> None:
    c0, c1, c2, c3 = out[0], out[1], out[2], out[3]
    for j in range(terms):
        c0 += acc[j] * powers[j, 0]
        c1 += acc[j] * powers[j, 1]
        c2 += acc[j] * powers[j, 2]
        c3 += acc[j] * powers[j, 3]
    out[0], out[1], out[2], out[3] = c0, c1, c2, c3


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
def over_negatives(part: Any, lattice: Any, at: Any, k: Any, with_error: Any, out: Any) -> Any:
    """Write the sums of S, and of softplus if wanted, over a part's negatives, [2, P]; its largest magnitude."""
    tables = np.zeros((LATTICE_TABLES, np.int64(lattice.high - lattice.low) + 2, 4))
    largest = moments(part, lattice, tables)
    read(added(tables), at, k, with_error, out[0], out[1])
    return largest


@compiled
def sums_of_few(
    part: Any, positives: Any, lattice: Any, k: Any, lam: Any, with_error: Any, with_lower: Any, out: Any
) -> Any:
    """Each positive's sums over the negatives of a part; with the first part also those over positives.

    Args:
        part: The samples.
        positives: The positives, `Sorted`.
        lattice: The cells.
        k: The `Kernels` of these cells.
        lam: Steepness λ.
        with_error: Whether to sum softplus too.
        with_lower: Whether to sum over the positives of lower quality.
        out: S and softplus over negatives, S over positives, S and softplus over those of lower quality, zeros [5, P].

    Returns:
        The largest magnitude in the part, as an integer.
    """
    at = located(positives.p, positives.order, lattice)
    largest = over_negatives(part, lattice, at, k, with_error, out)
    if part.begin == 0:
        q, among = by_quality(positives, lam), np.full(len(positives.p), 0.5)  # itself
        pairs(q, 0, len(among), 0, with_error and with_lower, among, out[3], out[4])
        for i in range(len(among)):
            out[2, q.order[i]] = among[i]
    return largest


@compiled
def higher_of_few(positives: Any, lattice: Any, k: Any, lam: Any, weights: Any, out: Any) -> None:
    """For each positive v, the sum of weights_u · S(p_v - p_u) over the positives u of higher quality."""
    q = by_quality(positives, lam)
    ordered = weights[q.order]
    for i in range(len(q.order)):
        out[q.order[i]] = push(q.powers[q.upper[i] :], ordered[q.upper[i] :], q.powers[i])


@compiled
def gradient(part: Any, lattice: Any, p: Any, order: Any, weights: Any, k: Any, out: Any) -> None:
    """Write Σ_u weights_u · S(x_v - p_u) at each negative v of a part, and 0 elsewhere: see `passes.evaluate`."""
    cubics = np.zeros((np.int64(lattice.high - lattice.low) + 2, 4))
    adjoint(located(p, order, lattice), weights, k, cubics)
    if np.isnan(weights).any():
        cubics[:-1] = np.nan
    evaluate(part, lattice, cubics.astype(part.values.dtype), out)
