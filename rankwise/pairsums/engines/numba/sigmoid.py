"""Sums of the sigmoid and the softplus over all pairs, from moments 0 to 3 in the cells of a lattice.

Around each positive is a window of cells, in which both functions are Taylor expansions about the cells' centres. Below
the window S(z) = Σ_j ±e^(jz), and likewise above it, so that everything outside is J prefix sums over the cells that
decay from cell to cell: one value of each per positive. The adjoint goes the same way back and leaves a cubic per cell.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rankwise.pairsums.engines.numba.jit import compiled, compiled_sum
from rankwise.pairsums.engines.numba.passes import Lattice, lattice

#: Terms of the series outside of the window.
J = 8

#: Up to so many positives are compared with each other pair by pair. More are sorted by quality and cut into blocks:
#: only pairs in a block are, lower blocks come from a table.
FEW, BLOCK = 1024, 512

#: The widest spread of the positives, in units of 1/λ, for which e^(±λp) stays finite.
WIDEST = 1300.0


class Precision(NamedTuple):
    """How finely to compute, in units of 1/λ.

    Attributes:
        cells: Least number of cells per unit.
        window: Half the width of the window.
        above: So far above a positive S is 1 but for rounding.
        below: So far below all positives e^z underflows, even summed over a billion samples.
        largest: Cells' numbers are exact up to this.
    """

    cells: int
    window: float
    above: float
    below: float
    largest: float


PRECISION = {
    "float32": Precision(16, 2.0, 20.0, 125.0, 2.0**23),  # relative error 1e-7 in the worst place
    "float64": Precision(128, 3.5, 37.0, 765.0, 2.0**50),  # and 1e-11
}


class Kernels(NamedTuple):
    """The expansions between cells of one width, float64.

    Attributes:
        width: Width of a cell in units of 1/λ.
        window: Cells on each side of a positive's that are in its window.
        rank: S by powers of the positive's offset, then of the sample's in each cell of the window, [4, cells · 4].
        error: The same for softplus.
        decay: What e^-j becomes over one cell, [J].
        rise: e^(jz) from a cell's upper edge, by powers of the offset in it, [J, 4].
        fall: e^(-jz) from its lower edge.
    """

    width: float
    window: int
    rank: np.ndarray
    error: np.ndarray
    decay: np.ndarray
    rise: np.ndarray
    fall: np.ndarray


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


@lru_cache(maxsize=16)
def kernels(width: float, window: int) -> Kernels:
    """The expansions for cells of a width."""
    z = width * np.arange(-window, window + 1, dtype=np.float64)
    s = 1 / (1 + np.exp(np.abs(z)))  # S(-|z|), which keeps its digits
    polynomial, derivatives = np.polynomial.Polynomial([0, 1]), []
    for order in range(7):
        value = polynomial(s)
        derivatives.append(np.where(z > 0, 1 - value if order == 0 else (-1) ** (order + 1) * value, value))
        polynomial = polynomial.deriv() * np.polynomial.Polynomial([0, 1, -1])  # dS/dz = S (1 - S)
    softplus = np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))

    def expansion(functions: list[np.ndarray]) -> np.ndarray:
        result = np.empty((4, len(z), 4))
        for g in range(4):
            for f in range(4):
                scale = (-1) ** g * width ** (f + g) / math.factorial(f) / math.factorial(g)
                result[g, :, f] = functions[f + g] * scale
        return result.reshape(4, -1)

    j, a = np.arange(1, J + 1)[:, None] * width, np.arange(4)
    powers = np.exp(-j / 2) * j**a / np.array([1, 1, 2, 6])
    rank, error = expansion(derivatives), expansion([softplus, *derivatives[:6]])
    return Kernels(width, window, rank, error, np.exp(-j[:, 0]), powers, powers * (-1.0) ** a)


def place(p: np.ndarray, lam: float, dtype: Any) -> tuple[Lattice, Kernels, Located] | None:
    """A lattice around positives, float64 [P], for samples of a dtype; None if they are too far apart or from zero."""
    precision = PRECISION[dtype.name]
    scale = 2.0 ** math.ceil(math.log2(lam * precision.cells))
    order = np.argsort(p)
    v = p[order] * scale
    cells = np.floor(v)
    width, least, most = lam / scale, float(cells[0]), float(cells[-1])
    low = least - math.ceil(precision.below / width) - 2
    high = most + math.ceil(precision.above / width) + 2
    if (most - least) * width > WIDEST or max(-low, high) > precision.largest:
        return None
    located = Located(order, (cells - low).astype(np.int64), v - cells - 0.5, np.argsort(order))
    return lattice(scale, low, high, dtype), kernels(width, math.ceil(precision.window / width)), located


@compiled_sum
def _dot(a: Any, b: Any) -> Any:
    result = 0.0
    for k in range(a.size):
        result += a[k] * b[k]
    return result


@compiled
def _cubic(c: Any, f: Any) -> Any:
    return c[0] + f * (c[1] + f * (c[2] + f * c[3]))


@compiled
def read(table: Any, at: Any, k: Any, with_error: Any, rank: Any, error: Any) -> None:
    """Each positive's sums of S, and of softplus if wanted, over the samples of a table of moments, [cells, 4].

    They are written at the own indices of the positives ``at``; the first cell is not read.
    """
    cells, number, window = len(table), len(at.cell), k.window
    flat, length = table.reshape(-1), (2 * window + 1) * 4
    acc, near, near_error = np.zeros(J), np.zeros(4), np.zeros(4)
    b, alive = 1, False
    for i in range(number):  # upwards: the cells below each window, and those in it
        u, cell, offset = at.order[i], at.cell[i], at.offset[i]
        while b < cell - window:
            alive = alive or table[b, 0] != 0.0
            if alive:
                t0, t1, t2, t3 = table[b, 0], table[b, 1], table[b, 2], table[b, 3]
                for j in range(J):
                    c = k.rise[j]
                    acc[j] = acc[j] * k.decay[j] + (t0 * c[0] + t1 * c[1] + t2 * c[2] + t3 * c[3])
            b += 1
        if i == 0 or cell != at.cell[i - 1]:
            start = (cell - window) * 4
            for g in range(4):
                near[g] = _dot(flat[start : start + length], k.rank[g])
                if with_error:
                    near_error[g] = _dot(flat[start : start + length], k.error[g])
        fall = math.exp(-k.width * (window + 0.5 + offset))
        tail, tail_error, power = 0.0, 0.0, -1.0
        for j in range(J):
            power *= -fall
            tail += power * acc[j]
            tail_error += power * acc[j] / (j + 1)
        rank[u] = _cubic(near, offset) + tail
        if with_error:
            error[u] = _cubic(near_error, offset) + tail_error
    acc[:] = 0.0
    b, alive = cells - 2, False
    passed, position = table[cells - 1, 0], table[cells - 1, 0] * (cells - 1) + table[cells - 1, 1]
    for i in range(number - 1, -1, -1):  # downwards: the cells above each window
        u, cell, offset = at.order[i], at.cell[i], at.offset[i]
        while b > cell + window:
            alive = alive or table[b, 0] != 0.0
            if alive:
                t0, t1, t2, t3 = table[b, 0], table[b, 1], table[b, 2], table[b, 3]
                passed += t0
                position += t0 * b + t1
                for j in range(J):
                    c = k.fall[j]
                    acc[j] = acc[j] * k.decay[j] + (t0 * c[0] + t1 * c[1] + t2 * c[2] + t3 * c[3])
            b -= 1
        fall = math.exp(-k.width * (window + 0.5 - offset))
        tail, tail_error, power = 0.0, 0.0, -1.0
        for j in range(J):
            power *= -fall
            tail += power * acc[j]
            tail_error += power * acc[j] / (j + 1)
        rank[u] += passed - tail
        if with_error:
            error[u] += k.width * (position - passed * (cell + offset)) + tail_error


@compiled
def adjoint(at: Any, weights: Any, k: Any, out: Any) -> None:
    """Add to the cubic of each cell, [cells, 4], Σ_u weights_u · S(x - p_u), for the positives u at ``at``."""
    cells, number, window = len(out), len(at.cell), k.window
    flat, length = out.reshape(-1), (2 * window + 1) * 4
    moments, acc = np.zeros(4), np.zeros(J)
    for i in range(number):  # in the windows
        power = weights[at.order[i]]
        for g in range(4):
            moments[g] += power
            power *= at.offset[i]
        if i + 1 == number or at.cell[i + 1] != at.cell[i]:
            target = flat[(at.cell[i] - window) * 4 : (at.cell[i] - window) * 4 + length]
            m0, m1, m2, m3 = moments
            for n in range(length):
                target[n] += k.rank[0, n] * m0 + k.rank[1, n] * m1 + k.rank[2, n] * m2 + k.rank[3, n] * m3
            moments[:] = 0.0
    i = number - 1
    for b in range(at.cell[number - 1] - window - 1, 0, -1):  # downwards: below the windows
        for j in range(J):
            acc[j] *= k.decay[j]
        while i >= 0 and at.cell[i] - window - 1 == b:
            _inject(acc, weights[at.order[i]], math.exp(-k.width * (window + 0.5 + at.offset[i])))
            i -= 1
        _add_series(acc, k.rise, out[b])
    acc[:] = 0.0
    i, passed = 0, 0.0
    for b in range(at.cell[0] + window + 1, cells - 1):  # upwards: above them
        for j in range(J):
            acc[j] *= k.decay[j]
        while i < number and at.cell[i] + window + 1 == b:
            _inject(acc, -weights[at.order[i]], math.exp(-k.width * (window + 0.5 - at.offset[i])))
            passed += weights[at.order[i]]
            i += 1
        _add_series(acc, k.fall, out[b])
        out[b, 0] += passed
    out[cells - 1, 0] += passed


@compiled
def _inject(acc: Any, weight: Any, fall: Any) -> None:
    for j in range(J):
        weight *= fall
        acc[j] += weight
        weight = -weight


@compiled
def _add_series(acc: Any, powers: Any, out: Any) -> None:
    c0, c1, c2, c3 = out[0], out[1], out[2], out[3]
    for j in range(J):
        c0 += acc[j] * powers[j, 0]
        c1 += acc[j] * powers[j, 1]
        c2 += acc[j] * powers[j, 2]
        c3 += acc[j] * powers[j, 3]
    out[0], out[1], out[2], out[3] = c0, c1, c2, c3


@compiled
def _scatter(at: Any, chosen: Any, table: Any) -> None:
    """Add the moments of some positives to their cells."""
    for i in chosen:
        power = 1.0
        for a in range(4):
            table[at.cell[i], a] += power
            power *= at.offset[i]


@compiled
def among(cells: Any, at: Any, k: Any, rank: Any) -> None:
    """Each positive's sum of S over all positives, itself included."""
    table = np.zeros((cells, 4))
    _scatter(at, np.arange(len(at.cell)), table)
    read(table, at, k, False, rank, rank)


