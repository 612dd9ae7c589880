"""Sums of the sigmoid and the softplus over all pairs in torch operations.

A histogram of the samples has moments 0 to 3 in each cell. Many cells are an interval, in which S and softplus are
polynomials through Chebyshev points. So the moments are coarsened to weights of the points, and sums over pairs are
matrices [positives, points] times weights. The adjoint refines values at the points to a cubic in each cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor
from torch.nn.functional import softplus

from rankwise.pairsums.distances import Sigmoid, SigmoidCrossEntropy
from rankwise.pairsums.engines.by_sums import Group
from rankwise.pairsums.engines.dense import DenseSums
from rankwise.pairsums.engines.torch.lookup import Lookup
from rankwise.pairsums.formula import Over, Sums
from rankwise.pairsums.spec import RankingSpec


class Precision(NamedTuple):
    """How finely to compute, in units of 1/λ.

    Attributes:
        cells: Least number of cells per unit.
        interval: Cells in an interval: 2 to 4 units.
        points: Chebyshev points in it.
        below: So far below all positives e^z underflows, even summed over a billion samples.
    """

    cells: int
    interval: int
    points: int
    below: float


PRECISION = {
    torch.float32: Precision(16, 64, 16, 125.0),  # relative error 1e-7 in the worst place
    torch.float64: Precision(128, 512, 28, 765.0),  # and 1e-11
}

#: So many units above all positives S is 1 but for rounding.
ABOVE = 37.0

#: Most cells of a table, and the largest number of a cell that is exact.
MOST, LARGEST = 1 << 18, 2.0**50

#: Entries of a matrix [positives, points], and samples, that are worked on at once.
ENTRIES, BLOCK = 1 << 17, 1 << 16

#: So many positives, neighbours in quality if there are more, are compared pair by pair; lower ones come from a table.
NEIGHBOURS = 512


@lru_cache(maxsize=64)
def coarsening(intervals: int, cells: int, points: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The points of intervals of so many cells, counted in cells, and what each point gets of a cell's moments.

    That is how Lagrange's polynomials expand about the cells' centres, by powers of the offset, [4, cells, K].
    """
    at = np.cos((2 * np.arange(points) + 1) * np.pi / (2 * points))
    lagrange = np.cos(np.outer(np.arange(points), np.arccos(at))) * 2 / points  # coefficients of T_0, T_1, …
    lagrange[0] /= 2
    centre = (2 * np.arange(cells) + 1) / cells - 1
    expansion = [
        chebyshev.chebval(centre, chebyshev.chebder(lagrange, a)).T * (2 / cells) ** a / math.factorial(a)
        for a in range(4)
    ]
    every = np.arange(intervals)[:, None] * cells + (at + 1) / 2 * cells
    return torch.from_numpy(every.ravel()).to(device), torch.from_numpy(np.stack(expansion)).to(device)


