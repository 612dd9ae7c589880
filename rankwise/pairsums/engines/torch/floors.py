"""Sigmoids with a cutoff: cells are split at the floors, below which samples form no pair with a positive."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

if TYPE_CHECKING:
    from rankwise.pairsums.engines.torch.sigmoid import SigmoidSums


def from_edge(moments: int) -> np.ndarray:
    """The coefficient of f^b in (f - 1/2)^a, [b, a]: polynomials about a cell's center, by offsets from its edge."""
    return np.array([[math.comb(a, b) * (-0.5) ** max(a - b, 0) for a in range(moments)] for b in range(moments)])


class Floors:
    """The split cells. A cell with k floors has k + 1 rows in a table.

    Args:
        floor: Floor of each positive, float64 [P].
        sums: The sums that use them.
    """

    def __init__(self, floor: Tensor, sums: SigmoidSums) -> None:
        # A proxy, because a cycle of references would keep the samples until the garbage collector runs.
        self.sums: SigmoidSums = weakref.proxy(sums)
        self.floor, moments = floor, sums.precision.moments
        taylor = from_edge(moments) * [sums.width**a / math.factorial(a) for a in range(moments)]
        self.taylor = torch.from_numpy(taylor).to(floor.device)
        self.sorted, order = floor.sort()
        self.cell = ((floor * sums.grid.scale).floor() - sums.grid.low).long()  # of each positive's floor
        self.interval = self.cell // sums.length
        self.under = self.cell + order.argsort()  # the highest row at or under each positive's floor
        every = torch.arange(sums.grid.cells, device=floor.device)
        self.last = every + torch.searchsorted(self.cell.sort().values, every, right=True)  # row of each cell
        self.cell_of = torch.searchsorted(self.last, torch.arange(len(every) + len(floor), device=floor.device))

    def below(self, x: Tensor) -> Tensor:
        """Number of floors below each value, int64 [n]."""
        return torch.bucketize(x.double(), self.sorted)

    def whole(self, tables: Tensor) -> Tensor:
        """Tables of whole cells from tables of rows, [T, moments, cells]."""
        return tables.new_zeros(*tables.shape[:2], len(self.last)).index_add_(2, self.cell_of, tables)

    def only_above(self, z: Tensor, chosen: Tensor | slice, part: slice) -> Tensor:
        """Set z, [P, points], to minus infinity except at points in intervals above that of a positive's floor."""
        end = (self.interval[chosen][part].double() + 1) * (self.sums.length * self.sums.width)
        return z.masked_fill_(self.sums.points < end[:, None], -torch.inf)

    def centered(self, tables: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
        """Moments about the centers of cells, as factors of derivatives.

        Returns:
            Running sums over the rows, [T, moments, rows], and whole cells, [intervals, T, moments · cells].
        """
        by_cell = (self.taylor.T @ whole).unflatten(2, (-1, self.sums.length))
        return (self.taylor.T @ tables).cumsum(2), by_cell.permute(2, 0, 1, 3).flatten(2)

    def near(self, running: Tensor, by_interval: Tensor, chosen: Tensor | slice, part: slice) -> Iterator[Tensor]:
        """Rank, and error if wanted, of the samples above each floor in its interval, [P, T] each."""
        cell, under = self.cell[chosen][part], self.under[chosen][part]
        own = running[:, :, self.last[cell]] - running[:, :, under]  # in the floor's own cell
        moments, with_error = by_interval[self.interval[chosen][part]], self.sums.with_error
        at_floor, above = self._derivatives(cell, self.sums.units[chosen][part], with_error)
        for first in (1, 0) if with_error else (0,):
            kernels = slice(first, first + len(self.taylor))
            inside = torch.einsum("tap,pa->pt", own, at_floor[:, kernels])
            yield inside + (moments @ above[:, kernels].flatten(1)[..., None])[..., 0]

    def rows(self, coefficients: Tensor, weights: Tensor) -> Tensor:
        """Coefficients of the rows: those of whole cells plus the positives whose floor is in the same interval."""
        number, units = len(coefficients), self.sums.units
        starting = coefficients.new_zeros(number, len(self.cell_of) + 1)
        more = coefficients.new_zeros(len(self.last) // self.sums.length, number, self.sums.length)
        for part in self.sums.chunks(len(weights)):
            at_floor, above = self._derivatives(self.cell[part], units[part], with_error=False)
            more.index_add_(0, self.interval[part], above.mul_(weights[part, None, None]))
            starting.index_add_(1, self.under[part] + 1, self.taylor @ (at_floor * weights[part, None]).T)
        coefficients = coefficients + (self.taylor @ more).transpose(0, 1).flatten(1)
        running = starting.cumsum(1)
        first = self.last.roll(1) + 1
        first[0] = 0
        return coefficients[:, self.cell_of] + running[:, :-1] - running[:, first[self.cell_of]]

    def _derivatives(self, cell: Tensor, u: Tensor, with_error: bool) -> tuple[Tensor, Tensor]:
        """Softplus, if wanted, and S with its derivatives, of positives at u whose floors are in given cells.

        Returns:
            At the center of the given cell, [P, functions], and at those of the cells of its interval, [P, functions,
            cells]; 0 for cells that are not above it.
        """
        inside = torch.arange(self.sums.length, device=cell.device)
        first = cell % self.sums.length
        z = (cell.double() + 0.5) * self.sums.width - u
        every = z[:, None] + (inside - first[:, None]).double() * self.sums.width
        every.masked_fill_(inside <= first[:, None], -torch.inf)
        return _derivatives(z, with_error), _derivatives(every, with_error)


def _derivatives(z: Tensor, with_error: bool) -> Tensor:
    """Softplus, if wanted, S, and the first three derivatives of S, as the second dimension."""
    s, rest = z.sigmoid(), (-z).sigmoid()  # 1 - S to full relative precision
    first = s * rest
    error = [softplus(z, threshold=40.0)] if with_error else []
    return torch.stack([*error, s, first, first * (rest - s), first - 6 * first * first], 1)
