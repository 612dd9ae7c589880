"""Sums of the step over positives in order of quality: what sorting losses need several of.

On a CPU they are compiled and take P log P steps; elsewhere they are read from the common sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.pairsums import passes
from rankwise.pairsums.base import PairSums
from rankwise.pairsums.fast import Method


class StepByQuality:
    """Sums of H over the pairs of positives of different quality.

    Args:
        sums: Sums over the pairs of the same positives, with a step as distance.
        positives: Their logits, [P].
        quality: Their qualities, [P].
        delta: Half the width of the step's ramp.
        method: "dense" takes them from ``sums``; "fast" may have a faster way.
    """

    def __init__(self, sums: PairSums, positives: Tensor, quality: Tensor, delta: float, method: Method) -> None:
        self.sums = sums
        self.positives = positives.double()
        self.quality = quality
        self.delta = delta
        compiled = passes.compiled_for(positives) if method == "fast" else None
        self.compiled = compiled and compiled.compiled_by_quality

    def over_lower(self, values: Tensor) -> Tensor:
        """For each positive u, Σ_v values_v · H(p_v - p_u) over the positives v with lower quality, [K, P].

        Args:
            values: How much each v counts, several sums at once, float64 [K, P].
        """
        if self.compiled is not None:
            result: Tensor = self.compiled.over_lower(self.positives, self.quality, values.T, self.delta).T
            return result
        return torch.stack([self.sums.over_positives(self.quality, value).rank for value in values])

    def read_back(self, weights: Tensor) -> Tensor:
        """For each positive v, Σ_u weights_u · H(p_v - p_u) over the positives u with higher quality, [P]."""
        if self.compiled is not None:
            result: Tensor = self.compiled.over_higher(self.positives, self.quality, weights, self.delta)
            return result
        return self.sums.read_back_positives(weights, self.quality)
