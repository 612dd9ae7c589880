"""Sums of the sigmoid and the softplus over all pairs in torch operations.

A histogram of the samples has the first moments in each cell. Many cells are an interval, in which S and softplus are
polynomials through Chebyshev points. So the moments are coarsened to weights of the points, and sums over pairs are
matrices [positives, points] times weights. The adjoint refines values at the points to a polynomial in each cell.
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
from rankwise.pairsums.engines.torch import lattice
from rankwise.pairsums.engines.torch.blocks import blocks
from rankwise.pairsums.engines.torch.cut import Cut
from rankwise.pairsums.engines.torch.lookup import Lookup
from rankwise.pairsums.formula import Over, Sums
from rankwise.pairsums.spec import RankingSpec


class Precision(NamedTuple):
    """How finely to compute, in units of 1/λ.

    Attributes:
        cells: Least number of cells per unit.
        interval: Cells in an interval: 2 to 4 units.
        points: Chebyshev points in it.
        moments: Moments of each cell.
        below: So far below all positives e^z underflows, even summed over a billion samples.
        largest: The largest number of a cell: λ times a logit there has enough digits.
        most: Most cells of a table.
    """

    cells: int
    interval: int
    points: int
    moments: int
    below: float
    largest: float
    most: int = 1 << 19


PRECISION = {
    torch.float32: Precision(128, 512, 16, 3, 125.0, 2.0**33),  # relative error 1e-8
    torch.float64: Precision(128, 512, 28, 4, 765.0, 2.0**27),  # and 1e-11
}

#: With floors, where each positive sums the cells of an interval one by one: fewer of them with more moments.
COARSE = PRECISION | {torch.float32: Precision(16, 64, 16, 4, 125.0, 2.0**30)}

#: Of many samples on a CPU: more cells with fewer moments, relative error 2e-7.
FINE = Precision(512, 2048, 16, 2, 125.0, 2.0**35, 1 << 21)

#: So many units above all positives S is 1 but for rounding, and softplus z.
ABOVE = 37.0

#: Entries of a matrix [positives, points] that are worked on at once.
ENTRIES = 1 << 17

#: So many positives, neighbours in quality if there are more, are compared pair by pair; lower ones come from a table.
NEIGHBOURS = 512


class Coarsening(NamedTuple):
    """Points of intervals, in units, and what each point gets of the moments of a cell.

    Moments are by powers of the offset from a cell's lower edge.
    """

    points: Tensor  # [points]
    downwards: Tensor  # the same with the other sign
    by_power: Tensor  # [moments, cells, points of an interval]


@lru_cache(maxsize=64)
def coarsening(intervals: int, precision: Precision, width: float, device: torch.device) -> Coarsening:
    """The points of so many intervals of cells of a width, and Lagrange's polynomials as shorter ones in each cell."""
    from numpy.polynomial import chebyshev  # when it is needed: importing the losses loads torch alone

    cells, points, moments = precision.interval, precision.points, precision.moments
    at = np.cos((2 * np.arange(points) + 1) * np.pi / (2 * points))
    lagrange = np.cos(np.outer(np.arange(points), np.arccos(at))) * 2 / points  # coefficients of T_0, T_1, …
    lagrange[0] /= 2
    # The shorter ones agree with them at a few Chebyshev points of the cell.
    offsets = (1 - np.cos((2 * np.arange(moments) + 1) * np.pi / (2 * moments))) / 2
    inside = (np.arange(cells) + offsets[:, None]) * 2 / cells - 1  # [moments, cells]
    powers = np.linalg.inv(np.vander(offsets, increasing=True))
    by_power = np.einsum("bj,pjc->bcp", powers, chebyshev.chebval(inside, lagrange))
    every = (np.arange(intervals)[:, None] * cells + (at + 1) / 2 * cells) * width
    at_points = torch.from_numpy(every.ravel()).to(device)
    return Coarsening(at_points, -at_points, torch.from_numpy(by_power).to(device))


class Grid(NamedTuple):
    """Where the cells are: cell k is [(low + k) / scale, (low + k + 1) / scale).

    Attributes:
        scale: Cells per unit of the logits, a power of two.
        low: Number of the first cell on the line.
        cells: Their number, whole intervals.
        dirty: Whether values of what is no negative are in the first cell, and nothing else.
        above: Whether there may be values above all cells.
    """

    scale: float
    low: float
    cells: int
    dirty: bool
    above: bool


