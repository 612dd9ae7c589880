"""Sums of the step over all pairs in torch operations, exact: between the ends of ramps everything is linear.

The ends of all ramps, p_u - δ and p_u + δ, cut the line into cells. With the number of samples and the sum of their
offsets in each, summed from above, the sum over all samples of max(0, x - end) is known at each end, and the ramp is
the difference of two such sums. In the adjoint, offset and slope change at each end by the weight of its positive.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankwise.pairsums.distances import Step
from rankwise.pairsums.engines.by_sums import Group
from rankwise.pairsums.engines.dense import DenseSums
from rankwise.pairsums.engines.torch.lookup import Lookup
from rankwise.pairsums.formula import Over, Sums
from rankwise.pairsums.spec import RankingSpec

#: Samples that are worked on at once.
BLOCK = 1 << 16

#: The farthest that positives may be from each other, and from zero, in units of δ, to keep 10 and 8 digits.
WIDEST, FARTHEST = 1e5, 1e7

#: Up to so many positives are compared with each other pair by pair.
FEW = 1024


class StepSums:
    """Sums of a step over the pairs of a group.

    Args:
        group: The samples.
        spec: What is asked for.
    """

    def __init__(self, group: Group, spec: RankingSpec) -> None:
        assert isinstance(spec.distance, Step)
        self.group, self.spec, delta = group, spec, spec.distance.delta
        self.slope = 0.5 / delta
        p, floor = group.positives, spec.floor(group.positives)
        begin = p - delta if floor is None else torch.maximum(p - delta, floor)
        ends = [begin, p + delta] + ([] if floor is None else [floor])
        self.edges, order = torch.cat(ends).sort()
        self.edges_below = Lookup(self.edges)
        #: For each positive the edges where its ramp begins and ends, and its floor, [2 or 3, P].
        self.edge = order.argsort().view(len(ends), -1)
        self.origin = p.median()  # offsets count from near the positives, to lose fewer digits
        self.ends = torch.stack(ends[:2]) - self.origin
        # A ramp that begins at a floor does so at once with this height.
        self.jump = None if floor is None else ((begin - p) * self.slope + 0.5).clamp(min=0)

    @classmethod
    def of(cls, group: Group, spec: RankingSpec) -> StepSums | None:
        """The sums, or None if the positives are too far apart or from zero."""
        assert isinstance(spec.distance, Step)
        least, most = torch.stack(group.positives.aminmax()).tolist()
        delta = spec.distance.delta
        if most - least > WIDEST * delta or max(-least, most) > FARTHEST * delta:
            return None
        return cls(group, spec)

    def over(self, values: Sequence[Tensor], lower: bool) -> Over:
        """Each positive's sums over its pairs."""
        table, faults = self._moments()
        rank, number = self._read(table)
        negatives = Sums(rank, rank, number)
        p = self.group.positives
        if len(p) <= FEW or self.jump is not None:
            return Over(negatives, *DenseSums(self.group, self.spec).among(values, lower), faults)
        everyone = torch.stack([self._read(self._table(value))[0] for value in values])
        if not lower:
            return Over(negatives, everyone, None, faults)
        below = self._lower(p, self.group.quality, torch.stack(list(values)))
        return Over(negatives, everyone, Sums(below, below[0]), faults)

    def push(self, weights: Tensor, lower: bool) -> Tensor:
        """For each positive v, Σ_u weights_u · H(p_v - p_u): over all u, or over those of higher quality."""
        p = self.group.positives
        if len(p) <= FEW or self.jump is not None:
            return DenseSums(self.group, self.spec).push(weights, lower)
        if lower:  # H(p_v - p_u) = H((-p_u) - (-p_v))
            return self._lower(-p, -self.group.quality, weights[None])[0]
        cell, offset = self._locate(p)
        lines = self._lines(weights)[cell]
        return lines[:, 0] + lines[:, 1] * offset

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · H(x_v - p_u), and 0 elsewhere."""
        lines = self._lines(weights)
        for part in self._parts():
            cell, offset = self._locate(self.group.values[part])
            constant, slope = lines.T.index_select(1, cell)
            out[part] = torch.addcmul(constant, slope, offset)
        if len(self.group.skip):
            out.masked_fill_(self.group.skip, 0)

    def _parts(self) -> list[slice]:
        return [slice(start, start + BLOCK) for start in range(0, len(self.group.values), BLOCK)]

    def _locate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cell of each number, and its offset from the origin, clamped to the edges: beyond, the step is constant."""
        x = x.double()
        return self.edges_below(x), x.clamp(self.edges[0], self.edges[-1]).sub_(self.origin)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Number and sum of offsets of the negatives in each cell, [cells, 2], and how many are NaN or infinite."""
        values, skip = self.group.values, self.group.skip
        table = self.edges.new_zeros(2, len(self.edges) + 1)
        faults = -skip.sum()
        for part in self._parts():
            # What is not negative goes to the first cell, below all ramps, which is never read.
            x = values[part].masked_fill(skip[part], -torch.inf) if len(skip) else values[part]
            cell, offset = self._locate(x)
            table.scatter_add_(1, cell.expand(2, -1), torch.stack([torch.ones_like(offset), offset]))
            faults = faults + (x - x).count_nonzero()  # NaN is not zero
        return table.T, faults

    def _table(self, values: Tensor) -> Tensor:
        """The same for the positives, each counting ``values`` times."""
        cell, offset = self._locate(self.group.positives)
        table = values.new_zeros(len(self.edges) + 1, 2)
        return table.index_add_(0, cell, torch.stack([values, values * offset], 1))

    def _read(self, table: Tensor) -> tuple[Tensor, Tensor | None]:
        """Each positive's sum of H over the samples of a table, and how many are above its floor, if there is one."""
        above = table.flip(0).cumsum(0).flip(0)  # from each cell up; a cell is above the edge whose number is one less
        number, total = above[self.edge + 1].unbind(-1)
        begin, end = total[:2] - self.ends * number[:2]  # sums of max(0, x - end)
        rank = (begin - end) * self.slope
        return (rank, None) if self.jump is None else (rank + self.jump * number[0], number[2])

    def _lines(self, weights: Tensor) -> Tensor:
        """Constant and slope by the offset in each cell of Σ_u weights_u · H(x - p_u), [cells, 2]."""
        slope = torch.stack([weights, -weights]) * self.slope
        constant = -self.ends * slope
        if self.jump is not None:
            constant[0] += weights * self.jump
        changes = weights.new_zeros(len(self.edges) + 1, 2)
        rows = torch.stack([constant.flatten(), slope.flatten()], 1)
        return changes.index_add_(0, self.edge[:2].flatten() + 1, rows).cumsum(0)

    def _lower(self, p: Tensor, quality: Tensor, values: Tensor) -> Tensor:
        """For each positive u and each row of values, Σ values_v · H(p_v - p_u) over those of lower quality, [K, P]."""
        delta = 0.5 / self.slope
        ordered, order = p.sort()
        sorted_quality, by_quality = quality.sort()
        ends = torch.searchsorted(ordered, torch.stack([p - delta, p + delta]))
        limit = torch.searchsorted(sorted_quality, quality)
        offset = p - p.median()
        weighted = torch.cat([values, values * offset]).T  # [P, 2K]
        total = pad(values[:, by_quality].cumsum(1), (1, 0))[:, limit]
        low, high = first_in_both(by_quality.argsort(), order.argsort(), limit, ends, weighted).transpose(1, 2)
        count, moment = (high - low).chunk(2)
        return total - high[: len(values)] + (moment - offset * count) * self.slope + 0.5 * count


