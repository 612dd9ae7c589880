"""The definition: every pair in turn, in float64, with which tests compare the other engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from rankwise.pairsums.engines.by_sums import SumsEngine, joined
from rankwise.pairsums.engines.groups import Group, Read
from rankwise.pairsums.formula import Over, Sums
from rankwise.pairsums.spec import RankingSpec, Samples

#: Pairs taken at once: half a million make 4 MB of differences. On a CPU fewer, whose temporaries stay in its cache.
PAIRS_PER_BLOCK, PAIRS_PER_BLOCK_ON_CPU = 1 << 19, 1 << 16


class DenseEngine(SumsEngine):
    """Every pair by itself, on any device."""

    name = "dense"

    def unsupported(self, spec: RankingSpec, samples: Samples) -> str | None:
        """Nothing is unsupported."""
        return None

    def read(self, samples: Samples) -> Read:
        """The positives among the samples, and what is not negative."""
        read = super().read(samples)
        if len(read.skip):  # a custom distance may not be 0 far below
            read.values.view(len(read.skip), -1).masked_fill_(read.skip[:, None], -torch.inf)
        return read

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
        self.group, self.spec, self.distance = group, spec, spec.distance
        self.floor = spec.floor(group.positives)

    @cached_property
    def negatives(self) -> Tensor:
        """Which of the group's values are negatives, bool [n]."""
        return self.group.values > -torch.inf

    def over(self, values: Sequence[Tensor], lower: bool) -> Over:
        """Each positive's sums over its pairs."""
        return Over(self._over_negatives(), *self.among(values, lower), 0)

    def among(self, values: Sequence[Tensor], lower: bool) -> tuple[Tensor, Sums | None]:
        """The sums over positives alone: as in `Over`, ``positives`` and ``lower``."""
        p, quality, counted = self.group.positives, self.group.quality, torch.stack(list(values), 1)
        everyone, rank, error, number = [], [], [], []
        for block, z, counts in self._blocks(p, None):
            ranks = _times(self.distance.rank(z), counts)
            everyone.append(ranks @ counted)
            if lower:
                below = quality < quality[block, None]
                below = below if counts is None else below & counts
                rank.append((ranks * below) @ counted)
                if self.spec.family == "pairwise":  # the other formulas do not read these two
                    error.append((self.distance.error(z) * below).sum(1))
                    number.append(below.sum(1))
        if not lower:
            return joined(everyone).T, None
        ranked = joined(rank).T
        return joined(everyone).T, Sums(ranked, joined(error), joined(number)) if error else Sums(ranked, ranked[0])

    def push(self, weights: Tensor, lower: bool) -> Tensor:
        """For each positive v, Σ_u weights_u · rank(p_v - p_u): over all u, or over those of higher quality."""
        return self.adjoint(self.group.positives, weights, self.group.quality if lower else None)

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · rank(x_v - p_u)."""
        out.zero_()[self.negatives] = self.adjoint(self.group.values[self.negatives].double(), weights, None).to(
            out.dtype
        )

    def _over_negatives(self) -> Sums:
        weight = None if self.group.weight is None else self.group.weight[self.negatives]
        parts = []
        for _, z, counts in self._blocks(self.group.values[self.negatives].double(), None):
            if weight is not None:
                counts = weight.expand_as(z) if counts is None else counts * weight
            number = z.new_full((len(z),), z.shape[1]) if counts is None else counts.sum(1).double()
            rank, error = _times(self.distance.rank(z), counts), _times(self.distance.error(z), counts)
            parts.append([rank.sum(1), error.sum(1), number])
        return Sums(*map(torch.cat, zip(*parts, strict=True)))

    def adjoint(self, x: Tensor, weights: Tensor, quality: Tensor | None) -> Tensor:
        total = torch.zeros_like(x)
        for block, z, counts in self._blocks(x, quality):
            total += weights[block] @ _times(self.distance.rank(z), counts)
        return total

    def _blocks(self, x: Tensor, quality: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Blocks of positives u with z = x_v - p_u and which pairs count, [block, n] each; None: all do."""
        pairs = PAIRS_PER_BLOCK_ON_CPU if x.device.type == "cpu" else PAIRS_PER_BLOCK
        rows = max(1, pairs // max(1, len(x)))
        for first in range(0, len(self.group.positives), rows):
            block = slice(first, first + rows)
            counts = None if quality is None else quality < quality[block, None]
            if self.floor is not None:
                above = x > self.floor[block, None]
                counts = above if counts is None else counts & above
            yield block, x - self.group.positives[block, None], counts


def _times(values: Tensor, counts: Tensor | None) -> Tensor:
    return values if counts is None else values * counts
