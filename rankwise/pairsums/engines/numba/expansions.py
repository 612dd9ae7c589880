"""What `sigmoid` sums with: how fine its cells are, and expansions of S and softplus between cells of one width."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

#: Terms of the series outside of the window.
J = 8


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
