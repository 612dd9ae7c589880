"""Sums of the step over all pairs, exact, by the histogram whose bin edges are the ends p ± δ of all ramps.

Suffix sums of moments 0 and 1 give Σ max(0, x - edge) over the samples at each edge, and a ramp is the
difference of two such sums. In the adjoint, constant and slope change at each edge by the weight of its positive.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankwise.pairsums.distances import Step
from rankwise.pairsums.engines.dense import DenseSums
from rankwise.pairsums.engines.groups import Group
from rankwise.pairsums.engines.torch import edges
from rankwise.pairsums.engines.torch.blocks import blocks
from rankwise.pairsums.formula import Over, Sums
from rankwise.pairsums.spec import RankingSpec

#: Largest distance of positives from each other, and from zero, in units of δ: keeps 10 and 8 digits.
MAX_RANGE, MAX_DISTANCE = 1e5, 1e7

#: Up to this many positives, sums over pairs of positives are computed pair by pair: fewer operations, but each has P²
#: entries. On a CPU the second, unless the sums are by quality.
MAX_PAIRWISE, MAX_PAIRWISE_ON_CPU = 512, 256


class Ramps:
    """The ends of the ramps of positives, sorted: the edges of the cells. Cell k is above k edges.

    Args:
        positives: Logits, float64 [P].
        spec: The loss.

    Attributes:
        edge: For each positive the edges where its ramp begins and ends, and its floor, [2 or 3, P].
        ends: Positions of the first two, [2, P].
        slope: Of a ramp, per unit of positions.
        jump: Height of the ramp where it begins, 0 unless a floor cuts it, [P]; None without floors.
        cells: Number of cells.
    """

    def __init__(self, positives: Tensor, spec: RankingSpec) -> None:
        assert isinstance(spec.distance, Step)
        p, delta = positives, spec.distance.delta
        floor = spec.floor(p) if spec.has_floor else None
        begin = p - delta if floor is None else torch.maximum(p - delta, floor)
        ends, order = torch.cat([begin, p + delta] + ([] if floor is None else [floor])).sort()
        self.edges = edges.Edges(ends, exact=floor is not None)  # at a floor, ramps jump
        index = torch.arange(len(order), device=p.device)
        self.edge = torch.empty_like(order).scatter_(0, order, index).view(-1, len(p))
        self.ends = self.edges.positions[self.edge[:2]]
        self.slope = 0.5 / delta
        self.jump = None if floor is None else ((begin - p) * (0.5 / delta) + 0.5).clamp(min=0)
        self.cells = len(ends) + 1


class StepSums:
    """Sums of a step over the pairs of a group.

    Args:
        group: The samples.
        spec: The loss.
    """

    def __init__(self, group: Group, spec: RankingSpec) -> None:
        self.group, self.spec, self.ramps = group, spec, Ramps(group.positives, spec)
        by_table = group.positives.device.type == "cpu" and not spec.by_quality
        few = MAX_PAIRWISE_ON_CPU if by_table else MAX_PAIRWISE
        self.in_pairs = len(group.positives) <= few or self.ramps.jump is not None

    @property
    def layout(self) -> Tensor:
        """What `evaluate` needs to find the cell of a sample."""
        return self.ramps.edges.edges

    @classmethod
    def of(cls, group: Group, spec: RankingSpec) -> StepSums | None:
        """The sums, or None if the positives are too far apart or from zero."""
        assert isinstance(spec.distance, Step)
        least, most = group.limits[:2] if group.limits else torch.stack(group.positives.aminmax()).tolist()
        delta = spec.distance.delta
        if most - least > MAX_RANGE * delta or max(-least, most) > MAX_DISTANCE * delta:
            return None
        return cls(group, spec)

    def over(self, values: Sequence[Tensor], lower: bool) -> Over:
        """Each positive's sums over its pairs."""
        rank, number = self._sums_over(self._moments())
        negatives = Sums(rank, rank, number)
        if self.in_pairs:
            return Over(negatives, *DenseSums(self.group, self.spec).among(values, lower), 0)
        everyone = torch.stack([self._sums_over(self._table_of_positives(value))[0] for value in values])
        if not lower:
            return Over(negatives, everyone, None, 0)
        below = self._lower(self.group.positives, self.group.quality, torch.stack(list(values)))
        return Over(negatives, everyone, Sums(below, below[0]), 0)

    def push(self, weights: Tensor, lower: bool) -> Tensor:
        """For each positive v, Σ_u weights_u · H(p_v - p_u): over all u, or over those of higher quality."""
        if self.in_pairs:
            return DenseSums(self.group, self.spec).push(weights, lower)
        p = self.group.positives
        if lower:  # H(p_v - p_u) = H((-p_u) - (-p_v))
            return self._lower(-p, -self.group.quality, weights[None])[0]
        cell, position = self.ramps.edges.locate(p)
        constant, slope = self._lines(weights)[cell].T
        return constant + slope * position

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · H(x_v - p_u)."""
        evaluate(self.group, self.spec, self.layout, self.table(weights), weights.new_ones(()), out)

    def table(self, weights: Tensor) -> Tensor:
        """Constant and slope in each cell of Σ_u weights_u · H(x - p_u), [cells · 2]."""
        return self._lines(weights).flatten()

    def _moments(self) -> Tensor:
        """Number of the negatives in each cell and the sum of their positions, [2, cells]."""
        values = self.group.values
        bins = edges.bins_over(values, self.ramps.edges)
        if bins is not None:
            return edges.moments(values, self.group.weight, bins)
        parts = blocks(values)
        table = self.group.positives.new_zeros(2, self.ramps.cells)
        terms = table.new_ones(2, min(len(values), parts[0].stop) if parts else 0)
        for part in parts:
            # Samples that are not negatives are in the first cell, below all ramps, which is never read.
            x = values[part]
            cell, position = self.ramps.edges.locate(x, terms[1, : len(x)])
            if self.group.weight is not None:
                position.mul_(terms[0, : len(x)].copy_(self.group.weight[part]))
            table.scatter_add_(1, cell.expand(2, -1), terms[:, : len(x)])
        return table

    def _table_of_positives(self, values: Tensor) -> Tensor:
        """The same of the positives, weighted by ``values``."""
        cell, position = self.ramps.edges.locate(self.group.positives)
        table = values.new_zeros(2, self.ramps.cells)
        return table.index_add_(1, cell, torch.stack([values, values * position]))

    def _sums_over(self, table: Tensor) -> tuple[Tensor, Tensor | None]:
        """For each positive, the sum of H over the samples of a table, and with floors the number above its floor."""
        ramps = self.ramps
        above = table.flip(1).cumsum(1).flip(1)  # suffix sums; cell k + 1 begins at edge k
        number, total = above[:, 1:][:, ramps.edge]
        begin, end = torch.addcmul(total[:2], ramps.ends, number[:2], value=-1)  # sums of max(0, x - end)
        rank = (begin - end) * ramps.slope
        return (rank, None) if ramps.jump is None else (rank + ramps.jump * number[0], number[2])

    def _lines(self, weights: Tensor) -> Tensor:
        """Constant and slope in each cell of Σ_u weights_u · H(x - p_u), [cells, 2]."""
        ramps = self.ramps
        slope = torch.stack([weights, -weights]) * ramps.slope
        constant = -ramps.ends * slope
        if ramps.jump is not None:
            constant[0] += weights * ramps.jump
        changes = weights.new_zeros(ramps.cells, 2)
        rows = torch.stack([constant.flatten(), slope.flatten()], 1)
        changes[1:].index_add_(0, ramps.edge[:2].flatten(), rows)
        return changes.cumsum(0)

    def _lower(self, p: Tensor, quality: Tensor, values: Tensor) -> Tensor:
        """For each positive u and row of values, Σ_v values_v · H(p_v - p_u) over the v of lower quality, [K, P]."""
        assert isinstance(self.spec.distance, Step)
        delta = self.spec.distance.delta
        ordered, order = p.sort()
        sorted_quality, by_quality = quality.sort()
        quality_rank = torch.empty_like(order).scatter_(0, by_quality, torch.arange(len(order), device=order.device))
        ends = torch.searchsorted(ordered, torch.stack([p - delta, p + delta]))
        limit = torch.searchsorted(sorted_quality, quality)
        offset = p - p.median()
        weighted = torch.cat([values, values * offset]).T  # [P, 2K]
        total = pad(values[:, by_quality].cumsum(1), (1, 0))[:, limit]
        low, high = dominance_sums(quality_rank[order], limit, ends, weighted[order]).transpose(1, 2)
        count, moment = (high - low).chunk(2)
        return total - high[: len(values)] + (moment - offset * count) * (0.5 / delta) + 0.5 * count


def evaluate(group: Group, spec: RankingSpec, layout: Tensor, table: Tensor, upstream: Tensor, out: Tensor) -> None:
    """Write the value of its cell's line at each sample."""
    over = edges.Edges(layout, exact=spec.has_floor)
    lines = (table * upstream).view(-1, 2)
    bins = edges.bins_over(group.values, over)
    if bins is not None:
        edges.evaluate(group.values, bins, lines, out)
        return
    lines = torch.view_as_complex(lines)  # one index reads constant and slope together
    for part in blocks(group.values):
        cell, position = over.locate(group.values[part])
        constant, slope = torch.view_as_real(lines.index_select(0, cell)).unbind(1)
        torch.addcmul(constant, slope, position, out=out[part])


