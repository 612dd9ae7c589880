"""Cells between sorted edges, such as the ends of ramps, which are found by binary search.

For many samples on a CPU, a histogram with bins of equal width comes first, and only the samples in bins that contain
an edge are searched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rankwise.pairsums.engines.torch import histogram

#: From this many samples on, the histogram is faster than a search of all samples.
MANY = 1 << 16

#: Bins per edge, and the most bins; also samples per bin, so that the tables stay small beside the logits: they have
#: five float64 or int64 per bin.
BINS_PER_EDGE, MAX_BINS, SAMPLES_PER_BIN = 64, 1 << 20, 8

#: If more than this share of the bins has edges, the histogram saves nothing.
MAX_SHARE_WITH_EDGES = 0.25


class Edges:
    """Sorted edges: cell k is above k of them.

    Args:
        edges: float64 [E].
        exact: Whether samples within rounding of an edge must be on the correct side of it.

    Attributes:
        origin: What is added to a logit to get its position, float64 [1]: positions count from the first edge.
        positions: Of the edges, float64 [E].
    """

    def __init__(self, edges: Tensor, exact: bool) -> None:
        self.edges, self.exact, self.origin = edges, exact, -edges[:1]
        self.positions = edges + self.origin
        self.lowest, self.highest = torch.full_like(self.origin, -1.0), self.positions[-1:] + 1

    def locate(self, x: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Cell of each sample, int64 [n], and its position, float64 [n], clamped to just beyond the edges."""
        positions = torch.add(self.origin, x, out=out).clamp_(self.lowest, self.highest)
        if self.exact:
            return torch.bucketize(x.double(), self.edges), positions
        return torch.bucketize(positions, self.positions), positions


class EdgeBins(NamedTuple):
    """Bins of equal width over edges.

    Attributes:
        bins: The bins; no edge is in the first or the last.
        edges: The edges.
        below: Number of edges below each bin, int64 [bins].
        edged: Which bins have edges, bool [bins].
        start: Position of the lower end of each bin, float64 [bins].
        width: Of a bin.
    """

    bins: histogram.Bins
    edges: Edges
    below: Tensor
    edged: Tensor
    start: Tensor
    width: float


def bins_over(values: Tensor, edges: Edges) -> EdgeBins | None:
    """The bins for samples, or None if the samples are few or edges are in too many bins."""
    if values.dtype != torch.float32 or values.device.type != "cpu" or len(values) < MANY:
        return None
    ends = edges.edges
    first, last = float(ends[0]), float(ends[-1])
    number = min(BINS_PER_EDGE * len(ends), MAX_BINS, len(values) // SAMPLES_PER_BIN)
    scale = histogram.power_of_two(number / max(last - first, 1e-30)) / 2
    low = histogram.rounded_down(math.floor(first * scale) - 1, values.dtype)
    number = int(last * scale - low) + 2
    counts = torch.bincount((ends * scale).floor_().sub_(low).long(), minlength=number)
    edged = counts > 0
    if number > 4 * MAX_BINS or int(edged.sum()) > MAX_SHARE_WITH_EDGES * number:
        return None
    start = torch.arange(low, low + number, dtype=torch.float64).mul_(1 / scale).add_(edges.origin)
    return EdgeBins(histogram.Bins(scale, low, number), edges, counts.cumsum(0).sub_(counts), edged, start, 1 / scale)


def moments(values: Tensor, weight: Tensor | None, over: EdgeBins) -> Tensor:
    """Number of the samples between two edges and the sum of their positions, float64 [2, edges + 1].

    Args:
        values: [n].
        weight: Of each sample, float64 [n]; None: 1.
        over: The bins.
    """
    sums, flags = histogram.Moments(over.bins, len(values)), torch.empty(len(values), dtype=torch.bool)
    for part, index, offset in histogram.located(values, over.bins):
        sums.add(index, offset, None if weight is None else weight[part])
        torch.index_select(over.edged, 0, index, out=flags[part])
    table = sums.total().masked_fill_(over.edged, 0)  # samples in these are added one by one
    table[1].mul_(over.width).addcmul_(table[0], over.start)
    intervals = len(over.edges.edges) + 1
    result = torch.stack([torch.bincount(over.below, row, intervals) for row in table])
    for some in _indices(flags):
        cell, position = over.edges.locate(values.index_select(0, some))
        counts = torch.ones_like(position) if weight is None else weight.index_select(0, some)
        for row, terms in zip(result, (counts, position * counts), strict=True):
            row.index_add_(0, cell, terms)
    return result


def evaluate(values: Tensor, over: EdgeBins, lines: Tensor, out: Tensor) -> None:
    """Write the value at each sample of a function that is linear between two edges.

    Args:
        values: [n].
        over: The bins.
        lines: Constant and slope between edges, by positions, float64 [edges + 1, 2].
        out: [n].
    """
    constant, slope = lines.index_select(0, over.below).T
    at_start = torch.addcmul(constant, slope, over.start).masked_fill_(over.edged, torch.nan)  # searched below
    histogram.evaluate(values, over.bins, torch.stack([at_start, slope * over.width], 1).to(out.dtype), out)
    for some in _indices(out.isnan()):
        cell, position = over.edges.locate(values.index_select(0, some))
        constant, slope = lines.index_select(0, cell).T
        out.index_copy_(0, some, torch.addcmul(constant, slope, position).to(out.dtype))


def _indices(flags: Tensor) -> Iterator[Tensor]:
    """Indices of the flags that are set, int64, block by block."""
    for number, block in enumerate(flags.split(histogram.BLOCK)):
        yield block.nonzero().squeeze(1).add_(number * histogram.BLOCK)