class SigmoidSums:
    """Sums of a sigmoid or its cross entropy over the pairs of a group.

    Cells are numbered from 0. A table has one row per cell, or per part of a cell where floors cut it, one before them
    for all that does not count, and one after them for all that is above. Its columns are the moments: [4, rows].

    Args:
        group: The samples.
        spec: What is asked for.
        scale: Cells per unit of the logits, a power of two.
        low: Number of the first cell on the line.
        intervals: Number of intervals.
    """

    def __init__(self, group: Group, spec: RankingSpec, scale: float, low: float, intervals: int) -> None:
        assert isinstance(spec.distance, Sigmoid)
        self.group, self.spec, self.lam = group, spec, spec.distance.lam
        self.scale, self.low, self.intervals = scale, low, intervals
        self.length, points = PRECISION[group.values.dtype][1:3]
        self.cells, self.width = intervals * self.length, self.lam / scale
        self.with_error = isinstance(spec.distance, SigmoidCrossEntropy)
        device = group.positives.device
        self.points, self.coarsening = coarsening(intervals, self.length, points, device)
        self.v = group.positives * scale - low  # in cells
        self.floor = spec.floor(group.positives)
        self.cut = None if self.floor is None else _Cut(self.floor, self)
        self.few = len(group.positives) <= NEIGHBOURS
        self.rows = self.cells + 2 + (0 if self.floor is None else len(self.floor))

    @classmethod
    def of(cls, group: Group, spec: RankingSpec) -> SigmoidSums | None:
        """The sums, or None if the positives are too far apart or from zero for a table."""
        assert isinstance(spec.distance, Sigmoid)
        precision = PRECISION[group.values.dtype]
        scale = 2.0 ** math.ceil(math.log2(spec.distance.lam * precision.cells))
        width = spec.distance.lam / scale
        least, most = (torch.stack(group.positives.aminmax()) * scale).floor().tolist()
        low = least - math.ceil(precision.below / width)
        if spec.has_floor:  # nothing below the lowest floor counts
            floor = spec.floor(group.positives)
            assert floor is not None
            low = math.floor(float(floor.min()) * scale) - 1
        cells = most + math.ceil(ABOVE / width) + 2 - low
        if not cells <= MOST or max(-low, low + cells) > LARGEST:
            return None
        return cls(group, spec, scale, low, math.ceil(cells / precision.interval))

    def over(self, values: Sequence[Tensor], lower: bool) -> Over:
        """Each positive's sums over its pairs; all values are 1, no formula has others with a sigmoid."""
        table, faults = self._moments()
        tables = [table] if self.few else [table, self._table(slice(None), values[0])]
        sums = self._read(torch.stack(tables))
        negatives = Sums(sums.rank[0], sums.error[0], None if sums.number is None else sums.number[0])
        if self.few:
            return Over(negatives, *DenseSums(self.group, self.spec).among(values, lower), faults)
        return Over(negatives, sums.rank[1:], self._lower(values[0]) if lower else None, faults)

    def push(self, weights: Tensor, lower: bool) -> Tensor:
        """For each positive v, Σ_u weights_u · S(p_v - p_u) over the positives u of higher quality."""
        assert lower, "no formula pushes all positives with a sigmoid"
        if self.few:
            return DenseSums(self.group, self.spec).push(weights, lower)
        group = self.group._replace(positives=-self.group.positives, quality=-self.group.quality)
        mirrored = SigmoidSums.of(group, self.spec)  # S(p_v - p_u) = S((-p_u) - (-p_v)), floors too
        assert mirrored is not None
        return mirrored._lower(weights).rank[0]

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · S(x_v - p_u), and 0 elsewhere."""
        c0, c1, c2, c3 = self._cubics(weights).to(out.dtype)
        for part in self._parts():
            row, offset = self._locate(self.group.values[part])
            f = offset.clamp_(-0.5, 0.5).to(out.dtype)  # below and above all cells it is constant
            value = torch.addcmul(c2.index_select(0, row), c3.index_select(0, row), f)
            value = torch.addcmul(c1.index_select(0, row), value, f)
            torch.addcmul(c0.index_select(0, row), value, f, out=out[part])
        if len(self.group.skip):
            out.masked_fill_(self.group.skip, 0)

    # The passes over the samples

    def _parts(self) -> list[slice]:
        return [slice(start, start + BLOCK) for start in range(0, len(self.group.values), BLOCK)]

    def _locate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Row and offset in its cell of each sample; NaN has the first row."""
        v = x.double() * self.scale
        cell = v.floor().clamp_(self.low - 1, self.low + self.cells)
        offset = v.sub_(cell).sub_(0.5)
        row = cell.sub_(self.low - 1).nan_to_num_(0.0).long()
        return row if self.cut is None else row + self.cut.floors_below(x.double()), offset

    def _moments(self) -> tuple[Tensor, Tensor]:
        """The table of the negatives, [4, rows], and how many of them are NaN or infinite."""
        values, skip = self.group.values, self.group.skip
        table = self.points.new_zeros(4, self.rows)
        faults = -skip.sum()
        for part in self._parts():
            x = values[part].masked_fill(skip[part], -torch.inf) if len(skip) else values[part]
            row, f = self._locate(x)
            square = f * f
            table.scatter_add_(1, row.expand(4, -1), torch.stack([torch.ones_like(f), f, square, square * f]))
            faults = faults + (x - x).count_nonzero()  # NaN is not zero
        table[:, 0] = 0
        return table, faults

    # Sums at the positives

    def _table(self, chosen: slice | Tensor, values: Tensor) -> Tensor:
        """The table of some positives, each counting ``values`` times, [4, rows]."""
        row, f = self._locate(self.group.positives[chosen])
        moments = [values[chosen]]
        for _ in range(3):
            moments.append(moments[-1] * f)
        return self.points.new_zeros(4, self.rows).index_add_(1, row, torch.stack(moments))

    def _chunks(self, number: int) -> list[slice]:
        step = max(1, ENTRIES // len(self.points))
        return [slice(start, min(start + step, number)) for start in range(0, number, step)]

    def _read(self, tables: Tensor, chosen: Tensor | slice = slice(None)) -> Sums:
        """For each of some positives, the sums over the samples of tables [T, 4, rows]; [T, P] each."""
        v = self.v[chosen]
        whole = tables if self.cut is None else self.cut.whole(tables)
        inner = whole[:, :, 1:-1].unflatten(2, (self.intervals, self.length))
        weights = (inner @ self.coarsening).sum(1).flatten(1).T  # of the points, [points, T]
        top, offset = whole[:, :2, -1, None].unbind(1)  # far above all positives S is 1 and softplus z
        rank, error, number = v.new_empty(3, len(v), len(tables))
        for part in self._chunks(len(v)):
            z = (self.points - v[part, None]) * self.width
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
        ranks = rank.T + top
        errors = (error.T + self.width * (top * (self.cells + 0.5 - v) + offset)) / self.lam
        numbers = None if self.cut is None else number.T + top
        return Sums(ranks, errors if self.with_error else ranks, numbers)

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
            if self.floor is not None:
                counts *= p[u] > self.floor[u, None]
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

    def _cubics(self, weights: Tensor) -> Tensor:
        """Coefficients in each row of Σ_u weights_u · S(x - p_u), by powers of the offset, [4, rows]."""
        values = torch.zeros_like(self.points)
        for part in self._chunks(len(self.v)):
            s = ((self.points - self.v[part, None]) * self.width).sigmoid()
            values += weights[part] @ (s if self.cut is None else s * self.cut.above(slice(None), part))
        cubics = self.points.new_zeros(4, self.cells + 2)
        refined = values.view(self.intervals, -1) @ self.coarsening.transpose(1, 2)  # [4, intervals, cells of each]
        cubics[:, 1:-1] = refined.flatten(1)
        cubics[0, -1] = weights.sum()
        return cubics if self.cut is None else self.cut.rows(cubics, weights)


class _Cut:
    """Cells cut at floors, into one part more than there are floors in them.

    Args:
        floor: Of each positive, float64 [P].
        sums: What they are cut for.
    """

    def __init__(self, floor: Tensor, sums: SigmoidSums) -> None:
        self.sums = sums
        scaling = [sums.width**a / math.factorial(a) for a in range(4)]
        self.scaling = torch.tensor(scaling, dtype=torch.float64, device=floor.device)[:, None, None]
        floors, order = floor.sort()
        self.floors_below = Lookup(floors)
        self.cell = ((floor * sums.scale).floor() - sums.low).long()  # of each positive's floor
        self.under = self.cell + 1 + order.argsort()  # the highest row at or under each positive's floor
        every = torch.arange(sums.cells + 2, device=floor.device)
        self.last = every + torch.searchsorted(self.cell.sort().values + 1, every, right=True)  # row of each cell
        self.cell_of = torch.searchsorted(self.last, torch.arange(len(every) + len(floor), device=floor.device))

    def whole(self, tables: Tensor) -> Tensor:
        """Tables of whole cells, [T, 4, cells + 2]."""
        return tables.new_zeros(*tables.shape[:2], len(self.last)).index_add_(2, self.cell_of, tables)

    def above(self, chosen: Tensor | slice, part: slice) -> Tensor:
        """Which points count for some positives: those of intervals above their floor's, float64 [P, points]."""
        interval = self.cell[chosen][part].div(self.sums.length, rounding_mode="floor") + 1
        return (self.sums.points > interval[:, None] * self.sums.length).double()

    def near(self, tables: Tensor, whole: Tensor, chosen: Tensor | slice, part: slice) -> tuple[Tensor, ...]:
        """Rank, error and number of the samples above each positive's floor in that floor's interval, [P, T] each."""
        cell, under = self.cell[chosen][part], self.under[chosen][part]
        running = tables.cumsum(2)
        own = running[:, :, self.last[cell + 1]] - running[:, :, under]  # in the floor's own cell
        cells, kernels = self._interval(cell, self.sums.v[chosen][part])
        moments = torch.where(cells == cell[:, None], own[..., None], whole[:, :, cells + 1])
        moments = moments * (cells >= cell[:, None])
        number = moments[:, 0].sum(2).T
        moments = moments * self.scaling
        return *(torch.einsum("tapc,apc->pt", moments, kernels[first : first + 4]) for first in (1, 0)), number

    def rows(self, cubics: Tensor, weights: Tensor) -> Tensor:
        """Cubics of the rows, [4, rows], from those of whole cells without what sets in at floors of their interval."""
        setting_in = cubics.new_zeros(4, len(self.cell_of) + 1)
        for part in self.sums._chunks(len(weights)):
            cell = self.cell[part]
            cells, kernels = self._interval(cell, self.sums.v[part])
            kernels = kernels[1:] * weights[part, None] * self.scaling
            above = kernels * (cells > cell[:, None])
            cubics.index_add_(1, cells.flatten() + 1, above.flatten(1))
            own = kernels.gather(2, (cell % self.sums.length).expand(4, -1)[..., None])[..., 0]
            setting_in.index_add_(1, self.under[part] + 1, own)
        running = setting_in.cumsum(1)
        first = self.last.roll(1) + 1
        first[0] = 0
        return cubics[:, self.cell_of] + running[:, :-1] - running[:, first[self.cell_of]]

    def _interval(self, cell: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The cells in the interval of each of some cells, [P, cells]; softplus, S and its derivatives, [5, P, cells].

        The latter are at the cells' centres, for positives at v.
        """
        cells = (cell - cell % self.sums.length)[:, None] + torch.arange(self.sums.length, device=cell.device)
        z = (cells + 0.5 - v[:, None]) * self.sums.width
        s, rest = z.sigmoid(), (-z).sigmoid()  # 1 - S with all its digits
        first = s * rest
        kernels = [softplus(z, threshold=40.0), s, first, first * (rest - s), first - 6 * first * first]
        return cells, torch.stack(kernels)
