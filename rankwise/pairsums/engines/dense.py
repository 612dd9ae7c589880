"""The definition: every pair in turn, in float64, at a cost of positives times samples. The oracle of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from rankwise.pairsums.engines.by_sums import Group, SumsEngine, skipped
from rankwise.pairsums.formula import Over, Sums
from rankwise.pairsums.spec import RankingSpec, Samples

#: Pairs taken at once: half a million make 4 MB of differences.
BLOCK = 1 << 19


class DenseEngine(SumsEngine):
    """Every pair by itself, on any device."""

    name = "dense"

    def unsupported(self, spec: RankingSpec, samples: Samples) -> str | None:
        """Nothing is."""
        return None

    def sums(self, group: Group, spec: RankingSpec) -> DenseSums:
        """The sums over the pairs of a group."""
        return DenseSums(group, spec)


class DenseSums:
    """Sums over the pairs of a group, a block of positives at a time.

    Args:
        group: The samples.
        spec: What is asked for: its distance, and its floor, below which samples make no pair.
    """

    def __init__(self, group: Group, spec: RankingSpec) -> None:
        self.group, self.distance = group, spec.distance
        self.floor = spec.floor(group.positives)

    @cached_property
    def negatives(self) -> Tensor:
        """Which of the group's values are negatives, bool [n]."""
        return torch.ones_like(self.group.values, dtype=torch.bool).index_fill_(0, skipped(self.group.skip), False)

    def over(self, values: Sequence[Tensor], lower: bool) -> Over:
        """Each positive's sums over its pairs."""
        negatives = self._sums(self.group.values[self.negatives].double(), None, None)
        return Over(negatives, *self.among(values, lower), (~self.group.values[self.negatives].isfinite()).sum())

    def among(self, values: Sequence[Tensor], lower: bool) -> tuple[Tensor, Sums | None]:
        """The sums over positives alone: as in `Over`, ``positives`` and ``lower``."""
        p, quality = self.group.positives, self.group.quality
        among = torch.stack([self._sums(p, value, None).rank for value in values])
        below = None
        if lower:
            first, *others = (self._sums(p, value, quality) for value in values)
            below = first._replace(rank=torch.stack([first.rank, *(other.rank for other in others)]))
        return among, below

    def push(self, weights: Tensor, lower: bool) -> Tensor:
        """For each positive v, Σ_u weights_u · rank(p_v - p_u): over all u, or over those of higher quality."""
        return self._adjoint(self.group.positives, weights, self.group.quality if lower else None)

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · rank(x_v - p_u)."""
        out.zero_()[self.negatives] = self._adjoint(self.group.values[self.negatives].double(), weights, None).to(
            out.dtype
        )

    def _sums(self, x: Tensor, values: Tensor | None, quality: Tensor | None) -> Sums:
        """Over samples x [n], each counting ``values`` times, of lower quality if given."""
        parts = []
        for _, z, counts in self._blocks(x, quality):
            counts = counts.double() if values is None else counts * values
            rank, error = self.distance.rank(z) * counts, self.distance.error(z) * counts
            parts.append([rank.sum(1), error.sum(1), counts.sum(1)])
        return Sums(*map(torch.cat, zip(*parts, strict=True)))

    def _adjoint(self, x: Tensor, weights: Tensor, quality: Tensor | None) -> Tensor:
        total = torch.zeros_like(x)
        for block, z, counts in self._blocks(x, quality):
            total += weights[block] @ (self.distance.rank(z) * counts)
        return total

    def _blocks(self, x: Tensor, quality: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Blocks of positives u with z = x_v - p_u and which pairs count, [block, n] each."""
        rows = max(1, BLOCK // max(1, len(x)))
        for first in range(0, len(self.group.positives), rows):
            block = slice(first, first + rows)
            z = x - self.group.positives[block, None]
            counts = torch.ones_like(z, dtype=torch.bool)
            if self.floor is not None:
                counts &= x > self.floor[block, None]
            if quality is not None:
                counts &= quality < quality[block, None]
            yield block, z, counts
