"""Sums of the sigmoid and the softplus over all pairs in torch operations.

A histogram of the samples with moments 0 to 3 per cell. From the lowest positive's neighbourhood upwards S and softplus
are Taylor expansions about the cells' centres, as matrices [positives, cells]; far below all positives
S(z) = Σ_j ±e^(jz), which factorises. Floors cut the cells further, so that each part of a cell is above or below each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from rankwise.pairsums.distances import Sigmoid, SigmoidCrossEntropy
from rankwise.pairsums.engines.by_sums import Group, skipped
from rankwise.pairsums.engines.dense import DenseSums
from rankwise.pairsums.formula import Over, Sums
from rankwise.pairsums.spec import RankingSpec

#: Least number of cells per unit of 1/λ, and how many units below all positives e^z underflows.
CELLS, BELOW = {torch.float32: 16, torch.float64: 128}, {torch.float32: 125.0, torch.float64: 765.0}

#: So far below all positives the series of exponentials sets in, with so many terms; so far above them S is 1.
WINDOW, TERMS, ABOVE = 3.5, 8, 37.0

#: Most cells of a table, and the largest number of a cell that is exact.
MOST, LARGEST = 1 << 18, 2.0**50

#: Entries of a matrix [positives, cells], and samples, that are worked on at once.
ENTRIES, BLOCK = 1 << 17, 1 << 17

#: So many positives, neighbours in quality if there are more, are compared pair by pair; lower ones come from a table.
NEIGHBOURS = 512


class SigmoidSums:
    """Sums of a sigmoid or its cross entropy over the pairs of a group.

    Cells are numbered from 0, which also holds all below it; the last also holds all above. A table has one row per
    cell, or per part of a cell where floors cut it: row = cell + number of floors below.

    Args:
        group: The samples.
        spec: What is asked for.
        scale: Cells per unit of the logits, a power of two.
        low: Number of the first cell on the line.
        first: First cell of the matrices.
        cells: Number of cells.
    """

    def __init__(self, group: Group, spec: RankingSpec, scale: float, low: float, first: int, cells: int) -> None:
        assert isinstance(spec.distance, Sigmoid)
        self.group, self.spec, self.lam = group, spec, spec.distance.lam
        self.scale, self.low, self.first, self.cells = scale, low, first, cells
        self.width, self.with_error = self.lam / scale, isinstance(spec.distance, SigmoidCrossEntropy)
        device = group.positives.device
        self.centre = torch.arange(cells, dtype=torch.float64, device=device)
        factors = [self.width**a / math.factorial(a) for a in range(4)]
        self.scaling = torch.tensor(factors, dtype=torch.float64, device=device)
        self.v = group.positives * scale - (low + 0.5)  # from the centre of the first cell, in cells
        self.floor = spec.floor(group.positives)
        self.cut = None if self.floor is None else _Cut(self.floor, scale, low, cells)
        self.few = len(group.positives) <= NEIGHBOURS
        self.rows = cells if self.floor is None else cells + len(self.floor)

    @classmethod
    def of(cls, group: Group, spec: RankingSpec) -> SigmoidSums | None:
        """The sums, or None if the positives are too far apart or from zero for a table."""
        assert isinstance(spec.distance, Sigmoid)
        per_unit = 2.0 ** math.ceil(math.log2(spec.distance.lam * CELLS[group.values.dtype]))
        width = spec.distance.lam / per_unit
        least, most = (torch.stack(group.positives.aminmax()) * per_unit).floor().tolist()
        if spec.has_floor:  # nothing below the lowest floor counts
            floor = spec.floor(group.positives)
            assert floor is not None
            low = first = math.floor(float(floor.min()) * per_unit) - 1
        else:
            first = least - math.ceil(WINDOW / width)
            low = first - math.ceil(BELOW[group.values.dtype] / width)
        cells = most + math.ceil(ABOVE / width) + 2 - low
        if not cells <= MOST or max(-low, low + cells) > LARGEST:
            return None
        return cls(group, spec, per_unit, low, int(first - low), int(cells))

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
        cubics = self._cubics(weights).to(out.dtype)
        for part in self._parts():
            row, offset = self._locate(self.group.values[part])
            c0, c1, c2, c3 = cubics.T.index_select(1, row)
            f = offset.clamp_(-0.5, 0.5).to(out.dtype)  # the cubics of the first and last cell are constant
            torch.addcmul(c0, torch.addcmul(c1, torch.addcmul(c2, c3, f), f), f, out=out[part])
        out[skipped(self.group.skip)] = 0

    # The passes over the samples

    def _parts(self) -> list[slice]:
        return [slice(start, start + BLOCK) for start in range(0, len(self.group.values), BLOCK)]

    def _locate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Row and offset in its cell of each sample."""
        offset = (x.double() * self.scale).sub_(self.low)
        cell = offset.clamp(0, self.cells - 1).floor_()
        row = cell.long().clamp_(0, self.cells - 1)  # NaN has no cell
        offset.sub_(cell).sub_(0.5)
        return row if self.cut is None else row + torch.bucketize(x.double(), self.cut.floors), offset

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Moments 0 to 3 of the negatives in each row, [rows, 4], and how many of them are NaN or infinite."""
        values = self.group.values
        table = self.centre.new_zeros(4, self.rows + 1)  # one row more for what is not negative
        faults = torch.zeros((), dtype=torch.int64, device=values.device)
        is_skipped = torch.zeros_like(values, dtype=torch.bool).index_fill_(0, skipped(self.group.skip), True)
        for part in self._parts():
            row, f = self._locate(values[part])
            row.masked_fill_(is_skipped[part], self.rows)
            square = f * f
            table.scatter_add_(1, row.expand(4, -1), torch.stack([torch.ones_like(f), f, square, square * f]))
            faults = faults + (~(values[part].isfinite() | is_skipped[part])).sum()
        table = table[:, :-1].T.contiguous()
        table[: 1 if self.cut is None else self.cut.bottom, 1:] = 0  # offsets far below the first cell
        return table, faults

    # Sums at the positives

    def _table(self, chosen: slice | Tensor, values: Tensor) -> Tensor:
        """The moments of some positives, each counting ``values`` times, [rows, 4]."""
        row, f = self._locate(self.group.positives[chosen])
        moments = [values[chosen]]
        for _ in range(3):
            moments.append(moments[-1] * f)
        return self.centre.new_zeros(self.rows, 4).index_add_(0, row, torch.stack(moments, 1))

    def _chunks(self, number: int) -> list[slice]:
        step = max(1, ENTRIES // (self.cells - self.first))
        return [slice(start, min(start + step, number)) for start in range(0, number, step)]

    def _kernels(self, z: Tensor) -> Tensor:
        """Softplus, S and its first three derivatives at z, [5, ...]."""
        found = z.new_empty(5, *z.shape)
        error, s, d1, d2, d3 = found
        if self.with_error:
            error.copy_(softplus(z, threshold=40.0))
        torch.sigmoid(z, out=s)
        torch.sigmoid(-z, out=d2)  # 1 - S with all its digits
        torch.mul(s, d2, out=d1)
        torch.addcmul(d1, d1, d1, value=-6, out=d3)
        d2.sub_(s).mul_(d1)
        return found

    def _series(self, v: Tensor) -> Tensor:
        """±e^(-jz) from the lower edge of the matrices' first cell to positives at v, [len(v), TERMS]."""
        fall = torch.exp(self.width * (self.first - 0.5 - v))
        return -(-fall[:, None].expand(-1, TERMS)).cumprod(1)

    def _rising(self) -> Tensor:
        """e^(jz) from the cells below up to that edge, by powers of the offset, [TERMS, first - 1, 4]."""
        j = torch.arange(1, TERMS + 1, dtype=torch.float64, device=self.v.device)[:, None]
        rise = torch.exp(j * self.width * (self.centre[1 : self.first] - (self.first - 0.5)))
        return rise[:, :, None] * (j ** torch.arange(4, device=self.v.device) * self.scaling)[:, None]

    def _read(self, tables: Tensor, chosen: Tensor | slice = slice(None)) -> Sums:
        """For each of some positives, the sums over the samples of tables [T, rows, 4]; [T, P] each."""
        v = self.v[chosen]
        cell = None if self.cut is None else self.cut.cell[chosen]
        whole = tables if self.cut is None else self.cut.whole(tables)
        top, offset = whole[:, -1, :2, None].unbind(1)  # far above all positives S is 1 and softplus z
        rank = top.repeat(1, len(v))
        error = self.width * (top * (self.cells - 1 - v) + offset)
        number = rank.clone() if self.cut is not None else None
        upper = (whole[:, self.first : -1] * self.scaling).permute(2, 1, 0)  # [4, cells, T]
        lower = torch.einsum("jca,tca->jt", self._rising(), whole[:, 1 : self.first])
        for part in self._chunks(len(v)):
            kernels = self._kernels(self.width * (self.centre[self.first : -1] - v[part, None]))
            if cell is not None and number is not None:
                above = cell[part, None] < self.centre[self.first : -1]
                kernels *= above
                number[:, part] += (above.double() @ upper[0]).T
            series = self._series(v[part])
            rank[:, part] += (torch.bmm(kernels[1:], upper).sum(0) + series @ lower).T
            if self.with_error:
                series = series / torch.arange(1, TERMS + 1, device=v.device)
                error[:, part] += (torch.bmm(kernels[:4], upper).sum(0) + series @ lower).T
        if self.cut is not None and number is not None:  # and the samples in each floor's own cell
            moments = self.cut.above_floor(tables, chosen) * self.scaling
            kernels = self._kernels(self.width * (self.cut.cell[chosen] - v)).T
            rank += (moments * kernels[:, 1:]).sum(2)
            error += (moments * kernels[:, :4]).sum(2)
            number += moments[:, :, 0]
        return Sums(rank, error / self.lam if self.with_error else rank, number)

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
        """Coefficients in each row of Σ_u weights_u · S(x - p_u), by powers of the offset, [rows, 4]."""
        cubics = self.centre.new_zeros(4, self.cells)
        for part in self._chunks(len(self.v)):
            kernels = self._kernels(self.width * (self.centre[self.first : -1] - self.v[part, None]))[1:]
            if self.cut is not None:
                kernels *= self.cut.cell[part, None] < self.centre[self.first : -1]
            cubics[:, self.first : -1] += weights[part] @ kernels
        cubics *= self.scaling[:, None]
        cubics[0, -1] = weights.sum()
        cubics[:, 1 : self.first] = torch.einsum("jca,j->ac", self._rising(), weights @ self._series(self.v))
        if self.cut is None:
            return cubics.T
        kernels = self._kernels(self.width * (self.cut.cell - self.v))[1:].T
        return self.cut.rows(cubics.T, kernels * self.scaling * weights[:, None])


