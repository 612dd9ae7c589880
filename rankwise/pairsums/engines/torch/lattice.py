"""Passes over many samples on a CPU: cells so small that two moments are enough, and buffers that stay in cache.

The scale is a power of two, so that a sample's cell and its offset in it are exact in its own dtype. Each operation
writes to a buffer for one block of samples: new memory would take longer than the operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

#: From so many samples on, larger tables cost less than more moments.
MANY = 1 << 18

#: Samples of a thread that are worked on at once: torch uses a thread for no fewer.
SHARE = 1 << 15

#: A sample adds this and its offset to its cell: one sum has the number of up to so many samples and their offsets.
ONE = 1 << 20

#: Most tables, one per thread.
TABLES = 4


class Lattice(NamedTuple):
    """Cells of one width: cell k is [(low + k) / scale, (low + k + 1) / scale); the outermost hold what is beyond.

    Attributes:
        scale: Cells per unit of the logits, a power of two.
        low: Number of the first cell on the line; exact in the samples' dtype.
        cells: Their number.
    """

    scale: float
    low: float
    cells: int


def is_for(values: Tensor) -> bool:
    """Whether samples are so many, and on a CPU, that these passes are the faster ones."""
    return len(values) >= MANY and values.device.type == "cpu"


def block_size(number: int) -> int:
    """How many of so many samples are worked on at once."""
    return max(1, min(SHARE * torch.get_num_threads(), ONE, number))


def rounded_down(low: float, dtype: torch.dtype) -> float:
    """The largest number in a dtype that is not above."""
    number = torch.tensor(low, dtype=dtype)
    return float(number if float(number) <= low else number.nextafter(torch.tensor(-torch.inf, dtype=dtype)))


def located(values: Tensor, lattice: Lattice) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of samples with their cells, int32, and offsets in these, 0 to 1; valid until the next block."""
    scale, low, cells = lattice
    end = torch.tensor(low + cells, dtype=values.dtype)
    highest = float(end.nextafter(values.new_tensor(-torch.inf)) if float(end) >= low + cells else end)
    step = block_size(len(values))
    offset, number = values.new_empty(2, step)
    cell = torch.empty(step, dtype=torch.int32)
    for start in range(0, len(values), step):
        part = slice(start, min(start + step, len(values)))
        size = part.stop - start
        v = torch.mul(values[part], scale, out=offset[:size]).clamp_(low, highest)
        k = torch.floor(v, out=number[:size])
        v.sub_(k)
        yield part, cell[:size].copy_(k.sub_(low)), v


def moments(values: Tensor, lattice: Lattice, weight: Tensor | None = None) -> Tensor:
    """How many samples are in each cell and the sum of their offsets, float64 [2, cells].

    Args:
        values: [n].
        lattice: The cells.
        weight: How often each sample counts, float64 [n]; None: once.
    """
    moments = Moments(lattice, len(values))
    for part, cell, offset in located(values, lattice):
        moments.add(cell, offset, None if weight is None else weight[part])
    return moments.total()


class Moments:
    """Number of samples in each cell and the sum of their offsets, while samples are added.

    Args:
        lattice: The cells.
        most: Number of all samples.
    """

    def __init__(self, lattice: Lattice, most: int) -> None:
        step, threads = block_size(most), min(torch.get_num_threads(), TABLES)
        self.table = torch.zeros(2, lattice.cells, dtype=torch.float64)
        self.sums, self.added = self.table.new_zeros(threads, lattice.cells), 0
        self.terms, self.row = self.table.new_empty(step), torch.empty(step, dtype=torch.int64)

    def add(self, cell: Tensor, offset: Tensor, weight: Tensor | None) -> None:
        """Add a block of samples."""
        row, terms = self.row[: len(cell)].copy_(cell), self.terms[: len(cell)].copy_(offset)
        if weight is not None:
            self.table[0].scatter_add_(0, row, weight)
            self.table[1].scatter_add_(0, row, terms.mul_(weight))
            return
        if self.added + len(cell) > ONE:
            self._unpack()
        threads = len(self.sums) if len(cell) % len(self.sums) == 0 else 1
        parts = row.view(threads, -1), terms.add_(ONE).view(threads, -1)
        self.sums[:threads].scatter_add_(1, *parts)  # a table per thread: they may not write to the same one
        self.added += len(cell)

    def total(self) -> Tensor:
        """The moments of all samples, float64 [2, cells]."""
        if self.added:
            self._unpack()
        return self.table

    def _unpack(self) -> None:
        number = (self.sums / ONE).floor_()
        self.table[0] += number.sum(0)
        self.table[1] += self.sums.sub_(number, alpha=ONE).sum(0)
        self.sums.zero_()
        self.added = 0


def evaluate(values: Tensor, lattice: Lattice, lines: Tensor, out: Tensor) -> Iterator[slice]:
    """Write the value of its cell's line at each sample; the blocks of samples as they are written.

    Args:
        values: [n].
        lattice: The cells.
        lines: Constant and slope in each cell, in the dtype of the values, [cells, 2].
        out: [n].
    """
    both = torch.view_as_complex(lines)  # one index reads constant and slope together
    buffer = both.new_empty(block_size(len(values)))
    for part, cell, offset in located(values, lattice):
        found = torch.index_select(both, 0, cell, out=buffer[: len(cell)])
        constant, slope = torch.view_as_real(found).unbind(1)
        torch.addcmul(constant, slope, offset, out=out[part])
        yield part


def power_of_two(at_least: float) -> float:
    return 2.0 ** math.ceil(math.log2(at_least))
