"""A partition of the real line into cells, and the place of a number in it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

#: Numbers are held within it before their place in a cell is taken, so that powers of that place stay finite.
FAR = 1e30

#: A table that finds the edges near a number has so many boxes for each edge, and at most so many.
BOXES_AN_EDGE, MOST_BOXES = 64, 1 << 17

#: With more edges than this in one box a search in all edges is quicker.
MOST_STEPS = 4


@dataclass(frozen=True)
class Boxes:
    """Equal boxes over the range of some edges.

    A number x belongs to box (x - first) · per_unit, rounded down and held in range. Computed in the same way for
    edges and numbers, an edge in a lower box is below the number whatever the rounding, and one in a higher box above.

    Attributes:
        first: The first edge.
        per_unit: Boxes a unit.
        start: How many edges are in lower boxes, int64 [boxes + 1].
        most: Most edges in a box.
        edges: The edges, and infinity, float64 [E + 1].
    """

    first: float
    per_unit: float
    start: Tensor
    most: int
    edges: Tensor


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
    """

    scale: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    degree: int
    edges: Tensor | None = None

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

    def locate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Index of the cell of each number, int64, and its place f in it, in the numbers' own type."""
        v = (x * self.scale).clamp_(-FAR, FAR)
        if len(self.low) == 1:
            cell = v.clamp(self.low[0], self.high[0]).floor_()
            index = (cell - self.low[0]).long()
        else:
            low, high = x.new_tensor([self.low, self.high], dtype=torch.float64)
            which = (torch.bucketize(v.double(), low, right=True) - 1).clamp_(min=0)
            cell = v.double().clamp(low[which], high[which]).floor_()
            index = (cell - low[which]).long() + torch.tensor(self.base, device=x.device)[which]
        if self.edges is not None and self.edges.numel():
            index += self._edges_below(x.double(), self.edges)
        return index, v.sub_(cell).sub_(0.5)

    def _edges_below(self, x: Tensor, edges: Tensor) -> Tensor:
        """How many edges are below each number, int64."""
        boxes = self.boxes
        if x.device.type != "cpu" or x.numel() < len(boxes.start) or boxes.most > MOST_STEPS:
            return torch.bucketize(x, edges)
        box = (x - boxes.first).mul_(boxes.per_unit).clamp_(0, len(boxes.start) - 2).long()
        below = boxes.start.index_select(0, box)
        for _ in range(boxes.most):
            below += boxes.edges.index_select(0, below) < x
        return below

    @cached_property
    def boxes(self) -> Boxes:
        """Where to look for the edges near a number."""
        assert self.edges is not None
        number = min(BOXES_AN_EDGE * self.edges.numel(), MOST_BOXES)
        first, last = self.edges[0].item(), self.edges[-1].item()
        per_unit = (number - 1) / (last - first) if last > first else 0.0
        per_unit = per_unit if math.isfinite(per_unit) else 0.0
        box = ((self.edges - first) * per_unit).clamp_(0, number - 1).long()
        inside = torch.bincount(box, minlength=number + 1)
        padded = torch.nn.functional.pad(self.edges, (0, 1), value=torch.inf)
        return Boxes(first, per_unit, inside.cumsum(0) - inside, int(inside.max()), padded)
