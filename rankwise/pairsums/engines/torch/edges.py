"""The step over many samples on a CPU: on a lattice, with a search among edges only in cells that have some."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rankwise.pairsums.engines.torch import lattice
from rankwise.pairsums.engines.torch.lookup import Lookup

#: Cells of the lattice for each edge, and at most; and samples for each cell, so that the tables, which have five
#: float64 or int64 for each cell, stay small beside the logits.
CELLS, MOST, SAMPLES = 128, 1 << 20, 8

#: If more than this share of the cells has edges, the lattice saves nothing.
MOST_WITH_EDGES = 0.25

#: Samples in cells with edges are searched when they are so many.
BATCH = 1 << 16


class Cells(NamedTuple):
    """A lattice over sorted edges.

    Attributes:
        lattice: The cells; no edge is in the first or the last.
        lookup: The search among the edges.
        below: Number of edges below each cell, int64 [cells].
        edged: Which cells have edges, bool [cells].
        start: Where each cell begins, in positions of the lookup, float64 [cells].
        width: Of a cell, in positions.
    """

    lattice: lattice.Lattice
    lookup: Lookup
    below: Tensor
    edged: Tensor
    start: Tensor
    width: float


def of(values: Tensor, lookup: Lookup) -> Cells | None:
    """The lattice for samples, or None if they are few or edges are in too many cells."""
    if lookup.exact or values.dtype != torch.float32 or not lattice.is_for(values):
        return None
    ends = lookup.edges
    first, last = float(ends[0]), float(ends[-1])
    number = min(CELLS * len(ends), MOST, len(values) // SAMPLES)
    scale = lattice.power_of_two(number / max(last - first, 1e-30)) / 2
    low = lattice.rounded_down(math.floor(first * scale) - 1, values.dtype)
    cells = int(last * scale - low) + 2
    counts = torch.bincount((ends * scale).floor_().sub_(low).long(), minlength=cells)
    edged = counts > 0
    if cells > 4 * MOST or int(edged.sum()) > MOST_WITH_EDGES * cells:
        return None
    start = (torch.arange(cells, dtype=torch.float64) + low) * (lookup.per_unit / scale) + lookup.origin
    return Cells(
        lattice.Lattice(scale, low, cells), lookup, counts.cumsum(0) - counts, edged, start, lookup.per_unit / scale
    )


def moments(values: Tensor, weight: Tensor | None, cells: Cells) -> Tensor:
    """Number of the samples between two edges and the sum of their positions, float64 [2, edges + 1].

    Args:
        values: [n].
        weight: How often each sample counts, float64 [n]; None: once.
        cells: The lattice.
    """
    sums, flags = lattice.Moments(cells.lattice, len(values)), _Flags(len(values))

    def edged() -> Iterator[Tensor]:
        for part, cell, offset in lattice.located(values, cells.lattice):
            sums.add(cell, offset, None if weight is None else weight[part])
            torch.index_select(cells.edged, 0, cell, out=flags.bits[: len(cell)])
            yield flags.some(len(cell)).add_(part.start)

    result = cells.start.new_zeros(2, len(cells.lookup.edges) + 1)
    for some in _batches(edged()):
        between, position = cells.lookup.locate(values.index_select(0, some))
        counts = torch.ones_like(position) if weight is None else weight.index_select(0, some)
        for row, terms in zip(result, (counts, position * counts), strict=True):
            row.index_add_(0, between, terms)
    table = sums.total().masked_fill_(cells.edged, 0)  # samples in these were added one by one
    table[1].mul_(cells.width).addcmul_(table[0], cells.start)
    return result.scatter_add_(1, cells.below.expand(2, -1), table)


def evaluate(values: Tensor, cells: Cells, lines: Tensor, out: Tensor) -> None:
    """Write the value at each sample of what is a line between two edges.

    Args:
        values: [n].
        cells: The lattice.
        lines: Constant and slope between edges, by positions, float64 [edges + 1, 2].
        out: [n].
    """
    constant, slope = lines.index_select(0, cells.below).T
    at_start = torch.addcmul(constant, slope, cells.start).masked_fill_(cells.edged, torch.nan)
    by_cell = torch.stack([at_start, slope * cells.width], 1).to(out.dtype)
    flags = _Flags(len(values))

    def edged() -> Iterator[Tensor]:
        for part in lattice.evaluate(values, cells.lattice, by_cell, out):
            torch.ne(out[part], out[part], out=flags.bits[: part.stop - part.start])
            yield flags.some(part.stop - part.start).add_(part.start)

    for some in _batches(edged()):
        between, position = cells.lookup.locate(values.index_select(0, some))
        constant, slope = lines.index_select(0, between).T
        out.index_copy_(0, some, torch.addcmul(constant, slope, position).to(out.dtype))


def _batches(parts: Iterator[Tensor]) -> Iterator[Tensor]:
    """Indices, in batches of no fewer than ``BATCH`` but for the last."""
    waiting: list[Tensor] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= BATCH:
            yield torch.cat(waiting)
            waiting = []
    yield torch.cat([torch.zeros(0, dtype=torch.int64), *waiting])


class _Flags:
    """Flags of the samples of a block, and which are set."""

    def __init__(self, number: int) -> None:
        self.bits = torch.zeros(-(-lattice.block_size(number) // 8) * 8, dtype=torch.bool)

    def some(self, size: int) -> Tensor:
        """Indices of the flags that are set among the first so many, int64."""
        groups = self.bits[: -(-size // 8) * 8].view(-1, 8)  # nonzero takes as long for eight bytes as for one
        groups.view(-1)[size:] = False
        chosen = groups.view(torch.int64).view(-1).nonzero().squeeze(1)
        group, bit = groups.index_select(0, chosen).nonzero().unbind(1)
        return chosen.index_select(0, group).mul_(8).add_(bit)