class ByQuality(NamedTuple):
    """Positives sorted by quality.

    Attributes:
        order: What sorts them, [P].
        lower: How many have lower quality, for each in this order, [P].
        upper: How many have lower or equal quality.
        units: λ times the logit of each in this order, counted from the middle, [P].
        rise: e^units.
        fall: e^-units.
    """

    order: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    units: np.ndarray
    rise: np.ndarray
    fall: np.ndarray


def by_quality(p: np.ndarray, quality: np.ndarray, lam: float) -> ByQuality:
    """The positives sorted by quality."""
    order = np.argsort(quality, kind="stable")
    units = p[order] * lam
    units -= (units.min() + units.max()) / 2
    lower, upper = (np.searchsorted(quality[order], quality[order], side=side) for side in ("left", "right"))
    return ByQuality(order, lower, upper, units, np.exp(units), np.exp(-units))


@compiled_sum
def _rank(rise: Any, fall: Any, weights: Any, up: Any, down: Any) -> Any:
    """Σ weights · S(z), with e^z = rise · up and e^-z = fall · down: one of them may overflow, never both."""
    result = 0.0
    for v in range(rise.size):
        above, below = rise[v] * up, fall[v] * down
        small = above if above < below else below
        result += weights[v] * (1.0 if below <= above else small) / (1.0 + small)
    return result


