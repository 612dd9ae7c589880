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
from rankwise.pairsums.engines.numba.passes import Lattice, evaluate, lattice

#: Terms of the series outside of the window, and the share of the first below which one is left out.
J, NEGLIGIBLE = 8, 1e-15

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


PRECISION = {  # by the bytes of a number
    4: Precision(16, 2.0, 20.0, 125.0, 2.0**23),  # relative error 1e-7 in the worst place
    8: Precision(128, 3.5, 37.0, 765.0, 2.0**50),  # and 1e-11
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
    return lattice(scale, low, high, dtype), kernels(width, math.ceil(precision.window / width))


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


@compiled
def gradient(
    flat: Any, begin: Any, end: Any, skip: Any, lattice: Any, p: Any, order: Any, weights: Any, k: Any, out: Any
) -> None:
    """Write Σ_u weights_u · S(x_v - p_u) at each of some negatives v, and 0 elsewhere: see `passes.evaluate`."""
    cubics = np.zeros((np.int64(lattice.high - lattice.low) + 2, 4))
    adjoint(located(p, order, lattice), weights, k, cubics)
    if np.isnan(weights).any():
        cubics[:-1] = np.nan
    evaluate(flat, begin, end, skip, lattice, cubics.astype(flat.values.dtype), out)
