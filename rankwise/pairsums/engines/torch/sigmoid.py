"""Sums of sigmoid and softplus over all pairs, by a histogram with moments and Chebyshev interpolation.

Cells are the bins of the histogram, each with its first moments. In an interval of many cells, S and softplus are
interpolated at Chebyshev points: the moments are coarsened to weights of the points, and the sums over pairs are a
matrix [positives, points] times the weights. The adjoint refines values at the points to a polynomial in each cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from rankwise.pairsums.distances import Sigmoid, SigmoidCrossEntropy
from rankwise.pairsums.engines.dense import DenseSums
from rankwise.pairsums.engines.groups import Group, Limits
from rankwise.pairsums.engines.torch import histogram, many
from rankwise.pairsums.engines.torch.blocks import blocks
from rankwise.pairsums.engines.torch.floors import Floors
from rankwise.pairsums.formula import Over, Sums
from rankwise.pairsums.spec import RankingSpec


class Precision(NamedTuple):
    """Resolution of the table; units are 1/λ.

    Attributes:
        cells: Least number of cells per unit.
        interval: Cells per interval: 2 to 4 units.
        points: Chebyshev points per interval.
        moments: Moments per cell.
        below: Range of the table below the lowest positive, in units: farther down e^z underflows.
        max_index: Largest index of a cell counted from the logit 0, so that λ times a logit has enough digits.
        max_cells: Most cells of a table.
    """

    cells: int
    interval: int
    points: int
    moments: int
    below: float
    max_index: float
    max_cells: int = 1 << 19


PRECISION = {
    torch.float32: Precision(128, 512, 16, 3, 125.0, 2.0**33),  # relative error 1e-8
    torch.float64: Precision(128, 512, 28, 4, 765.0, 2.0**27),  # and 1e-11
}

#: With floors, each positive sums the cells of one interval directly, so that fewer cells with more moments are faster.
COARSE = PRECISION | {torch.float32: Precision(16, 64, 16, 4, 125.0, 2.0**30)}

#: For many samples on a CPU: more cells with fewer moments, relative error 2e-7.
FINE = Precision(512, 2048, 16, 2, 125.0, 2.0**35, 1 << 21)

#: This many units above a positive, S rounds to 1 and softplus to z.
ABOVE = 37.0

#: Most entries of a block of the matrix [positives, points].
MAX_ENTRIES = 1 << 17

#: Up to this many positives are compared pair by pair; more are left to `many`.
MAX_PAIRWISE = 512

#: If that is not possible, they are sorted by quality and compared in blocks of so many, and those of lower quality are
#: summed from a table.
POSITIVES_PER_BLOCK = 256


class Coarsening(NamedTuple):
    """Chebyshev points of all intervals, and the matrices from moments of cells to weights of points.

    Moments are powers of the offset from the lower edge of a cell.
    """

    points: Tensor  # in units, [points]
    negated: Tensor  # -points
    by_power: Tensor  # [moments, cells, points of an interval]
    lagrange: Tensor  # of the polynomials of the points by T_0, T_1, …, [points of an interval] twice


@lru_cache(maxsize=64)
def coarsening(intervals: int, precision: Precision, width: float, device: torch.device) -> Coarsening:
    """Points of a number of intervals, and their Lagrange polynomials expanded in each cell of an interval."""
    from numpy.polynomial import chebyshev  # not at the top: importing the losses imports only torch

    cells, points, moments = precision.interval, precision.points, precision.moments
    at = np.cos((2 * np.arange(points) + 1) * np.pi / (2 * points))
    lagrange = np.cos(np.outer(np.arange(points), np.arccos(at))) * 2 / points  # coefficients of T_0, T_1, …
    lagrange[0] /= 2
    # In a cell, a polynomial of lower degree interpolates each of them at the Chebyshev points of the cell.
    offsets = (1 - np.cos((2 * np.arange(moments) + 1) * np.pi / (2 * moments))) / 2
    inside = (np.arange(cells) + offsets[:, None]) * 2 / cells - 1  # [moments, cells]
    powers = np.linalg.inv(np.vander(offsets, increasing=True))
    by_power = np.einsum("bj,pjc->bcp", powers, chebyshev.chebval(inside, lagrange))
    every = (np.arange(intervals)[:, None] * cells + (at + 1) / 2 * cells) * width
    at_points = torch.from_numpy(every.ravel()).to(device)
    return Coarsening(at_points, -at_points, *(torch.from_numpy(x).to(device) for x in (by_power, lagrange)))


class Grid(NamedTuple):
    """The cells: cell k is [(low + k) / scale, (low + k + 1) / scale).

    Attributes:
        scale: Cells per unit of the logits, a power of two.
        low: Index of the first cell, counted from the logit 0.
        cells: Number of cells, a multiple of those of an interval.
        first_unused: Whether the first cell contains only samples that are not negatives.
        above: Whether there may be values above all cells.
        occupied: The intervals from that of the lowest positive to that of the highest.
    """

    scale: float
    low: float
    cells: int
    first_unused: bool
    above: bool
    occupied: slice


def locate(x: Tensor, origin: Tensor, scale: float, cells: int) -> tuple[Tensor, Tensor]:
    """Cell and position, counted in cells, of each value, float64; values beyond are in the outermost cells."""
    v = torch.add(origin, x, alpha=scale).clamp_(0, math.nextafter(cells, 0))
    return v.long(), v


class SigmoidSums:
    """Sums of a sigmoid or its cross entropy over the pairs of a group.

    A table holds moments, [moments, rows]: one row per cell, or several where floors split it.

    Args:
        group: The samples.
        spec: The loss.
        grid: The cells.
    """

    def __init__(self, group: Group, spec: RankingSpec, grid: Grid) -> None:
        assert isinstance(spec.distance, Sigmoid)
        self.group, self.spec, self.lam, self.grid = group, spec, spec.distance.lam, grid
        self.precision, self.width = precision_of(group, spec), spec.distance.lam / grid.scale
        self.length = self.precision.interval
        self.with_error = isinstance(spec.distance, SigmoidCrossEntropy)
        self.layout = group.positives.new_full((1,), -grid.low)  # the cells' origin
        self.points, self.negated, self.by_power, self.lagrange = coarsening(
            grid.cells // self.length, self.precision, self.width, group.positives.device
        )
        floor = spec.floor(group.positives) if spec.has_floor else None
        self.floors = None if floor is None else Floors(floor, self)
        self.rows = grid.cells + (0 if floor is None else len(floor))
        self.few = len(group.positives) <= MAX_PAIRWISE
        self.many = None if self.few or not many.is_possible(self) else many.ManyPositives(self)

    @classmethod
    def of(cls, group: Group, spec: RankingSpec) -> SigmoidSums | None:
        """The sums, or None if the positives are too far apart or from zero for a table."""
        grid = grid_of(group, spec)
        return None if grid is None else cls(group, spec, grid)

    @property
    def units(self) -> Tensor:
        """Positions of the positives in units from the first cell, float64 [P]."""
        return self.group.positives.mul(self.grid.scale).sub_(self.grid.low).mul_(self.width)

    def over(self, values: Sequence[Tensor], lower: bool) -> Over:
        """Each positive's sums over its pairs; all values are 1, since no formula with a sigmoid has others."""
        excess = self.excess() if self.grid.above and self.with_error else 0
        if self.many is not None:
            over = self.many.over(self.coarsened(self.moments()).sum(0).flatten(), values[0], lower)
            return over._replace(negatives=over.negatives._replace(error=over.negatives.error + excess))
        tables = [self.moments()] if self.few else [self.moments(), self._table(slice(None), values[0])]
        sums = self._sums_over(torch.stack(tables))
        negatives = Sums(sums.rank[0], sums.error[0] + excess, None if sums.number is None else sums.number[0])
        if self.few:
            return Over(negatives, *DenseSums(self.group, self.spec).among(values, lower), 0)
        return Over(negatives, sums.rank[1:], self._lower(values[0]) if lower else None, 0)

    def push(self, weights: Tensor, lower: bool) -> Tensor:
        """For each positive v, Σ_u weights_u · S(p_v - p_u) over the positives u of higher quality."""
        assert lower, "no formula pushes all positives with a sigmoid"
        if self.few:
            return DenseSums(self.group, self.spec).push(weights, lower)
        if self.many is not None:
            return self.many.push(weights)
        positives, quality = -self.group.positives, -self.group.quality
        group = Group(self.group.values[:0], self.group.skip, positives, quality)
        mirrored = SigmoidSums.of(group, self.spec)  # S(p_v - p_u) = S((-p_u) - (-p_v)), floors too
        assert mirrored is not None
        return mirrored._lower(weights).rank[0]

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · S(x_v - p_u)."""
        evaluate(self.group, self.spec, self.layout, self.table(weights), weights.new_ones(()), out)

    # The pass over the samples

    def moments(self) -> Tensor:
        """The table of the negatives, [moments, rows]."""
        values, weight = self.group.values, self.group.weight
        number, (scale, low, cells, first_unused, *_) = self.precision.moments, self.grid
        if self.precision is FINE:
            table = histogram.moments(values, histogram.Bins(scale, low, cells), weight)
            table[:, : int(first_unused)] = 0
            return table
        parts = blocks(values)
        table = self.points.new_zeros(number, self.rows)
        powers = self.points.new_ones(number, min(len(values), parts[0].stop) if parts else 0)
        for part in parts:
            x = values[part]
            row, v = locate(x, self.layout, scale, cells)
            if self.floors is not None:
                row += self.floors.below(x)
            terms = powers[:, : len(x)]
            if weight is None:
                f = torch.frac(v, out=terms[1])
            else:
                f = v.frac_()
                torch.mul(terms[0].copy_(weight[part]), f, out=terms[1])
            for a in range(2, number):
                torch.mul(terms[a - 1], f, out=terms[a])
            table.scatter_add_(1, row.expand(number, -1), terms)
        if first_unused:
            table[:, 0] = 0
        return table

    def excess(self) -> Tensor:
        """Sum of the distances of negatives above the last cell: softplus is linear there."""
        edge, weight = (self.grid.low + self.grid.cells) / self.grid.scale, self.group.weight
        total = self.points.new_zeros(())
        for part in blocks(self.group.values):
            more = (self.group.values[part].double() - edge).clamp_(min=0)
            total += more.sum() if weight is None else more @ weight[part]
        return total

    # Sums at the positives

    def coarsened(self, tables: Tensor) -> Tensor:
        """Weights of the points for tables of whole cells, [..., moments, cells] to [..., points of each interval]."""
        return tables.unflatten(-1, (-1, self.length)) @ self.by_power

    def _table(self, chosen: slice | Tensor, values: Tensor) -> Tensor:
        """The table of the chosen positives, weighted by ``values``, [moments, rows]."""
        p = self.group.positives[chosen]
        row, v = locate(p, self.layout, self.grid.scale, self.grid.cells)
        row, f = row if self.floors is None else row + self.floors.below(p), v.frac_()
        moments = [values[chosen]]
        for _ in range(1, self.precision.moments):
            moments.append(moments[-1] * f)
        return self.points.new_zeros(len(moments), self.rows).index_add_(1, row, torch.stack(moments))

    def chunks(self, number: int, columns: int | None = None) -> list[slice]:
        """Slices of a number of positives, one per block of a matrix; its columns are the points unless given.

        With floors, there are also the derivatives in the cells of an interval.
        """
        near = 0 if self.floors is None else self.precision.moments * self.length
        step = max(1, MAX_ENTRIES // (columns or len(self.points) + near))
        return [slice(start, min(start + step, number)) for start in range(0, number, step)]

    def _sums_over(self, tables: Tensor, chosen: Tensor | slice = slice(None)) -> Sums:
        """For the chosen positives, the sums over the samples of tables [T, moments, rows]; [T, P] each."""
        u, floors, number = self.units[chosen], self.floors, None
        whole = tables if floors is None else floors.whole(tables)
        weights = self.coarsened(whole).sum(1).flatten(1).T  # of the points, [points, T]
        rank, error = u.new_empty(2, len(u), len(tables))
        if floors is not None:
            centered = floors.centered(tables, whole)
            number = centered[0][:, 0, -1:] - centered[0][:, 0, floors.under[chosen]]
        for part in self.chunks(len(u)):
            z = self.points - u[part, None]
            if floors is not None:
                floors.only_above(z, chosen, part)
            torch.mm(z.sigmoid(), weights, out=rank[part])
            if self.with_error:
                torch.mm(softplus(z, threshold=40.0), weights, out=error[part])
            if floors is not None:
                for sums, more in zip((rank, error), floors.near(*centered, chosen, part), strict=False):
                    sums[part] += more
        return Sums(rank.T, error.T / self.lam if self.with_error else rank.T, number)

    def _lower(self, values: Tensor) -> Sums:
        """For each positive u, sums over the positives v of lower quality, weighted by ``values``."""
        p, (quality, order) = self.group.positives, self.group.quality.sort()
        rank, error, number = p.new_zeros(3, len(p))
        starts = range(0, len(p), POSITIVES_PER_BLOCK)
        lower = torch.searchsorted(quality, quality[::POSITIVES_PER_BLOCK].contiguous()).tolist()
        for start, whole in zip(starts, lower, strict=True):
            part = slice(start, start + POSITIVES_PER_BLOCK)
            u, q = order[part], quality[part]
            z = p[u] - p[u][:, None]
            counts = (q < q[:, None]) * values[u]
            if self.floors is not None:
                counts *= p[u] > self.floors.floor[u, None]
                number[u] = counts.sum(1)
            rank[u] = (self.spec.distance.rank(z) * counts).sum(1)
            error[u] = (self.spec.distance.error(z) * counts).sum(1)
            if start > 0:  # lower blocks: all of them, or up to the quality of the first in this block
                sums = self._sums_over(torch.stack([self._table(order[:end], values) for end in (start, whole)]), u)
                among_equals = q == q[0]
                rank[u] += torch.where(among_equals, sums.rank[1], sums.rank[0])
                error[u] += torch.where(among_equals, sums.error[1], sums.error[0])
                if sums.number is not None:
                    number[u] += torch.where(among_equals, sums.number[1], sums.number[0])
        return Sums(rank[None], error, number)

    # The adjoint

    def table(self, weights: Tensor) -> Tensor:
        """Coefficients in each row of Σ_u weights_u · S(x - p_u), by powers of the offset, [moments · rows]."""
        if self.many is not None:
            return self.refined(self.many.at_points(weights)).flatten()
        values, u = torch.zeros_like(self.points), self.units
        for part in self.chunks(len(u)):
            z = self.points - u[part, None]
            if self.floors is not None:
                self.floors.only_above(z, slice(None), part)
            values += weights[part] @ z.sigmoid_()
        cells = self.refined(values)
        return (cells if self.floors is None else self.floors.rows(cells, weights)).flatten()

    def refined(self, values: Tensor) -> Tensor:
        """Coefficients in each cell of the polynomials with these values at the points, [moments, cells]."""
        return (values.view(-1, self.precision.points) @ self.by_power.transpose(1, 2)).flatten(1)


def evaluate(group: Group, spec: RankingSpec, layout: Tensor, table: Tensor, upstream: Tensor, out: Tensor) -> None:
    """Write the value of its row's polynomial at each sample."""
    assert isinstance(spec.distance, Sigmoid)
    precision = precision_of(group, spec)
    coefficients = torch.mul(table, upstream, out=out.new_empty(len(table))).view(precision.moments, -1)
    scale, floors, cells = scale_of(spec.distance, precision), None, coefficients.shape[1]
    if precision is FINE:
        bins = histogram.Bins(scale, -float(layout), cells)
        histogram.evaluate(group.values, bins, coefficients.T.contiguous(), out)
        return
    if spec.has_floor:
        floor = spec.floor(group.positives)
        assert floor is not None
        floors, cells = floor.sort().values, cells - len(floor)
    for part in blocks(group.values):
        x = group.values[part]
        row, v = locate(x, layout, scale, cells)
        if floors is not None:
            row += torch.bucketize(x.double(), floors)
        f = v.frac_().to(out.dtype)
        *rest, last = coefficients.index_select(1, row)
        for a, power in enumerate(rest[::-1]):
            last = torch.addcmul(power, last, f, out=out[part] if a == len(rest) - 1 else None)


