"""Sums of a sigmoid or softplus over the pairs above a floor only.

The floors cut the lattice's cells: within a cell the samples between two floors are summed by themselves, so that for
each positive the samples above its floor are known. Where floors lie at one distance below their positives there are
only one or two numbers of cells between a positive and its floor; each is treated by itself.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankwise.pairsums.cells import Cells
from rankwise.pairsums.distances import Sigmoid
from rankwise.pairsums.samples import Sums
from rankwise.pairsums.sigmoid import SigmoidCells, cells_per_unit, from_above, window_product


class FloorCells(SigmoidCells):
    """`SigmoidCells` in which a positive numbers only the samples above its floor.

    Here a table has one entry for each part that the floors cut the cells into, and reading it uses it up: with many
    positives there is no room for another.

    Args:
        positives: Logits, float64 [P], at least one.
        distance: Sigmoid or SigmoidCrossEntropy.
        dtype: float32 or float64: how precisely to compute.
        floor: Only samples above it number, float64 [P], nowhere above the positives.
    """

    def __init__(self, positives: Tensor, distance: Sigmoid, dtype: torch.dtype, floor: Tensor) -> None:
        scale = cells_per_unit(distance, dtype)
        drop = ((positives * scale).floor() - (floor * scale).floor()).long()
        super().__init__(positives, distance, dtype, reach=int(drop.max()) + 1)
        self.parts, self.part_degree = 1, self.lattice.degree
        self.drop = drop  # cells from a positive down to its floor, [P]
        self.drops: list[int] = drop.unique().tolist()
        edges, order = floor.sort()
        order_of = torch.empty_like(order)
        order_of[order] = torch.arange(len(order), device=order.device)
        self.cut = replace(self.lattice, edges=edges)
        self.index, _ = self.cut.locate(positives)
        floor_cell = self.cell - drop
        self.under = floor_cell + order_of  # the highest part at or under each positive's floor
        number = torch.zeros(self.lattice.size, dtype=torch.long, device=order.device)
        number.index_add_(0, floor_cell, torch.ones_like(floor_cell))
        cells = torch.arange(self.lattice.size, device=order.device)
        self.cell_of = cells.repeat_interleave(number + 1)
        self.last = cells + number.cumsum(0)  # part of each cell
        self.first = self.last - number

    @property
    def size(self) -> int:
        return self.cut.size

    @property
    def pass_cells(self) -> Cells:
        return self.cut

    def fold(self, moments: Tensor) -> Tensor:
        table = moments.clone()
        table[: int(self.last[0]) + 1, 1:] = 0
        table[self.is_open[self.cell_of], 2:] = 0
        return table[None]

    def read(self, table: Tensor, block: Tensor | None = None) -> Sums:
        size = self.lattice.size
        whole = table.new_zeros(len(table), size, self.n).index_add_(1, self.cell_of, table)
        row = self.cell if block is None else self.cell + block * size
        up_to = table.cumsum_(1)  # within a cell only differences of it make sense
        of = torch.zeros_like(self.cell) if block is None else block
        cut = up_to[of, self.last[self.cell - self.drop]] - up_to[of, self.under]
        near = table.new_empty(len(row), self.reading.shape[1])
        for drop in self.drops:
            these, skipped = self.drop == drop, (self.reach - drop) * self.n
            above = window_product(whole, row[these] - drop + 1, self.reach + drop, self.reading[skipped + self.n :])
            near[these] = above + cut[these] @ self.reading[skipped : skipped + self.n]
        passed, total = from_above(torch.stack([whole[:, :, 0], whole[:, :, 0] * self.position + whole[:, :, 1]])).view(
            2, -1
        )[:, row + self.reach + 1]
        number = up_to[of, -1, 0] - up_to[of, self.under, 0]
        return self._sums(near, torch.zeros_like(number), passed, total, number)

    def lay(self, weights: Tensor, block: Tensor | None = None, blocks: int = 1) -> Tensor:
        """The weights by cell, one table for each distance to the floor, then what sets in at each floor."""
        size, groups = self.lattice.size, len(self.drops)
        width = groups * size + self.size
        table = weights.new_zeros(blocks * width, self.n)
        shift = torch.zeros_like(self.cell) if block is None else block * width
        weighted = self.powers * weights[:, None]
        for group, drop in enumerate(self.drops):
            these = self.drop == drop
            table.index_add_(0, (shift + group * size + self.cell)[these], weighted[these])
            at_floor = weighted[these] @ self.expansion.rank[self.reach - drop].T
            table.index_add_(0, (shift + groups * size + self.under + 1)[these], at_floor)
        return table.view(blocks, width, self.n)

    def polynomials(self, table: Tensor, index: Tensor, block: Tensor | None = None) -> Tensor:
        size, groups = self.lattice.size, len(self.drops)
        cell = self.cell_of[index]
        *whole, floors = table.split([size] * groups + [self.size], 1)
        up_to = floors.cumsum_(1)
        of = torch.zeros_like(index) if block is None else block
        result = up_to[of, index] - up_to[of, self.first[cell]]
        wide = size + 2 * self.reach + 1
        row = cell if block is None else cell + block * wide
        for drop, part in zip(self.drops, whole, strict=True):
            padded = pad(part, (0, 0, self.reach, self.reach + 1))
            length = self.reach + drop
            result += window_product(padded, row, length, self.writing[: length * self.n])
            passed = padded[:, :, 0].cumsum(1) - padded[:, :, 0]
            result[:, 0] += passed.reshape(-1)[row]
        result[self.is_open[cell], 1:] = 0
        return result
