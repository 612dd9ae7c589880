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


class Room:
    """Memory for a block of samples, used again for the next: on a CPU fresh memory takes longer than computing in it.

    Args:
        longest: Most samples in a block.
        device: Where the memory is.
    """

    def __init__(self, longest: int, device: torch.device) -> None:
        self.longest = longest
        self.device = device
        self.kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, number: int, dtype: torch.dtype) -> Tensor:
        """A tensor for so many samples; what it held under this name before is lost."""
        if (name, dtype) not in self.kept:
            self.kept[name, dtype] = torch.empty(self.longest, dtype=dtype, device=self.device)
        return self.kept[name, dtype][:number]


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
            cls(first, per_unit, edges.new_empty(number + 1), edges).of(edges, Room(edges.numel(), edges.device)),
            minlength=number + 1,
        )
        return cls(first, per_unit, inside.cumsum(0) - inside, torch.nn.functional.pad(edges, (0, 1), value=torch.inf))

    def of(self, x: Tensor, room: Room) -> Tensor:
        """The box of each number, int32."""
        boxes = torch.sub(x, self.first, out=room.take("box", x.numel(), x.dtype))
        boxes.mul_(self.per_unit).clamp_(0, len(self.start) - 2)
        return room.take("box", x.numel(), torch.int32).copy_(boxes)

    def edges_below(self, x: Tensor, room: Room) -> Tensor:
        """How many edges are below each number, int32."""
        below = room.take("below", x.numel(), torch.int32)
        torch.index_select(self.alone, 0, self.of(x, room), out=below)
        among = torch.lt(below, 0, out=room.take("among", x.numel(), torch.bool)).nonzero().squeeze(1)
        if len(among):
            below[among] = torch.bucketize(x[among], self.edges[:-1], out_int32=True)
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
        index, place = self.find(x, working or x.dtype, Room(x.numel(), x.device))
        return index.long(), place

    def find(
        self, x: Tensor, working: torch.dtype, room: Room, extent: tuple[float, float] = (-torch.inf, torch.inf)
    ) -> tuple[Tensor, Tensor]:
        """The same as `locate`, the index as int32, in memory that is used again.

        Args:
            x: The numbers.
            working: The type to compute places in.
            room: Where index and place are until the next call with it.
            extent: What all numbers are within, if known: what lies in the lattice anyway is not held there.
        """
        number, (least, most) = x.numel(), (end * self.scale for end in extent)
        v = room.take("place", number, working)
        if x.dtype == working:
            torch.mul(x, self.scale, out=v)
        else:
            v.copy_(x)
            if self.scale != 1:
                v.mul_(self.scale)
        if least < self.bounds[0] or most > self.bounds[1]:
            v.clamp_(*self.bounds)
        index: Tensor | None = None
        if len(self.low) == 1 and self.low == self.high:
            v.sub_(self.low[0] + 0.5)
        else:
            index = room.take("index", number, torch.int32)
            if len(self.low) == 1:
                cell = room.take("cell", number, working)
                inside = self.low[0] <= least and most < self.high[0] + 1
                torch.floor(v if inside else torch.clamp(v, self.low[0], self.high[0], out=cell), out=cell)
                v.sub_(cell).sub_(0.5)
                index.copy_(cell.sub_(self.low[0]))
            else:
                low, high = x.new_tensor([self.low, self.high], dtype=torch.float64)
                which = (torch.bucketize(v.double(), low, right=True) - 1).clamp_(min=0)
                cell = v.double().clamp(low[which], high[which]).floor_()
                index.copy_(cell - low[which]).add_(torch.tensor(self.base, dtype=torch.int32, device=x.device)[which])
                v.sub_(cell).sub_(0.5)
        if self.edges is not None and self.edges.numel():
            below = self._edges_below(x, room)
            index = below if index is None else index.add_(below)
        return room.take("index", number, torch.int32).zero_() if index is None else index, v

    def _edges_below(self, x: Tensor, room: Room) -> Tensor:
        """How many edges are below each number, int32."""
        assert self.edges is not None
        if x.device.type != "cpu" or x.numel() < self.edges.numel():
            return torch.bucketize(x.double(), self.edges, out_int32=True)
        return (self.short_boxes if x.dtype == torch.float32 else self.boxes).edges_below(x, room)

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
