"""Sums of a sigmoid or softplus over all pairs, by polynomials on a lattice of cells.

Samples are summed into cells as powers of their place in the cell. Between two cells near each other S(x_v - p_u) is a
polynomial of both places (`Expansion`); far below a positive it is e^(λz), which factorises, far above it is 1, and
softplus is λz: there running sums over the cells do. Cost and memory depend on how far the positives are spread, not on
how many they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankwise.pairsums.cells import Cells
from rankwise.pairsums.distances import Sigmoid, SigmoidCrossEntropy
from rankwise.pairsums.expansion import expansion, reading, refinement, vandermonde, writing
from rankwise.pairsums.samples import Sums


@dataclass(frozen=True)
class Precision:
    """How finely to compute.

    Attributes:
        width: Largest width of a cell in units of 1/λ.
        degree: Degree of the polynomials over a cell.
        near: Beyond so many units above or below, e^-z is lost in rounding.
        depth: So many units below all positives e^z underflows, even summed over a billion samples.
        parts: A cell is cut into so many parts for the passes over the negatives,
        part_degree: with polynomials of this degree over a part.
    """

    width: float
    degree: int
    near: float
    depth: float
    parts: int
    part_degree: int


#: Relative error about 1e-8 for float32 logits and 1e-13 for float64.
PRECISION = {
    torch.float32: Precision(width=1.0, degree=7, near=20.0, depth=125.0, parts=16, part_degree=3),
    torch.float64: Precision(width=0.5, degree=9, near=37.0, depth=765.0, parts=1, part_degree=9),
}

#: Up to so many cells the lattice is one stretch, its cells cut in parts; beyond, it has only cells near positives.
ONE_STRETCH = 1 << 12

#: At most so many cells, some 300 MB of them.
MOST_CELLS = 1 << 22

#: Windows of so many numbers are read at once.
WINDOWS = 1 << 17


class TooWideError(ValueError):
    """The positives are spread so widely that their lattice would not fit in memory."""


class SigmoidCells:
    """Positives on a lattice of cells: tables of samples are read at them, tables of their weights at samples.

    A *table* has the powers summed in each cell, for each of several blocks of samples, float64 [blocks, cells, n].
    Tables add up. The first cell collects everything below the lattice, the last of each stretch everything above it.

    Args:
        positives: Logits, float64 [P], at least one.
        distance: Sigmoid or SigmoidCrossEntropy.
        dtype: float32 or float64: how precisely to compute.
        reach: Least number of cells on both sides of a positive to treat as near.
    """

    def __init__(self, positives: Tensor, distance: Sigmoid, dtype: torch.dtype, reach: int = 0) -> None:
        precision = PRECISION[dtype]
        self.distance = distance
        self.scale = cells_per_unit(distance, dtype)
        self.width = distance.lam / self.scale
        self.reach = max(math.ceil(precision.near / self.width), reach)
        depth = max(math.ceil(precision.depth / self.width), self.reach) + 2
        low, high = _stretches((positives * self.scale).floor(), depth, self.reach + 1)
        self.lattice = Cells(self.scale, low, high, precision.degree)
        self.parts = precision.parts if len(low) == 1 and self.lattice.size <= ONE_STRETCH else 1
        self.part_degree = precision.part_degree if self.parts > 1 else precision.degree
        self.cell, self.place = self.lattice.locate(positives)
        self.powers = vandermonde(self.place, precision.degree)  # [P, n]
        self.index = self.cell  # the cell of each positive as a sample
        #: The cells from the lowest positive to the highest, if they are fewer than the positives.
        self.occupied: Tensor | None = None
        if len(low) == 1 and self.lattice.size - depth - self.reach - 1 < len(positives):
            self.occupied = torch.arange(depth, self.lattice.size - self.reach - 1, device=positives.device)

        self.expansion = expansion(self.width, precision.degree, self.reach, positives.device)
        self.with_error = isinstance(distance, SigmoidCrossEntropy)
        self.reading, self.writing = reading(self.expansion, self.with_error), writing(self.expansion)

    @property
    def n(self) -> int:
        """Numbers a cell."""
        return self.lattice.degree + 1

    @property
    def size(self) -> int:
        """Cells of a table."""
        return self.lattice.size

    # The passes over the negatives

    @property
    def pass_cells(self) -> Cells:
        """The cells for a pass over the negatives: the lattice's, each cut into parts except the first and the last."""
        if self.parts == 1:
            return self.lattice
        low, high = (self.lattice.low[0] + 1) * self.parts - 1, self.lattice.high[0] * self.parts
        return Cells(self.scale * self.parts, (low,), (high,), self.part_degree)

    def fold(self, moments: Tensor) -> Tensor:
        """A table of one block, from the powers that a pass has summed in its cells."""
        if self.parts > 1:
            matrix = refinement(self.n - 1, self.part_degree, self.parts, moments.device)
            whole = moments.new_zeros(self.size, self.n)
            torch.mm(moments[1:-1].reshape(self.size - 2, -1), matrix, out=whole[1:-1])
            whole[0, 0] = moments[0, 0]
            whole[-1, :2] = moments[-1, :2]
            whole[-1, 1] = (whole[-1, 1] + whole[-1, 0] / 2) / self.parts - whole[-1, 0] / 2
            return whole[None]
        table = moments.clone()
        table[0, 1:] = 0
        table[self.open_cells[1:], 2:] = 0
        return table[None]

    def unfold(self, coefficients: Tensor) -> Tensor:
        """Polynomials over the cells of a pass, from those over the lattice's, [cells, n]."""
        if self.parts == 1:
            return coefficients
        matrix = refinement(self.n - 1, self.part_degree, self.parts, coefficients.device)
        result = coefficients.new_zeros((self.size - 2) * self.parts + 2, self.part_degree + 1)
        torch.mm(coefficients[1:-1], matrix.T, out=result[1:-1].view(self.size - 2, -1))
        result[0, 0], result[-1, 0] = coefficients[0, 0], coefficients[-1, 0]
        return result

    # Tables of samples, read at the positives

    def spread(self, values: Tensor, block: Tensor | None = None, blocks: int = 1) -> Tensor:
        """The table of the positives as samples, each counting ``values`` times, in its block."""
        table = self.powers.new_zeros(blocks * self.size, self.n)
        row = self.index if block is None else self.index + block * self.size
        return table.index_add_(0, row, self.powers * values[:, None]).view(blocks, self.size, self.n)

    def read(self, table: Tensor, block: Tensor | None = None) -> Sums:
        """For each positive, the sums over the samples of a table: its block, or the only one."""
        row = self.cell if block is None else self.cell + block * self.size
        wanted, where = row, None
        if block is None and self.occupied is not None:  # fewer cells than positives: each need be read but once
            wanted, where = self.occupied, row - self.occupied[0]
        near = window_product(table, wanted - self.reach, 2 * self.reach + 1, self.reading)
        near = near if where is None else near[where]
        rising = table @ self.expansion.rising
        rising[:, self.open_cells] = 0
        coming = self._decayed(rising).view(-1)[row - self.reach - 1]
        tail = coming * (-self.width * (self.reach + 1 + self.place)).exp()
        above = from_above(torch.stack([table[:, :, 0], table[:, :, 0] * self.position + table[:, :, 1]]))
        passed, total = above.view(2, -1)[:, row + self.reach + 1]
        number = table[:, :, 0].sum(1)
        return self._sums(near, tail, passed, total, number.expand(len(row)) if block is None else number[block])

    def _sums(self, near: Tensor, tail: Tensor | float, passed: Tensor, total: Tensor, number: Tensor) -> Sums:
        """The sums from those over samples near, far below, and far above: how many, and the sum of their positions."""
        values = (near.view(len(near), -1, self.n) * self.powers[:, None]).sum(2) + torch.as_tensor(tail)[..., None]
        rank = values[:, 0] + passed
        if values.shape[1] == 1:
            return Sums(number, rank, rank)
        error = values[:, 1] + self.width * (total - (self.position[self.cell] + self.place) * passed)
        return Sums(number, rank, error / self.distance.lam)

    # Tables of the positives' weights, read at samples

    def lay(self, weights: Tensor, block: Tensor | None = None, blocks: int = 1) -> Tensor:
        """The table of the positives' weights, for `polynomials`."""
        return self.spread(weights, block, blocks)

    def polynomials(self, table: Tensor, index: Tensor, block: Tensor | None = None) -> Tensor:
        """The sum over all positives of weight · rank(x - p_u), as polynomials over cells, [r, n].

        Args:
            table: From `lay`.
            index: The cells, int64 [r].
            block: The block to read for each, int64 [r]; the only one if not given.
        """
        wide = self.size + 2 * self.reach + 1
        row = index if block is None else index + block * wide  # of the lowest cell near, after padding
        padded = pad(table, (0, 0, self.reach, self.reach + 1))
        result = window_product(padded, row, 2 * self.reach + 1, self.writing)
        passed = padded[:, :, 0].cumsum(1) - padded[:, :, 0]
        result[:, 0] += passed.view(-1)[row]
        coming = self._decayed((table @ self.expansion.falling), backwards=True)
        coming = pad(coming, (self.reach, self.reach + 1)).view(-1)[row + 2 * self.reach + 1]
        position = pad(self.position, (0, self.reach + 1), value=torch.inf)
        distance = position[index + self.reach + 1] - position[index]
        result += (coming * (-self.width * distance).exp())[:, None] * self.expansion.rising
        result[self.is_open[index], 1:] = 0
        return result

    def at_positives(self, coefficients: Tensor) -> Tensor:
        """The value at each positive of the polynomial over its cell, [P] from [P, n]."""
        return (coefficients * self.powers).sum(1)

    # The geometry of the lattice

    @cached_property
    def open_cells(self) -> Tensor:
        """The cells that hold all beyond them: the first, and the last of each stretch, int64."""
        ends = [
            int(high - low) + base
            for low, high, base in zip(self.lattice.low, self.lattice.high, self.lattice.base, strict=True)
        ]
        return torch.tensor([0, *ends], device=self.place.device)

    @cached_property
    def is_open(self) -> Tensor:
        """Whether a cell holds all beyond it, bool [cells]."""
        mask = torch.zeros(self.lattice.size, dtype=torch.bool, device=self.place.device)
        mask[self.open_cells] = True
        return mask

    @cached_property
    def position(self) -> Tensor:
        """Where each cell is, in cells from the first, float64 [cells]."""
        order = torch.arange(self.lattice.size, dtype=torch.float64, device=self.place.device)
        if len(self.lattice.low) == 1:
            return order
        low, high, base = order.new_tensor([self.lattice.low, self.lattice.high, self.lattice.base])
        return order + (low - low[0] - base).repeat_interleave((high - low).long() + 1)

    def _decayed(self, values: Tensor, backwards: bool = False) -> Tensor:
        """Running sums over cells, [blocks, cells], in which a term falls off as e^-distance."""
        position = self.position
        if backwards:
            values, position = values.flip(1), position[-1] - position.flip(0)
        if float(len(position)) * self.width < 600 and len(self.lattice.low) == 1:
            growth = (self.width * position).exp()
            result = (values * growth).cumsum(1) / growth
        else:
            result, shift = values, 1
            while shift < min(len(position), 800 / self.width):  # e^-800 is 0
                decay = (self.width * (position[:-shift] - position[shift:])).exp()
                result = result + pad(result[:, :-shift] * decay, (shift, 0))
                shift *= 2
        return result.flip(1) if backwards else result