def precision_of(group: Group, spec: RankingSpec) -> Precision:
    """The resolution for a group."""
    if not spec.has_floor and group.values.dtype == torch.float32 and histogram.is_for(group.values):
        return FINE
    return (COARSE if spec.has_floor else PRECISION)[group.values.dtype]


def scale_of(distance: Sigmoid, precision: Precision) -> float:
    """Cells per unit of the logits."""
    return histogram.power_of_two(distance.lam * precision.cells)


def grid_of(group: Group, spec: RankingSpec) -> Grid | None:
    """The cells of a group, or None if the positives are too far apart or from zero for a table."""
    assert isinstance(spec.distance, Sigmoid)
    precision, lam = precision_of(group, spec), spec.distance.lam
    scale = scale_of(spec.distance, precision)
    least, most, lowest, highest = group.limits or _limits(group)
    if not max(-least, most) * scale <= precision.max_index:
        return None
    low, bottom = float(math.floor(least * scale) - math.ceil(precision.below * scale / lam)), -math.inf
    if spec.has_floor:  # nothing below the lowest floor counts
        floor = spec.floor(group.positives)
        assert floor is not None
        low = math.floor(float(floor.min()) * scale) - 1
    elif lowest * scale > low:
        bottom = math.floor(lowest * scale) - 1  # one more cell for samples that are not negatives
    first_unused, low, high = bottom >= low, max(low, bottom), max(most, min(highest, most + ABOVE / lam)) * scale + 2
    if precision is FINE:
        low = histogram.rounded_down(low, group.values.dtype)
    if not high - low <= precision.max_cells:
        return None
    cells = math.ceil((high - low) / precision.interval) * precision.interval
    first, last = (int((math.floor(end * scale) - low) // precision.interval) for end in (least, most))
    return Grid(scale, low, cells, first_unused, highest >= (low + cells) / scale, slice(first, last + 1))


def _limits(group: Group) -> Limits:
    least, most = torch.stack(group.positives.aminmax()).tolist()
    highest = float(group.values.max()) if len(group.values) else most
    return Limits(least, most, -math.inf, highest)
