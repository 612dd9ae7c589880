"""A partition of the real line into cells, and the place of a number in it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

#: Numbers are held within it before their place in a cell is taken, so that powers of that place stay finite.
FAR = 1e30

#: A table that finds the edges near a number has so many boxes for each edge, and at most so many.
BOXES_AN_EDGE, MOST_BOXES = 64, 1 << 17


@dataclass(frozen=True)
class Boxes:
    """Equal boxes over the range of some edges.

    A number x belongs to box (x - first) · per_unit, rounded down and held in range. Computed in the same way for
    edges and numbers, an edge in a lower box is below the number whatever the rounding, and one in a higher box above.

    Attributes:
        first: Where they begin, more than a box before the first edge: what is below all edges, often nearly
            everything, is then in a box without an edge.
        per_unit: Boxes a unit.
        start: How many edges are in lower boxes, int64 [boxes + 1].
        edges: The edges, and infinity, [E + 1].
    """

    first: float
    per_unit: float
    start: Tensor
    edges: Tensor

    @classmethod
    def around(cls, edges: Tensor) -> Boxes:
        """The boxes over sorted edges, [E], for numbers of the edges' type."""
        number = min(BOXES_AN_EDGE * edges.numel(), MOST_BOXES)
        lowest, highest = edges[0].item(), edges[-1].item()
        per_unit = (number - 3) / (highest - lowest) if highest > lowest else 1.0
        per_unit = per_unit if 0 < per_unit < torch.finfo(edges.dtype).max else 1.0
        first = lowest - 1.5 / per_unit
        inside = torch.bincount(
            cls(first, per_unit, edges.new_empty(number + 1), edges).of(edges), minlength=number + 1
        )
        return cls(first, per_unit, inside.cumsum(0) - inside, torch.nn.functional.pad(edges, (0, 1), value=torch.inf))

    def of(self, x: Tensor) -> Tensor:
        """The box of each number, int32."""
        return (x - self.first).mul_(self.per_unit).clamp_(0, len(self.start) - 2).int()

    def edges_below(self, x: Tensor) -> Tensor:
        """How many edges are below each number, int64."""
        below = self.alone.index_select(0, self.of(x)).long()
        among = (below < 0).nonzero().squeeze(1)
        if len(among):
            below[among] = torch.bucketize(x[among], self.edges[:-1])
        return below

    @cached_property
    def alone(self) -> Tensor:
        """How many edges are below a box, if none is in it, int32 [boxes]; -1 where an edge is."""
        return torch.where(self.start.diff() > 0, -1, self.start[:-1]).int()


@dataclass(frozen=True)
class Cells:
    """Cells of one width on a lattice, kept only where something is near, cut further at given edges.

    With v = scale · x, x lies in the lattice cell floor(v), at f = v - floor(v) - 1/2 in it. The lattice is kept in
    stretches, each from ``low`` to ``high``. All numbers between a stretch and the next fall into its highest cell, all
    below the first stretch into its lowest, with f then beyond ±1/2. Within a cell each edge below x adds one to the
    index. The scale is a power of two, so v and f are exact and no number comes into a wrong cell by rounding.

    Attributes:
        scale: Cells a unit.
        low: First lattice cell of each stretch, rising.
        high: Last lattice cell of each stretch.
        degree: Highest power of f that is summed in a cell.
        edges: Where cells are cut, float64 [E], sorted.
        bounds: Numbers are held within these, times the scale, before their place is taken.
    """

    scale: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    degree: int
    edges: Tensor | None = None
    bounds: tuple[float, float] = (-FAR, FAR)

    @cached_property
    def base(self) -> tuple[int, ...]:
        """Index of each stretch's first cell, before counting edges."""
        lengths = (int(high - low) + 1 for low, high in zip(self.low, self.high, strict=True))
        return (0, *itertools.accumulate(lengths))[:-1]

    @cached_property
    def size(self) -> int:
        """How many cells there are."""
        cut = 0 if self.edges is None else self.edges.numel()
        return self.base[-1] + int(self.high[-1] - self.low[-1]) + 1 + cut

    def locate(self, x: Tensor, working: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Index of the cell of each number, int64, and its place f in it.

        Args:
            x: The numbers.
            working: The type to compute places in; the numbers' own if not given.
        """
        v = x.to(working or x.dtype) * self.scale
        v = v.clamp_(*self.bounds)
        if len(self.low) == 1 and self.low == self.high:
            index, place = None, v.sub_(self.low[0]).sub_(0.5)
        elif len(self.low) == 1:
            cell = v.clamp(self.low[0], self.high[0]).floor_()
            index, place = (cell - self.low[0]).int().long(), v.sub_(cell).sub_(0.5)
        else:
            low, high = x.new_tensor([self.low, self.high], dtype=torch.float64)
            which = (torch.bucketize(v.double(), low, right=True) - 1).clamp_(min=0)
            cell = v.double().clamp(low[which], high[which]).floor_()
            index = (cell - low[which]).long() + torch.tensor(self.base, device=x.device)[which]
            place = v.sub_(cell).sub_(0.5)
        if self.edges is not None and self.edges.numel():
            below = self._edges_below(x)
            index = below if index is None else index.add_(below)
        return torch.zeros_like(x, dtype=torch.int64) if index is None else index, place

    def _edges_below(self, x: Tensor) -> Tensor:
        """How many edges are below each number, int64."""
        assert self.edges is not None
        if x.device.type != "cpu" or x.numel() < self.edges.numel():
            return torch.bucketize(x.double(), self.edges)
        return (self.short_boxes if x.dtype == torch.float32 else self.boxes).edges_below(x)

    @cached_property
    def boxes(self) -> Boxes:
        """Where to look for the edges near a float64 number."""
        assert self.edges is not None
        return Boxes.around(self.edges)

    @cached_property
    def short_boxes(self) -> Boxes:
        """Where to look for the edges near a float32 number: it is above an edge if above the next float32 down."""
        assert self.edges is not None
        edges = self.edges.float()
        return Boxes.around(torch.where(edges > self.edges, edges.nextafter(edges.new_tensor(-torch.inf)), edges))