def first_in_both(place: Tensor, rank: Tensor, limit: Tensor, ends: Tensor, values: Tensor) -> Tensor:
    """Sums of values over the samples with place < limit and rank < end, for each of P questions, in P log² P steps.

    In the first order the samples are cut into blocks of 1, 2, 4, … and each block is put into the second order. The
    first n samples of the first order are then at most one block of each length, by the binary digits of n, and what a
    block has before some index of the second order is a difference of two prefix sums.

    Args:
        place: Each sample's index in the first order, int64 [P]: a permutation.
        rank: Each sample's index in the second order, int64 [P]: a permutation.
        limit: How many of the first order each question asks for, int64 [P].
        ends: How many of the second order it asks for, several ends at once, int64 [E, P].
        values: How much each sample counts, several sums at once, float64 [P, K].

    Returns:
        The sums, float64 [E, P, K].
    """
    number = len(place)
    result = values.new_zeros(*ends.shape, values.shape[1])
    for level in range(number.bit_length()):
        asking = (limit >> level & 1).nonzero().squeeze(1)
        keys, order = ((place >> level) * (number + 1) + rank).sort()  # by block, then by the second order
        before = pad(values[order].cumsum(0), (0, 0, 1, 0))
        block = (limit[asking] >> level) - 1
        at = torch.searchsorted(keys, block * (number + 1) + ends[:, asking])
        result[:, asking] += before[at] - before[block << level]
    return result