def locate(x: Tensor, origin: Tensor, scale: float, cells: int) -> tuple[Tensor, Tensor]:
    """Cell of each of some values, and where it is counted in cells, float64: those beyond are in the outermost."""
    v = torch.add(origin, x, alpha=scale).clamp_(0, math.nextafter(cells, 0))
    return v.long(), v


class SigmoidSums:
    """Sums of a sigmoid or its cross entropy over the pairs of a group.

    A table has one row per cell, or per part of a cell where floors cut it, and the moments: [moments, rows].

    Args:
        group: The samples.
        spec: What is asked for.
        grid: Where the cells are.
    """

    def __init__(self, group: Group, spec: RankingSpec, grid: Grid) -> None:
        assert isinstance(spec.distance, Sigmoid)
        self.group, self.spec, self.lam, self.grid = group, spec, spec.distance.lam, grid
        self.precision, self.width = precision_of(group, spec), spec.distance.lam / grid.scale
        self.length = self.precision.interval
        self.with_error = isinstance(spec.distance, SigmoidCrossEntropy)
        self.layout = group.positives.new_full((1,), -grid.low)  # the cells' origin
        self.points, self.downwards, self.by_power = coarsening(
            grid.cells // self.length, self.precision, self.width, group.positives.device
        )
        floor = spec.floor(group.positives) if spec.has_floor else None
        self.cut = None if floor is None else Cut(floor, self)
        self.few = len(group.positives) <= NEIGHBOURS
        self.rows = grid.cells + (0 if floor is None else len(floor))

    @classmethod
    def of(cls, group: Group, spec: RankingSpec) -> SigmoidSums | None:
        """The sums, or None if the positives are too far apart or from zero for a table."""
        grid = grid_of(group, spec)
        return None if grid is None else cls(group, spec, grid)

    @property
    def units(self) -> Tensor:
        """The positives counted in units from the first cell, float64 [P]."""
        return self.group.positives.mul(self.grid.scale).sub_(self.grid.low).mul_(self.width)

    def over(self, values: Sequence[Tensor], lower: bool) -> Over:
        """Each positive's sums over its pairs; all values are 1, no formula has others with a sigmoid."""
        tables = [self.moments()] if self.few else [self.moments(), self._table(slice(None), values[0])]
        sums = self._read(torch.stack(tables))
        error = sums.error[0] + self.excess() if self.grid.above and self.with_error else sums.error[0]
        negatives = Sums(sums.rank[0], error, None if sums.number is None else sums.number[0])
        if self.few:
            return Over(negatives, *DenseSums(self.group, self.spec).among(values, lower), 0)
        return Over(negatives, sums.rank[1:], self._lower(values[0]) if lower else None, 0)

    def push(self, weights: Tensor, lower: bool) -> Tensor:
        """For each positive v, Σ_u weights_u · S(p_v - p_u) over the positives u of higher quality."""
        assert lower, "no formula pushes all positives with a sigmoid"
        if self.few:
            return DenseSums(self.group, self.spec).push(weights, lower)
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
        number, (scale, low, cells, dirty, _) = self.precision.moments, self.grid
        if self.precision is FINE:
            table = lattice.moments(values, lattice.Lattice(scale, low, cells), weight)
            table[:, : int(dirty)] = 0
            return table
        parts = blocks(values)
        table = self.points.new_zeros(number, self.rows)
        powers = self.points.new_ones(number, min(len(values), parts[0].stop) if parts else 0)
        for part in parts:
            x = values[part]
            row, v = locate(x, self.layout, scale, cells)
            if self.cut is not None:
                row += self.cut.floors_below.locate(x)[0]
            terms = powers[:, : len(x)]
            if weight is None:
                f = torch.frac(v, out=terms[1])
            else:
                f = v.frac_()
                torch.mul(terms[0].copy_(weight[part]), f, out=terms[1])
            for a in range(2, number):
                torch.mul(terms[a - 1], f, out=terms[a])
            table.scatter_add_(1, row.expand(number, -1), terms)
        if dirty:
            table[:, 0] = 0
        return table

    def excess(self) -> Tensor:
        """By how much negatives are above all cells, in sum: softplus grows by it."""
        edge, weight = (self.grid.low + self.grid.cells) / self.grid.scale, self.group.weight
        total = self.points.new_zeros(())
        for part in blocks(self.group.values):
            more = (self.group.values[part].double() - edge).clamp_(min=0)
            total += more.sum() if weight is None else more @ weight[part]
        return total

    # Sums at the positives

    def coarsened(self, tables: Tensor) -> Tensor:
        """What the points weigh for tables of whole cells, [..., moments, cells] to [..., points of each interval]."""
        return tables.unflatten(-1, (-1, self.length)) @ self.by_power

    def _table(self, chosen: slice | Tensor, values: Tensor) -> Tensor:
        """The table of some positives, each counting ``values`` times, [moments, rows]."""
        p = self.group.positives[chosen]
        row, v = locate(p, self.layout, self.grid.scale, self.grid.cells)
        row, f = row if self.cut is None else row + self.cut.floors_below.locate(p)[0], v.frac_()
        moments = [values[chosen]]
        for _ in range(1, self.precision.moments):
            moments.append(moments[-1] * f)
        return self.points.new_zeros(len(moments), self.rows).index_add_(1, row, torch.stack(moments))

    def chunks(self, number: int) -> list[slice]:
        """Parts of so many positives to work on at once."""
        step = max(1, ENTRIES // len(self.points))
        return [slice(start, min(start + step, number)) for start in range(0, number, step)]

    def _read(self, tables: Tensor, chosen: Tensor | slice = slice(None)) -> Sums:
        """For each of some positives, the sums over the samples of tables [T, moments, rows]; [T, P] each."""
        u = self.units[chosen]
        whole = tables if self.cut is None else self.cut.whole(tables)
        weights = self.coarsened(whole).sum(1).flatten(1).T  # of the points, [points, T]
        rank, error, number = u.new_empty(3, len(u), len(tables))
        for part in self.chunks(len(u)):
            z = self.points - u[part, None]
            s, mistakes = z.sigmoid(), softplus(z, threshold=40.0) if self.with_error else z
            if self.cut is not None:
                above = self.cut.above(chosen, part)
                s, mistakes = s * above, mistakes * above
                torch.mm(above, weights, out=number[part])
            torch.mm(s, weights, out=rank[part])
            if self.with_error:
                torch.mm(mistakes, weights, out=error[part])
            if self.cut is not None:
                for sums, more in zip((rank, error, number), self.cut.near(tables, whole, chosen, part), strict=True):
                    sums[part] += more
        errors = error.T / self.lam if self.with_error else rank.T
        return Sums(rank.T, errors, None if self.cut is None else number.T)

    def _lower(self, values: Tensor) -> Sums:
        """For each positive u, sums over the positives v of lower quality, each counting ``values`` times."""
        p, (quality, order) = self.group.positives, self.group.quality.sort()
        rank, error, number = p.new_zeros(3, len(p))
        starts = range(0, len(p), NEIGHBOURS)
        lower = torch.searchsorted(quality, quality[::NEIGHBOURS].contiguous()).tolist()
        for start, whole in zip(starts, lower, strict=True):
            part = slice(start, start + NEIGHBOURS)
            u, q = order[part], quality[part]
            z = p[u] - p[u][:, None]
            counts = (q < q[:, None]) * values[u]
            if self.cut is not None:
                counts *= p[u] > self.cut.floor[u, None]
                number[u] = counts.sum(1)
            rank[u] = (self.spec.distance.rank(z) * counts).sum(1)
            error[u] = (self.spec.distance.error(z) * counts).sum(1)
            if start > 0:  # those before the neighbours: all of them, or those before the first one's quality
                sums = self._read(torch.stack([self._table(order[:end], values) for end in (start, whole)]), u)
                among_equals = q == q[0]
                rank[u] += torch.where(among_equals, sums.rank[1], sums.rank[0])
                error[u] += torch.where(among_equals, sums.error[1], sums.error[0])
                if sums.number is not None:
                    number[u] += torch.where(among_equals, sums.number[1], sums.number[0])
        return Sums(rank[None], error, number)

    # The adjoint

    def table(self, weights: Tensor) -> Tensor:
        """Coefficients in each row of Σ_u weights_u · S(x - p_u), by powers of the offset, [moments · rows]."""
        values, u = torch.zeros_like(self.points), self.units
        for part in self.chunks(len(u)):
            s = (self.points - u[part, None]).sigmoid_()
            values += weights[part] @ (s if self.cut is None else s * self.cut.above(slice(None), part))
        cells = self.refined(values)
        return (cells if self.cut is None else self.cut.rows(cells, weights)).flatten()

    def refined(self, values: Tensor) -> Tensor:
        """Coefficients in each cell of what has these values at the points, [moments, cells]."""
        return (values.view(-1, self.precision.points) @ self.by_power.transpose(1, 2)).flatten(1)


def evaluate(group: Group, spec: RankingSpec, layout: Tensor, table: Tensor, upstream: Tensor, out: Tensor) -> None:
    """Write the value of its row's polynomial at each sample."""
    assert isinstance(spec.distance, Sigmoid)
    precision = precision_of(group, spec)
    coefficients = torch.mul(table, upstream, out=out.new_empty(len(table))).view(precision.moments, -1)
    scale, floors_below, cells = scale_of(spec.distance, precision), None, coefficients.shape[1]
    if precision is FINE:
        cells_of = lattice.Lattice(scale, -float(layout), cells)
        for _ in lattice.evaluate(group.values, cells_of, coefficients.T.contiguous(), out):
            pass
        return
    if spec.has_floor:
        floor = spec.floor(group.positives)
        assert floor is not None
        floors_below, cells = Lookup(floor.sort().values, exact=True), cells - len(floor)
    for part in blocks(group.values):
        x = group.values[part]
        row, v = locate(x, layout, scale, cells)
        if floors_below is not None:
            row += floors_below.locate(x)[0]
        f = v.frac_().to(out.dtype)
        *rest, last = coefficients.index_select(1, row)
        for a, power in enumerate(rest[::-1]):
            last = torch.addcmul(power, last, f, out=out[part] if a == len(rest) - 1 else None)


def precision_of(group: Group, spec: RankingSpec) -> Precision:
    """How finely to compute a group."""
    if not spec.has_floor and group.values.dtype == torch.float32 and lattice.is_for(group.values):
        return FINE
    return (COARSE if spec.has_floor else PRECISION)[group.values.dtype]


def scale_of(distance: Sigmoid, precision: Precision) -> float:
    """Cells per unit of the logits."""
    return lattice.power_of_two(distance.lam * precision.cells)


def grid_of(group: Group, spec: RankingSpec) -> Grid | None:
    """Where a group's cells are, or None if the positives are too far apart or from zero for a table."""
    assert isinstance(spec.distance, Sigmoid)
    precision, lam = precision_of(group, spec), spec.distance.lam
    scale = scale_of(spec.distance, precision)
    least, most, lowest, highest = group.limits or _limits(group)
    if not max(-least, most) * scale <= precision.largest:
        return None
    low, bottom = float(math.floor(least * scale) - math.ceil(precision.below * scale / lam)), -math.inf
    if spec.has_floor:  # nothing below the lowest floor counts
        floor = spec.floor(group.positives)
        assert floor is not None
        low = math.floor(float(floor.min()) * scale) - 1
    elif lowest * scale > low:
        bottom = math.floor(lowest * scale) - 1  # one cell for what is no negative
    dirty, low, high = bottom >= low, max(low, bottom), max(most, min(highest, most + ABOVE / lam)) * scale + 2
    if precision is FINE:
        low = lattice.rounded_down(low, group.values.dtype)
    if not high - low <= precision.most:
        return None
    cells = math.ceil((high - low) / precision.interval) * precision.interval
    return Grid(scale, low, cells, dirty, highest >= (low + cells) / scale)


def _limits(group: Group) -> Limits:
    least, most = torch.stack(group.positives.aminmax()).tolist()
    highest = float(group.values.max()) if len(group.values) else most
    return Limits(least, most, -math.inf, highest)
