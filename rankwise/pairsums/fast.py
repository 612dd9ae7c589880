"""The sums over pairs in time and memory linear in the number of samples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from rankwise.pairsums import passes
from rankwise.pairsums.base import PairSums
from rankwise.pairsums.dense import DensePairSums
from rankwise.pairsums.distances import Distance, Step
from rankwise.pairsums.floors import FloorCells
from rankwise.pairsums.samples import Negatives, Sums
from rankwise.pairsums.sigmoid import SigmoidCells, TooWideError
from rankwise.pairsums.step import StepCells

#: Positives that are compared by quality pair by pair at least; all lower ones are read from a table.
BLOCK = 32

#: So many of these pairs are taken at once.
PAIRS = 1 << 20

#: The tables of all blocks of quality hold no more numbers than this.
TABLES = 1 << 22


Method = Literal["fast", "dense"]


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
        positives: The positives' logits, [P], at least one.
        distance: What a pair adds.
        floor: Only pairs with x_v above it count, float64 [P], rising with the positives; None counts all pairs.
        method: "fast" for linear cost, "dense" for the definition.
    """
    if method == "fast":
        try:
            return FastPairSums(negatives, positives, distance, floor)
        except TooWideError:  # positives at millions of places far apart: no logits of a detector, but not wrong either
            pass
    return DensePairSums(negatives, positives, distance, floor)


class FastPairSums(PairSums):
    """Sums over the pairs of P positives with negatives and with each other, without the pairs.

    Args:
        negatives: The negatives, none of them among the positives.
        positives: The positives' logits, [P].
        distance: What a pair adds.
        floor: Only pairs with x_v above it count, float64 [P], rising with the positives; None counts all pairs.
    """

    def __init__(
        self, negatives: Negatives, positives: Tensor, distance: Distance, floor: Tensor | None = None
    ) -> None:
        self.negatives = negatives
        self.positives = positives.double()
        self.distance = distance
        self.floor = floor
        self.cells: StepCells | SigmoidCells
        if isinstance(distance, Step):
            self.cells = StepCells(self.positives, distance, floor)
        else:
            kind = SigmoidCells if floor is None else partial(FloorCells, floor=floor)
            self.cells = kind(self.positives, distance, negatives.values.dtype)

    def over_negatives(self) -> Sums:
        return self.cells.read(self.cells.fold(passes.moments(self.negatives, self.cells.pass_cells)))

    def read_back(self, weights: Tensor, out: Tensor) -> None:
        everywhere = torch.arange(self.cells.size, device=weights.device)
        coefficients = self.cells.polynomials(self.cells.lay(weights.double()), everywhere)
        passes.evaluate(self.negatives, self.cells.pass_cells, self.cells.unfold(coefficients), out)

    def over_positives(self, quality: Tensor | None = None, values: Tensor | None = None) -> Sums:
        values = torch.ones_like(self.positives) if values is None else values.double()
        if quality is None:
            return self.cells.read(self.cells.spread(values))
        order = _ByQuality(quality, self._most_blocks)
        lower = order.lower // order.step  # whole blocks of lower quality
        sums = []
        for u, v, counts in order.remaining(lower * order.step, order.lower):
            z = self.positives[v] - self.positives[u, None]
            if self.floor is not None:
                counts = counts & (self.positives[v] > self.floor[u, None])
            by = counts * values[v]
            sums.append(
                torch.stack([by.sum(1), (self.distance.rank(z) * by).sum(1), (self.distance.error(z) * by).sum(1)])
            )
        result = Sums(*torch.cat(sums, 1))
        if order.blocks == 1:
            return result
        table = self.cells.spread(values, order.block + 1, order.blocks + 1).cumsum(0)
        return result + self.cells.read(table, lower)

    def read_back_positives(self, weights: Tensor, quality: Tensor | None = None) -> Tensor:
        weights = weights.double()
        if quality is None:
            return self.cells.at_positives(self.cells.polynomials(self.cells.lay(weights), self.cells.index))
        order = _ByQuality(quality, self._most_blocks)
        higher = -(-order.upper // order.step)  # the first whole block of higher quality
        parts = []
        for v, u, counts in order.remaining(order.upper, higher * order.step):
            if self.floor is not None:
                counts = counts & (self.positives[v, None] > self.floor[u])
            parts.append((self.distance.rank(self.positives[v, None] - self.positives[u]) * counts * weights[u]).sum(1))
        result = torch.cat(parts)
        if order.blocks == 1:
            return result
        table = self.cells.lay(weights, order.blocks - order.block, order.blocks + 1).cumsum(0)
        return result + self.cells.at_positives(self.cells.polynomials(table, self.cells.index, order.blocks - higher))

    @property
    def _most_blocks(self) -> int:
        return max(1, TABLES // (self.cells.size * self.cells.n))


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
        self.block = torch.empty_like(self.order)
        self.block[self.order] = torch.arange(number, device=quality.device) // self.step  # of each positive
        self.lower = torch.searchsorted(ordered, quality)  # how many have lower quality
        self.upper = torch.searchsorted(ordered, quality, right=True)  # how many have lower or equal quality

    def remaining(self, first: Tensor, end: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Positives, [r], with those at places first to end of the order, [r, step], and which of these there are."""
        number = len(self.order)
        for rows in torch.arange(number, device=first.device).split(max(1, PAIRS // self.step)):
            place = first[rows, None] + torch.arange(self.step, device=first.device)
            counts = place < end[rows, None].clamp(max=number)
            yield rows, self.order[place.clamp(max=number - 1)], counts
