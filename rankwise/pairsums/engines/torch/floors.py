"""Sigmoids with a cutoff: cells are split at the floors, below which samples form no pair with a positive."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

if TYPE_CHECKING:
    from rankwise.pairsums.engines.torch.sigmoid import SigmoidSums


def from_edge(moments: int) -> np.ndarray:
    """The coefficient of f^b in (f - 1/2)^a, [b, a]: polynomials about a cell's centre, by offsets from its edge."""
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

    def above(self, chosen: Tensor | slice, part: slice) -> Tensor:
        """1 for points in intervals above that of a positive's floor, else 0, float64 [P, points]."""
        interval = self.cell[chosen][part].div(self.sums.length, rounding_mode="floor").double() + 1
        return (self.sums.points > interval[:, None] * (self.sums.length * self.sums.width)).double()

    def near(self, tables: Tensor, whole: Tensor, chosen: Tensor | slice, part: slice) -> tuple[Tensor, ...]:
        """Rank, error and number of the samples above each floor, in the interval of the floor, [P, T] each."""
        cell, under = self.cell[chosen][part], self.under[chosen][part]
        running = tables.cumsum(2)
        own = running[:, :, self.last[cell]] - running[:, :, under]  # in the floor's own cell
        cells, *kernels = self._interval(cell, self.sums.units[chosen][part])
        moments = torch.where(cells == cell[:, None], own[..., None], whole[:, :, cells])
        moments = moments * (cells >= cell[:, None])
        return *(torch.einsum("tapc,apc->pt", moments, kernel) for kernel in kernels), moments[:, 0].sum(2).T

    def rows(self, coefficients: Tensor, weights: Tensor) -> Tensor:
        """Coefficients of the rows: those of whole cells plus the positives whose floor is in the same interval."""
        starting = coefficients.new_zeros(len(coefficients), len(self.cell_of) + 1)
        units = self.sums.units
        for part in self.sums.chunks(len(weights)):
            cell = self.cell[part]
            cells, kernels, _ = self._interval(cell, units[part])
            kernels = kernels * weights[part, None]
            above = kernels * (cells > cell[:, None])
            coefficients.index_add_(1, cells.flatten(), above.flatten(1))
            own = kernels.gather(2, (cell % self.sums.length).expand(len(kernels), -1)[..., None])[..., 0]
            starting.index_add_(1, self.under[part] + 1, own)
        running = starting.cumsum(1)
        first = self.last.roll(1) + 1
        first[0] = 0
        return coefficients[:, self.cell_of] + running[:, :-1] - running[:, first[self.cell_of]]

    def _interval(self, cell: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The cells of the interval of each given cell, [P, cells], and S and softplus there, [moments, P, cells].

        S and softplus are of positives at u, by powers of the offset in the cell.
        """
        cells = (cell - cell % self.sums.length)[:, None] + torch.arange(self.sums.length, device=cell.device)
        z = (cells.double() + 0.5) * self.sums.width - u[:, None]
        s, rest = z.sigmoid(), (-z).sigmoid()  # 1 - S to full relative precision
        first = s * rest
        derivatives = [softplus(z, threshold=40.0), s, first, first * (rest - s), first - 6 * first * first]
        kernels = torch.stack(derivatives[: len(self.taylor) + 1])
        rank, error = (torch.einsum("ba,apc->bpc", self.taylor, part) for part in (kernels[1:], kernels[:-1]))
        return cells, rank, error