def dominance_sums(keys: Tensor, limit: Tensor, ends: Tensor, values: Tensor) -> Tensor:
    """Two-dimensional prefix sums: over samples before an end whose key is below a limit, P log P.

    This is a wavelet matrix: digit by digit of the binary keys, from the highest, samples with a 0 are moved before
    those with a 1. The samples that agree with a limit in all higher digits stay side by side, in their order. If the
    next digit of the limit is 1, those with a 0 are below it.

    Args:
        keys: Of each sample, int64 [P]: a permutation.
        limit: Of each query, int64 [Q].
        ends: Indices one past the last sample of each query, several at once, int64 [E, Q].
        values: Summed values of each sample, several at once, float64 [P, K].

    Returns:
        The sums, float64 [E, Q, K].
    """
    index = torch.arange(len(keys), device=keys.device)
    bounds = pad(ends, (0, 0, 1, 0))  # the first sample of each query, and one past the last
    result = values.new_zeros(*ends.shape, values.shape[1])
    for level in range(len(keys).bit_length() - 1, -1, -1):
        digit, digits = keys >> level & 1, limit >> level & 1
        zeros = pad((1 - digit).cumsum(0), (1, 0))  # before each sample
        before, number = zeros[:-1], zeros[-1]
        moved = torch.addcmul(before, digit, index + number - 2 * before)  # multiplied, since `where` is slow
        order = torch.empty_like(index).scatter_(0, moved, index)
        keys, values = keys.index_select(0, order), values.index_select(0, order)
        among_zeros = zeros.index_select(0, bounds.view(-1))
        sums = pad(values.cumsum(0), (0, 0, 1, 0)).index_select(0, among_zeros).view(*bounds.shape, -1)
        result.addcmul_(sums[1:] - sums[0], digits[:, None].double())
        among_zeros = among_zeros.view_as(bounds)
        bounds = torch.addcmul(among_zeros, digits, bounds + number - 2 * among_zeros)
    return result
