"""Sums of a step with a linear ramp over all pairs, exact: between the ramps' ends everything is linear.

The ends of all ramps, p_u - δ and p_u + δ, cut the line into cells. With the number of samples and the sum of their
places in each, summed up from above, the sum over all samples of max(0, x - end) is known at each end, and the ramp is
the difference of two such sums. Read back, offset and slope change at each end by what its positive weighs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.pairsums.cells import Cells
from rankwise.pairsums.distances import Step
from rankwise.pairsums.merge_tree import first_in_both
from rankwise.pairsums.samples import Sums


class StepCells:
    """Positives' ramps cut the line into cells: tables of samples are read at them, tables of their weights at samples.

    A *table* has the number of samples in each cell and the sum of their places, for each of several blocks of samples,
    float64 [blocks, cells, 2]. Tables add up.

    Args:
        positives: Logits, float64 [P], at least one.
        distance: The step.
        floor: Only samples above it count, float64 [P].
    """

    n = 2

    def __init__(self, positives: Tensor, distance: Step, floor: Tensor | None = None) -> None:
        delta = distance.delta
        self.positives, self.floor = positives, floor
        begin = positives - delta if floor is None else torch.maximum(positives - delta, floor)
        ends = [begin, positives + delta] + ([] if floor is None else [floor])
        edges, order = torch.cat(ends).sort()
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        #: For each positive the edges where its ramp begins, where it ends, and its floor, int64 [2 or 3, P].
        self.edge = rank.view(len(ends), -1)
        origin = float(positives.median().floor())  # places count from near the positives, to lose fewer digits
        # Beyond all ramps the step is constant: places held there lose no digits to one sample far away.
        bounds = edges[0].item(), edges[-1].item()
        self.pass_cells = Cells(1.0, (origin,), (origin,), 1, edges, bounds)
        self.index, self.place = self.pass_cells.locate(positives)
        self.ends = torch.stack(ends[:2]) - (origin + 0.5)
        self.begin, self.end = ends[:2]
        self.slope = 0.5 / delta
        # A ramp that begins at a floor does so at once with this height.
        self.jump = ((begin - positives) * self.slope + 0.5).clamp(min=0) if floor is not None else None

    @property
    def size(self) -> int:
        """Cells of a table."""
        return self.pass_cells.size

    def fold(self, moments: Tensor) -> Tensor:
        """A table of one block, from the powers that a pass has summed in its cells."""
        return moments[None]

    def unfold(self, coefficients: Tensor) -> Tensor:
        """Polynomials over the cells of a pass: the same."""
        return coefficients

    def spread(self, values: Tensor, block: Tensor | None = None, blocks: int = 1) -> Tensor:
        """The table of the positives as samples, each counting ``values`` times, in its block."""
        table = values.new_zeros(blocks * self.size, 2)
        row = self.index if block is None else self.index + block * self.size
        table.index_add_(0, row, torch.stack([values, values * self.place], 1))
        return table.view(blocks, self.size, 2)

    def read(self, table: Tensor, block: Tensor | None = None) -> Sums:
        """For each positive, the sums over the samples of a table: its block, or the only one."""
        above = table.flip(1).cumsum(1).flip(1).reshape(-1, 2)  # a cell is above the edge whose number is one less
        row = self.edge + 1 if block is None else self.edge + 1 + block * self.size
        number, total = above[row].unbind(-1)
        begin, end = total[:2] - self.ends * number[:2]  # sums of max(0, x - end)
        rank = (begin - end) * self.slope
        if self.jump is not None:
            rank = rank + self.jump * number[0]
        count = (
            number[2]
            if len(row) == 3
            else above[:: self.size, 0].expand(len(rank))
            if block is None
            else above[:: self.size, 0][block]
        )
        return Sums(count, rank, rank)

    def lay(self, weights: Tensor, block: Tensor | None = None, blocks: int = 1) -> Tensor:
        """The table of the changes of offset and slope that the positives' weights make at their edges."""
        row = self.edge[:2] + 1 if block is None else self.edge[:2] + 1 + block * self.size
        slope = torch.stack([weights, -weights]) * self.slope
        offset = -self.ends * slope
        if self.jump is not None:
            offset[0] += weights * self.jump
        table = weights.new_zeros(blocks * self.size, 2)
        table.index_add_(0, row.flatten(), torch.stack([offset.flatten(), slope.flatten()], 1))
        return table.view(blocks, self.size, 2)

    def polynomials(self, table: Tensor, index: Tensor, block: Tensor | None = None) -> Tensor:
        """The sum over all positives of weight · rank(x - p_u): offset and slope in cells, [r, 2].

        Args:
            table: From `lay`.
            index: The cells, int64 [r].
            block: The block to read for each, int64 [r]; the only one if not given.
        """
        return table.cumsum(1).reshape(-1, 2)[index if block is None else index + block * self.size]

    def at_positives(self, coefficients: Tensor) -> Tensor:
        """The value at each positive of the polynomial over its cell, [P] from [P, 2]."""
        return coefficients[:, 0] + coefficients[:, 1] * self.place

    # Pairs of positives by quality

    def over_lower(self, quality: Tensor, values: Tensor) -> Sums:
        """For each positive u, the sums over the positives v with lower quality, each counting ``values`` times."""
        ordered, order = self.positives.sort()
        ends = [torch.searchsorted(ordered, end, right=True) for end in (self.begin, self.end)]
        if self.floor is not None:
            ends.append(torch.searchsorted(ordered, self.floor, right=True))
        total, (before, up_to, *floor) = self._by_quality(quality, order, torch.stack(ends), values)
        rank = total - up_to[:, 0] + self._ramp(up_to - before)
        return Sums(total - floor[0][:, 0] if floor else total, rank, rank)

    def over_higher(self, quality: Tensor, weights: Tensor) -> Tensor:
        """For each positive v, the sum of weight · rank over the positives u with higher quality, [P]."""
        order = self.positives.argsort()
        ends = [torch.searchsorted(end[order], self.positives) for end in (self.begin, self.end)]
        _, (begun, ended) = self._by_quality(-quality, order, torch.stack(ends), weights)
        return ended[:, 0] + self._ramp(begun - ended, -1.0)

    def _by_quality(self, quality: Tensor, order: Tensor, ends: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of values over the positives of lower quality, [P], and of values and values · place before ends."""
        sorted_quality, by_quality = quality.sort()
        numbers = torch.arange(len(quality), device=quality.device)
        place, rank = torch.empty_like(order), torch.empty_like(order)
        place[by_quality], rank[order] = numbers, numbers
        limit = torch.searchsorted(sorted_quality, quality)
        total = torch.nn.functional.pad(values[by_quality].cumsum(0), (1, 0))[limit]
        return total, first_in_both(place, rank, limit, ends, torch.stack([values, values * self.place], 1))

    def _ramp(self, sums: Tensor, sign: float = 1.0) -> Tensor:
        """The ramp over samples of which values and values · place were summed, [P, 2]."""
        return sign * self.slope * (sums[:, 1] - self.place * sums[:, 0]) + 0.5 * sums[:, 0]
