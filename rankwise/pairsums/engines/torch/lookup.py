"""How many of a few sorted edges are below each of many numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

#: Boxes for each edge, and at most: their table is to stay small beside the logits.
BOXES, MOST_BOXES = 16, 1 << 18


class Lookup:
    """``torch.bucketize`` in a fraction of its time on a CPU, by equal boxes over the range of the edges.

    Most boxes contain no edge, and the answer is the same for every number in such a box. Only numbers in the other
    boxes are compared with edges. The box of a number is computed in the same way for edges and others, so an edge in a
    lower box is below the number whatever the rounding.

    Args:
        edges: Sorted, float64 [E].
        exact: Whether numbers within rounding of an edge must be on the right side of it.
        boxes: The boxes of an earlier lookup of the same edges, in any dtype.

    Attributes:
        per_unit: Boxes per unit of the numbers.
        positions: Positions of the edges, counted in boxes, [E].
        boxes: Number of edges below each box, and its bitwise complement if the box contains edges; at the end, the
            largest number of edges in a box. On a CPU only.
    """

    def __init__(self, edges: Tensor, exact: bool, boxes: Tensor | None = None) -> None:
        self.edges, self.exact, self.on_cpu = edges, exact, edges.device.type == "cpu"
        self.lowest: Any  # positions are clamped to these: numbers, or tensors of one on other devices
        self.highest: Any
        if not self.on_cpu:  # bucketize is fast there, and reading numbers from the device would wait for it
            self.per_unit, self.origin = 1.0, -edges[:1]
            self.positions = edges + self.origin
            self.lowest, self.highest = torch.full_like(self.origin, -1.0), self.positions[-1:] + 1
            return
        first, last, number = float(edges[0]), float(edges[-1]), min(BOXES * len(edges), MOST_BOXES)
        self.per_unit = (number - 3) / (last - first) if last > first else 1.0
        self.origin = edges.new_full((1,), 1.5 - first * self.per_unit)
        self.lowest, self.highest = 0, number - 1
        self.positions = self.positions_of(edges)
        if boxes is None:
            at = self.positions.long()
            counts = torch.bincount(at, minlength=number)
            below, most = counts.cumsum(0).sub_(counts), counts.max()[None]
            del counts  # with many positives each of these takes a share of the memory of the logits
            below[at] = ~below[at]
            boxes = torch.cat([below, most])
            del below
        self.boxes = boxes.long()
        self.steps = [1 << level for level in range(int(boxes[-1]).bit_length())][::-1]
        self.searched = pad(edges if exact else self.positions, (0, self.steps[0]), value=torch.inf)

    @property
    def layout(self) -> Tensor:
        """What `restored` makes the same lookup from, float64."""
        return torch.cat([self.edges, self.boxes]) if self.on_cpu else self.edges

    @classmethod
    def restored(cls, layout: Tensor, number: int, exact: bool) -> Lookup:
        """The lookup of this many edges that had the layout."""
        return cls(layout[:number], exact, layout[number:])

    def positions_of(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Positions of numbers, counted in boxes, float64 [n]; numbers beyond the edges are clamped."""
        return torch.add(self.origin, x, alpha=self.per_unit, out=out).clamp_(self.lowest, self.highest)

    def locate(self, x: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """How many edges are below each number, int64 [n], and its position, float64 [n]."""
        positions = self.positions_of(x, out)
        compared = x.double() if self.exact else positions
        if not self.on_cpu:
            return torch.bucketize(compared, self.edges if self.exact else self.positions), positions
        below = self.boxes.index_select(0, positions.long())
        some = (below < 0).nonzero().squeeze(1)
        found, compared = ~below[some], compared[some]
        for step in self.steps:
            probe = found if step == 1 else found + (step - 1)
            found.add_(self.searched.index_select(0, probe) < compared, alpha=step)
        return below.index_copy_(0, some, found), positions
