"""Histogram of many float32 samples on a CPU: moments 0 and 1 in bins of equal width, and linear functions by bin.

The width is a power of two, so that bin and offset of a sample are exact in its own dtype. Operations write to reused
buffers of one block of samples: new memory costs page faults, and many small blocks cost calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

#: From this many samples on, larger tables cost less than more moments.
MANY = 1 << 18

#: Samples per block: at least this many, and as many for each thread as torch needs to use it.
BLOCK, BLOCK_PER_THREAD = 1 << 18, 1 << 15

#: A sample adds this and its offset to its bin, so that one sum holds count and offsets of up to this many samples.
ONE = 1 << 20

#: Most copies of the table: one per thread, because threads must not add to the same one.
MAX_COPIES = 4


class Bins(NamedTuple):
    """Bins of one width: bin k is [(low + k) / scale, (low + k + 1) / scale). Samples beyond go to the outermost.

    Attributes:
        scale: Bins per unit of the logits, a power of two.
        low: Index of the first bin, counted from the logit 0; exact in the samples' dtype.
        number: Number of bins.
    """

    scale: float
    low: float
    number: int


def is_for(values: Tensor) -> bool:
    """Whether the samples are enough, and on a CPU, for these passes to be faster."""
    return len(values) >= MANY and values.device.type == "cpu"


def power_of_two(at_least: float) -> float:
    return 2.0 ** math.ceil(math.log2(at_least))


def rounded_down(low: float, dtype: torch.dtype) -> float:
    """The largest number of a dtype that is not above ``low``."""
    number = torch.tensor(low, dtype=dtype)
    return float(number if float(number) <= low else number.nextafter(torch.tensor(-torch.inf, dtype=dtype)))


def located(values: Tensor, bins: Bins) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of samples with their bins, int32, and offsets in these, 0 to 1; valid until the next block."""
    scale, low, number = bins
    end = torch.tensor(low + number, dtype=values.dtype)
    highest = float(end.nextafter(values.new_tensor(-torch.inf)) if float(end) >= low + number else end)
    step = _block_size(len(values))
    offsets, floors = values.new_empty(2, step)
    indices = torch.empty(step, dtype=torch.int32)
    for start in range(0, len(values), step):
        part = slice(start, min(start + step, len(values)))
        size = part.stop - start
        offset = torch.mul(values[part], scale, out=offsets[:size]).clamp_(low, highest)
        floor = torch.floor(offset, out=floors[:size])
        offset.sub_(floor)
        yield part, indices[:size].copy_(floor.sub_(low)), offset


class Moments:
    """Moments 0 and 1 of the bins, summed block by block.

    Args:
        bins: The bins.
        samples: Number of all samples.
    """

    def __init__(self, bins: Bins, samples: int) -> None:
        step, copies = _block_size(samples), min(torch.get_num_threads(), MAX_COPIES)
        self.table = torch.zeros(2, bins.number, dtype=torch.float64)
        self.sums, self.added = self.table.new_zeros(copies, bins.number), 0
        self.terms, self.indices = self.table.new_empty(step), torch.empty(step, dtype=torch.int64)

    def add(self, index: Tensor, offset: Tensor, weight: Tensor | None) -> None:
        """Add a block of samples with weights, or once each."""
        row, terms = self.indices[: len(index)].copy_(index), self.terms[: len(index)].copy_(offset)
        if weight is not None:
            self.table[0].scatter_add_(0, row, weight)
            self.table[1].scatter_add_(0, row, terms.mul_(weight))
            return
        if self.added + len(index) > ONE:
            self._unpack()
        copies = len(self.sums) if len(index) % len(self.sums) == 0 else 1
        self.sums[:copies].scatter_add_(1, row.view(copies, -1), terms.add_(ONE).view(copies, -1))
        self.added += len(index)

    def total(self) -> Tensor:
        """The moments of all samples, float64 [2, bins]."""
        if self.added:
            self._unpack()
        return self.table

    def _unpack(self) -> None:
        number = (self.sums / ONE).floor_()
        self.table[0] += number.sum(0)
        self.table[1] += self.sums.sub_(number, alpha=ONE).sum(0)
        self.sums.zero_()
        self.added = 0


def moments(values: Tensor, bins: Bins, weight: Tensor | None = None) -> Tensor:
    """Moments 0 and 1 of the offsets in each bin, float64 [2, bins].

    Args:
        values: [n].
        bins: The bins.
        weight: Of each sample, float64 [n]; None: 1.
    """
    sums = Moments(bins, len(values))
    for part, index, offset in located(values, bins):
        sums.add(index, offset, None if weight is None else weight[part])
    return sums.total()


def evaluate(values: Tensor, bins: Bins, lines: Tensor, out: Tensor) -> None:
    """Write the value of its bin's linear function at each sample.

    Args:
        values: [n].
        bins: The bins.
        lines: Constant and slope in each bin, in the dtype of the values, [bins, 2].
        out: [n].
    """
    both = torch.view_as_complex(lines)  # one index reads constant and slope together
    buffer = both.new_empty(_block_size(len(values)))
    for part, index, offset in located(values, bins):
        found = torch.index_select(both, 0, index, out=buffer[: len(index)])
        constant, slope = torch.view_as_real(found).unbind(1)
        torch.addcmul(constant, slope, offset, out=out[part])


def _block_size(samples: int) -> int:
    return max(1, min(max(BLOCK, BLOCK_PER_THREAD * torch.get_num_threads()), ONE, samples))
