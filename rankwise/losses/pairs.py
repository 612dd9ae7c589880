"""Pair selections A_u: which samples a positive is ranked against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankwise.pairsums import PairSums, Sums


@dataclass(frozen=True)
class PositiveVsNegative:
    """Every positive against every negative: A_u = N."""

    needs_quality = False

    def among_positives(self, sums: PairSums, quality: Tensor) -> Sums:
        """The sums over each positive's pairs with other positives: there are none."""
        return Sums(*torch.zeros(3, quality.numel(), dtype=torch.float64, device=quality.device))

    def read_back(self, sums: PairSums, weights: Tensor, quality: Tensor) -> Tensor:
        """What each positive is pushed down by as the lower half of a pair: nothing."""
        return torch.zeros_like(weights)


@dataclass(frozen=True)
class AdaptivePairs:
    """Also against every positive of strictly lower quality (ARPS, Algorithm 1): A_u = N ∪ {v ∈ P : q_v < q_u}."""

    needs_quality = True

    def among_positives(self, sums: PairSums, quality: Tensor) -> Sums:
        """The sums over each positive's pairs with positives of lower quality."""
        return sums.over_positives(quality)

    def read_back(self, sums: PairSums, weights: Tensor, quality: Tensor) -> Tensor:
        """What each positive is pushed down by those of higher quality, float64 [P]."""
        return sums.read_back_positives(weights, quality)


Pairs = PositiveVsNegative | AdaptivePairs
