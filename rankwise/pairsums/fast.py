"""The sums over pairs in time and memory linear in the number of samples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from rankwise.pairsums import passes
from rankwise.pairsums.base import PairSums
from rankwise.pairsums.dense import DensePairSums
from rankwise.pairsums.distances import Distance, Sigmoid, Step
from rankwise.pairsums.floors import FloorCells
from rankwise.pairsums.samples import Negatives, Sums
from rankwise.pairsums.sigmoid import SigmoidCells, TooWideError
from rankwise.pairsums.step import StepCells
from rankwise.pairsums.world import WorldPairSums

Method = Literal["fast", "dense"]

#: Up to so many positives are compared with each other pair by pair.
FEW = 256

#: Of more, at least so many are compared pair by pair that are neighbours in quality; the lower ones come from a table.
BLOCK = 32

#: So many of these pairs are taken at once: on a CPU they then stay in its cache.
PAIRS_CPU, PAIRS_GPU = 1 << 15, 1 << 20

#: The tables for all blocks of quality hold no more numbers than the first, or than the second if there were fewer than
#: so many blocks: with few blocks there are many pairs to take one by one.
TABLES, LARGE_TABLES, FEW_BLOCKS = 1 << 18, 1 << 21, 32


def pair_sums(
    negatives: Negatives,
    positives: Tensor,
    distance: Distance,
    floor: Tensor | None = None,
    method: Method = "fast",
) -> PairSums:
    """Sums over the pairs of P positives with negatives and with each other.

    Args:
        negatives: The negatives, none of them among the positives.
        positives: The positives' logits, [P], at least one; if the negatives are shared, those of all processes.
        distance: What a pair adds.
        floor: Only pairs with x_v above it count, float64 [P], rising with the positives; None counts all pairs.
        method: "fast" for linear cost, "dense" for the definition.
    """
    sums: PairSums
    try:
        sums = (FastPairSums if method == "fast" else DensePairSums)(negatives, positives, distance, floor)
    except (
        TooWideError
    ):  # positives at thousands of places, all far apart: no logits of a detector, but not wrong either
        sums = DensePairSums(negatives, positives, distance, floor)
    return WorldPairSums(sums) if negatives.world else sums


class FastPairSums(PairSums):
    """Sums over the pairs of P positives with negatives and with each other, without the pairs.

    Args:
        negatives: The negatives, none of them among the positives.
        positives: The positives' logits, [P].
        distance: What a pair adds.
        floor: Only pairs with x_v above it count, float64 [P], rising with the positives; None counts all pairs.

    Raises:
        TooWideError: If the positives are spread so widely that tables would not fit in memory.
    """

    def __init__(
        self, negatives: Negatives, positives: Tensor, distance: Distance, floor: Tensor | None = None
    ) -> None:
        self.negatives = negatives
        self.fills = negatives.values.numel() if negatives.index is None else 0
        self.positives = positives.double()
        self.distance = distance
        self.floor = floor
        self.cells = _make_cells(self.positives, distance, floor, negatives.values.dtype)
        compiled, many = passes.compiled_for(self.positives) and floor is None, len(self.positives) > FEW
        self.in_order = self.cells if isinstance(self.cells, _InOrder) and (compiled or many) else None

    def over_negatives(self) -> Sums:
        return self.cells.read(self.cells.fold(passes.moments(self.negatives, self.cells.pass_cells)))

    def read_back(self, weights: Tensor, out: Tensor) -> None:
        everywhere = torch.arange(self.cells.size, device=weights.device)
        coefficients = self.cells.polynomials(self.cells.lay(weights.double()), everywhere)
        passes.evaluate(self.negatives, self.cells.pass_cells, self.cells.unfold(coefficients), out)

    def over_positives(self, quality: Tensor | None = None, values: Tensor | None = None) -> Sums:
        values = torch.ones_like(self.positives) if values is None else values.double()
        if quality is not None and self.in_order:
            return self.in_order.over_lower(quality, values)
        if len(values) <= FEW and not self.in_order:
            pairs = self._pairs if quality is None else self._pairs * (quality < quality[:, None])
            return Sums(*(pairs @ values))
        if quality is None:
            return self.cells.read(self.cells.spread(values))
        order = _ByQuality(quality, self._most_blocks)
        lower = order.lower // order.step  # whole blocks of lower quality
        table = self.cells.spread(values, order.block + 1, order.blocks + 1).cumsum_(0)
        neighbours = values.new_empty(3, len(values))
        for u, v, there in order.remaining(lower * order.step, order.lower):
            pairs = self._of_pairs(self.positives[v], u[:, None])
            neighbours[:, u] = pairs.mul_(values[v].mul_(there)).sum(2)
        return self.cells.read(table, lower) + neighbours.unbind()

    def read_back_positives(self, weights: Tensor, quality: Tensor | None = None) -> Tensor:
        weights = weights.double()
        if quality is not None and self.in_order:
            return self.in_order.over_higher(quality, weights)
        if len(weights) <= FEW and not self.in_order:
            pairs = self._pairs[1] if quality is None else self._pairs[1] * (quality < quality[:, None])
            return weights @ pairs
        if quality is None:
            return self.cells.at_positives(self.cells.polynomials(self.cells.lay(weights), self.cells.index))
        order = _ByQuality(quality, self._most_blocks)
        higher = -(-order.upper // order.step)  # the first whole block of higher quality
        table = self.cells.lay(weights, order.blocks - order.block, order.blocks + 1).cumsum_(0)
        neighbours = torch.empty_like(weights)
        for v, u, there in order.remaining(order.upper, higher * order.step):
            rank = self.distance.rank(self.positives[v, None] - self.positives[u])
            there = there if self.floor is None else there & (self.positives[v, None] > self.floor[u])
            neighbours[v] = rank.mul_(weights[u].mul_(there)).sum(1)
        coefficients = self.cells.polynomials(table, self.cells.index, order.blocks - higher)
        return self.cells.at_positives(coefficients) + neighbours

    @cached_property
    def _pairs(self) -> Tensor:
        """What each pair of positives adds to number, rank and error of u, float64 [3, u, v]."""
        return self._of_pairs(self.positives, torch.arange(len(self.positives), device=self.positives.device)[:, None])

    def _of_pairs(self, x: Tensor, u: Tensor) -> Tensor:
        """What pairs of samples with positives add to number, rank and error, for some shape of pairs: [3, ...]."""
        z = x - self.positives[u]
        counts = torch.ones_like(z) if self.floor is None else (x > self.floor[u]).double()
        return torch.stack([counts, self.distance.rank(z) * counts, self.distance.error(z) * counts])

    @property
    def _most_blocks(self) -> int:
        numbers = self.cells.size * self.cells.n
        return max(1, TABLES // numbers, min(FEW_BLOCKS, LARGE_TABLES // numbers))


def _make_cells(
    positives: Tensor, distance: Distance, floor: Tensor | None, dtype: torch.dtype
) -> StepCells | SigmoidCells:
    compiled = passes.compiled_for(positives) if floor is None else None
    cells: StepCells | SigmoidCells
    if isinstance(distance, Step):
        cells = compiled.CompiledStepCells(positives, distance) if compiled else StepCells(positives, distance, floor)
    elif not isinstance(distance, Sigmoid):
        raise TypeError(f"{type(distance).__name__} has no fast sums, use method='dense'")
    elif floor is not None:
        cells = FloorCells(positives, distance, dtype, floor)
    else:
        cells = (compiled.CompiledSigmoidCells if compiled else SigmoidCells)(positives, distance, dtype)
    return cells


@runtime_checkable
class _InOrder(Protocol):
    """Cells that have a quicker way of their own to sum by quality."""

    def over_lower(self, quality: Tensor, values: Tensor) -> Sums:
        """For each positive u, the sums over the positives v with lower quality, each counting ``values`` times."""

    def over_higher(self, quality: Tensor, weights: Tensor) -> Tensor:
        """For each positive v, the sum of weight · rank over the positives u with higher quality, [P]."""


class _ByQuality:
    """The positives in order of quality, in blocks.

    Args:
        quality: [P].
        most: Most blocks to make.
    """

    def __init__(self, quality: Tensor, most: int) -> None:
        ordered, self.order = quality.sort()
        number = len(quality)
        self.step = -(-number // max(1, min(most, number // BLOCK)))
        self.blocks = -(-number // self.step)
        self.block = torch.empty_like(self.order)  # of each positive
        self.block[self.order] = torch.arange(number, device=quality.device) // self.step
        self.lower = torch.searchsorted(ordered, quality)  # how many have lower quality
        self.upper = torch.searchsorted(ordered, quality, right=True)  # how many have lower or equal quality

    def remaining(self, first: Tensor, end: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Positives, [r], with those at places first to end of the order, [r, step], and which of these there are."""
        number = len(self.order)
        pairs = PAIRS_CPU if first.device.type == "cpu" else PAIRS_GPU
        for rows in torch.arange(number, device=first.device).split(max(1, pairs // self.step)):
            place = first[rows, None] + torch.arange(self.step, device=first.device)
            there = place < end[rows, None].clamp(max=number)
            yield rows, self.order[place.clamp(max=number - 1)], there