@compiled_sum
def _error(rise: Any, fall: Any, units: Any, up: Any, down: Any, unit: Any) -> Any:
    """Σ softplus(z) over up to 512 samples: the logarithm of a product of factors below 2, a series if e^z is tiny."""
    product, series, linear = 1.0, 0.0, 0.0
    for v in range(rise.size):
        above, below, z = rise[v] * up, fall[v] * down, units[v] - unit
        small = above if above < below else below
        product *= 1.0 if small < 2.0**-8 else 1.0 + small
        log1p = small * (1.0 - small * (0.5 - small * (1 / 3 - small * (0.25 - small * 0.2))))
        series += log1p if small < 2.0**-8 else 0.0
        linear += z if z > 0.0 else 0.0
    return math.log(product) + series + linear


@compiled
def _some(at: Any, chosen: Any) -> Any:
    """Some of the positives on the lattice."""
    these = np.sort(at.position[chosen])
    return Located(at.order[these], at.cell[these], at.offset[these], at.position)


@compiled
def lower(cells: Any, at: Any, k: Any, q: Any, with_error: Any, rank: Any, error: Any) -> None:
    """Each positive's sums of S, and of softplus if wanted, over the positives of lower quality."""
    number, inside = len(q.order), 0
    size = number if number <= FEW else BLOCK
    ones = np.ones(number)
    table = np.zeros((cells if size < number else 1, 4))
    for first in range(0, number, size):
        end, whole = min(first + size, number), q.lower[first]
        if whole > 0:
            _scatter(at, at.position[q.order[inside:whole]], table)
            inside = whole
            read(table, _some(at, q.order[first:end]), k, with_error, rank, error)
        for i in range(first, end):
            u = q.order[i]
            if whole == 0:
                rank[u] = error[u] = 0.0
            for v in range(whole, q.lower[i], 512):
                to = min(v + 512, q.lower[i])
                rise, fall = q.rise[v:to], q.fall[v:to]
                rank[u] += _rank(rise, fall, ones[v:to], q.fall[i], q.rise[i])
                if with_error:
                    error[u] += _error(rise, fall, q.units[v:to], q.fall[i], q.rise[i], q.units[i])


