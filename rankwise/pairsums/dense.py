"""The sums over pairs as they are defined: every pair in turn, a block of positives at a time, in float64.

This is the reference that the fast sums are judged by. Its cost is positives x negatives.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rankwise.pairsums.base import PairSums
from rankwise.pairsums.distances import Distance
from rankwise.pairsums.samples import Negatives, Sums

#: Pairs taken at once: 4 million make 32 MB of differences.
BLOCK = 1 << 22


class DensePairSums(PairSums):
    """Sums over the pairs of P positives with negatives and with each other, pair by pair.

    Args:
        negatives: The negatives, none of them among the positives.
        positives: The positives' logits, [P].
        distance: What a pair adds.
        floor: Only pairs with x_v above it count, float64 [P], rising with the positives; None counts all pairs.
    """

    def __init__(
        self, negatives: Negatives, positives: Tensor, distance: Distance, floor: Tensor | None = None
    ) -> None:
        self.given, self.negatives = negatives, negatives.picked()
        self.positives = positives.double()
        self.distance = distance
        self.floor = floor

    def over_negatives(self) -> Sums:
        self.given.check_finite()
        return self._sums(self.negatives.values.double(), None, None)

    def over_positives(self, quality: Tensor | None = None, values: Tensor | None = None) -> Sums:
        return self._sums(self.positives, quality, None if values is None else values.double())

    def read_back(self, weights: Tensor, out: Tensor) -> None:
        self.negatives.write(self._read_back(self.negatives.values.double(), weights, None), out)

    def read_back_positives(self, weights: Tensor, quality: Tensor | None = None) -> Tensor:
        return self._read_back(self.positives, weights, quality)

    def _sums(self, x: Tensor, quality: Tensor | None, values: Tensor | None) -> Sums:
        parts = []
        for _, z, counts in self._blocks(x, quality):
            counts = counts * values if values is not None else counts.double()
            error = self.distance.error(z) * counts
            parts.append(torch.stack([counts.sum(1), (self.distance.rank(z) * counts).sum(1), error.sum(1)]))
        if not parts:
            parts.append(self.positives.new_zeros(3, 0))
        return Sums(*torch.cat(parts, 1))

    def _read_back(self, x: Tensor, weights: Tensor, quality: Tensor | None) -> Tensor:
        total = torch.zeros_like(x)
        for block, z, counts in self._blocks(x, quality):
            total += weights[block].double() @ (self.distance.rank(z) * counts)
        return total

    def _blocks(self, x: Tensor, quality: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Blocks of positives with z = x_v - p_u and which pairs count, [block, len(x)] each."""
        rows = max(1, BLOCK // max(1, x.numel()))
        for first in range(0, self.positives.numel(), rows):
            block = slice(first, first + rows)
            z = x - self.positives[block, None]
            counts = torch.ones_like(z, dtype=torch.bool)
            if self.floor is not None:
                counts &= x > self.floor[block, None]
            if quality is not None:
                counts &= quality < quality[block, None]
            yield block, z, counts
