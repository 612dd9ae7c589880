"""Pair selections A_u: which samples a positive is ranked against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rankwise.pairsums import PairSums, Sums


class Pairs(ABC):
    """A choice of pairs: what a positive is ranked against."""

    needs_quality: ClassVar[bool]

    @abstractmethod
    def among_positives(self, sums: PairSums, quality: Tensor) -> Sums:
        """The sums over each positive's pairs with other positives."""

    @abstractmethod
    def read_back(self, sums: PairSums, weights: Tensor, quality: Tensor) -> Tensor:
        """What each positive is pushed down by as the lower half of a pair, float64 [P]."""


@dataclass(frozen=True)
class PositiveVsNegative(Pairs):
    """Every positive against every negative: A_u = N."""

    needs_quality: ClassVar[bool] = False

    def among_positives(self, sums: PairSums, quality: Tensor) -> Sums:
        """The sums over each positive's pairs with other positives: there are none."""
        return Sums(*torch.zeros(3, quality.numel(), dtype=torch.float64, device=quality.device))

    def read_back(self, sums: PairSums, weights: Tensor, quality: Tensor) -> Tensor:
        """What each positive is pushed down by as the lower half of a pair: nothing."""
        return torch.zeros_like(weights)


@dataclass(frozen=True)
class AdaptivePairs(Pairs):
    """Also against every positive of strictly lower quality (ARPS, Algorithm 1): A_u = N ∪ {v ∈ P : q_v < q_u}."""

    needs_quality: ClassVar[bool] = True

    def among_positives(self, sums: PairSums, quality: Tensor) -> Sums:
        """The sums over each positive's pairs with positives of lower quality."""
        return sums.over_positives(quality)

    def read_back(self, sums: PairSums, weights: Tensor, quality: Tensor) -> Tensor:
        """What each positive is pushed down by those of higher quality, float64 [P]."""
        return sums.read_back_positives(weights, quality)