def cells_per_unit(distance: Sigmoid, dtype: torch.dtype) -> float:
    """The scale of the lattice, a power of two."""
    return 2.0 ** math.ceil(math.log2(distance.lam / PRECISION[dtype].width))


def window_product(table: Tensor, first: Tensor, length: int, matrix: Tensor) -> Tensor:
    """Stretches of cells, flattened, times a matrix.

    Args:
        table: [blocks, cells, n].
        first: The first cell of each stretch, counted over all blocks, int64 [r].
        length: Cells a stretch.
        matrix: [length · n, k].

    Returns:
        [r, k].
    """
    n = table.shape[2]
    flat = table.contiguous().view(-1)
    windows = flat.as_strided((flat.numel() // n - length + 1, length * n), (n, 1), flat.storage_offset())
    rows = max(1, WINDOWS // (length * n))
    result = flat.new_empty(len(first), matrix.shape[1])
    for part, out in zip(first.split(rows), result.split(rows), strict=True):
        torch.mm(windows[part], matrix, out=out)
    return result


def from_above(values: Tensor) -> Tensor:
    """Sums from each cell, itself included, up to the last."""
    return values.flip(-1).cumsum(-1).flip(-1)


def _stretches(lattice: Tensor, below: int, above: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """First and last cell of each stretch of lattice that has all cells near the given ones."""
    low, high = torch.stack(lattice.aminmax()).tolist()
    if max(-low, high) > 2.0**50:
        raise TooWideError
    if high - low + below + above < ONE_STRETCH:
        return (low - below,), (high + above,)
    occupied = lattice.unique()
    cut = (occupied.diff() > below + above).nonzero().squeeze(1)
    first = torch.cat([occupied[:1], occupied[cut + 1]]) - below
    last = torch.cat([occupied[cut], occupied[-1:]]) + above
    if float((last - first + 1).sum()) > MOST_CELLS:
        raise TooWideError
    return tuple(first.tolist()), tuple(last.tolist())
