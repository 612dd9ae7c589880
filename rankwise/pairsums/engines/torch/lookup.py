"""Which of sorted edges are below numbers, for many numbers and few edges."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

#: Boxes for each edge, and at most: their table is to stay small beside the logits.
BOXES, MOST_BOXES = 16, 1 << 18


class Lookup:
    """``torch.bucketize`` in a fraction of its time on a CPU: equal boxes over the edges' range leave little to search.

    A number's box is computed in one way for edges and others, so that an edge in a lower box is below it however both
    are rounded.

    Args:
        edges: Sorted, float64 [E].

    Attributes:
        per_unit: Boxes per unit of the numbers.
        placed: The edges, counted in boxes.
    """

    def __init__(self, edges: Tensor) -> None:
        self.edges, self.on_cpu = edges, edges.device.type == "cpu"
        if not self.on_cpu:  # there bucketize is fast, and numbers from the device would have to be waited for
            self.per_unit, self.origin = 1.0, -edges[:1]
            self.placed = self.place(edges)
            return
        first, last, self.boxes = float(edges[0]), float(edges[-1]), min(BOXES * len(edges), MOST_BOXES)
        self.per_unit = (self.boxes - 3) / (last - first) if last > first else 1.0
        self.origin = edges.new_full((1,), 1.5 - first * self.per_unit)
        self.placed = self.place(edges)
        counts = torch.bincount(self.placed.long(), minlength=self.boxes)
        self.start = counts.cumsum(0).sub_(counts)
        self.steps = [1 << level for level in range(int(counts.max()).bit_length())][::-1]

    def place(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Numbers counted in boxes, float64 [n]: those beyond the edges are somewhere beyond them, not far."""
        x = torch.add(self.origin, x, alpha=self.per_unit, out=out)
        return x.clamp_(0, self.boxes - 1) if self.on_cpu else x.clamp_(-torch.ones_like(x[:1]), self.placed[-1:] + 1)

    def __call__(self, x: Tensor) -> Tensor:
        """How many edges are below each number, float64 [n] to int64 [n]."""
        return self._search(self.place(x), x, self.edges)

    def near(self, placed: Tensor) -> Tensor:
        """The same for placed numbers, but for rounding: numbers as close to an edge as that may be on either side."""
        return self._search(placed, placed, self.placed)

    def _search(self, placed: Tensor, x: Tensor, edges: Tensor) -> Tensor:
        if not self.on_cpu:
            return torch.bucketize(x, edges)
        below, edges = self.start.index_select(0, placed.long()), pad(edges, (0, self.steps[0]), value=torch.inf)
        for step in self.steps:
            probe = below if step == 1 else below + (step - 1)
            below = below.add_(edges.index_select(0, probe) < x, alpha=step)
        return below