@compiled
def sums(table: Any, at: Any, k: Any, q: Any, with_error: Any, by_quality: Any, out: Any) -> None:
    """Each positive's sums in one call: over a table, over all positives, and over those of lower quality.

    Rank and error over the table of negatives, rank over positives, rank and error over lower ones: ``out`` [5, P].
    """
    read(table, at, k, with_error, out[0], out[1])
    among(len(table), at, k, out[2])
    if by_quality:
        lower(len(table), at, k, q, with_error, out[3], out[4])


@compiled
def higher(cells: Any, at: Any, k: Any, q: Any, weights: Any, out: Any) -> None:
    """For each positive v, the sum of weights_u · S(p_v - p_u) over the positives u of higher quality."""
    number = len(q.order)
    size, inside = number if number <= FEW else BLOCK, number
    sorted_weights = weights[q.order]
    cubics = np.zeros((cells if size < number else 1, 4))
    for end in range(number, 0, -size):
        first, whole = max(0, end - size), q.upper[end - 1]
        if whole < inside:
            adjoint(_some(at, q.order[whole:inside]), weights, k, cubics)
            inside = whole
        for i in range(first, end):
            v = q.order[i]
            rise, fall = q.rise[q.upper[i] : whole], q.fall[q.upper[i] : whole]
            out[v] = _rank(fall, rise, sorted_weights[q.upper[i] : whole], q.rise[i], q.fall[i])
            if whole < number:
                out[v] += _cubic(cubics[at.cell[at.position[v]]], at.offset[at.position[v]])