class _Cut:
    """Cells cut at floors, into one part more than there are floors in them.

    Args:
        floor: Of each positive, float64 [P].
        scale: Cells per unit.
        low: Number of the first cell on the line.
        cells: Number of cells.

    Attributes:
        floors: Sorted.
        cell: The cell of each positive's floor, [P].
        bottom: Rows of the first cell.
    """

    bottom = 1  # no floor is in it

    def __init__(self, floor: Tensor, scale: float, low: float, cells: int) -> None:
        self.floors, order = floor.sort()
        self.cell = ((floor * scale).floor() - low).long()
        self.under = self.cell + order.argsort()  # the highest row at or under each positive's floor
        every = torch.arange(cells, device=floor.device)
        self.last = every + torch.searchsorted(self.cell.sort().values, every, right=True)  # row of each cell
        self.cell_of = torch.searchsorted(self.last, torch.arange(cells + len(floor), device=floor.device))

    def whole(self, tables: Tensor) -> Tensor:
        """Tables of whole cells, [T, cells, 4]."""
        return tables.new_zeros(len(tables), len(self.last), 4).index_add_(1, self.cell_of, tables)

    def above_floor(self, tables: Tensor, chosen: Tensor | slice) -> Tensor:
        """For each of some positives, the moments of the samples above its floor in that floor's cell, [T, P, 4]."""
        running = tables.cumsum(1)
        return running[:, self.last[self.cell[chosen]]] - running[:, self.under[chosen]]

    def rows(self, cubics: Tensor, at_floor: Tensor) -> Tensor:
        """Cubics of the rows, from those of whole cells and what sets in at each positive's floor in its cell."""
        running = cubics.new_zeros(len(self.cell_of) + 1, 4).index_add_(0, self.under + 1, at_floor).cumsum(0)
        first = self.last.roll(1) + 1
        first[0] = 0
        return cubics[self.cell_of] + running[:-1] - running[first[self.cell_of]]
