"""`StepCells` on the CPU, with sums by quality in P log P steps."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.pairsums import compiled_by_quality
from rankwise.pairsums.distances import Step
from rankwise.pairsums.samples import Sums
from rankwise.pairsums.step import StepCells


class CompiledStepCells(StepCells):
    """`StepCells` without floors.

    Args:
        positives: Logits, float64 [P], at least one.
        distance: The step.
    """

    def __init__(self, positives: Tensor, distance: Step) -> None:
        super().__init__(positives, distance)
        self.delta = distance.delta

    def over_lower(self, quality: Tensor, values: Tensor) -> Sums:
        """For each positive u, the sums over the positives v with lower quality, each counting ``values`` times."""
        ordered, order = quality.sort()
        before = torch.nn.functional.pad(values[order].cumsum(0), (1, 0))
        rank = compiled_by_quality.over_lower(self.positives, quality, values[:, None], self.delta)[:, 0]
        return Sums(before[torch.searchsorted(ordered, quality)], rank, rank)

    def over_higher(self, quality: Tensor, weights: Tensor) -> Tensor:
        """For each positive v, the sum of weight · rank over the positives u with higher quality, [P]."""
        return compiled_by_quality.over_higher(self.positives, quality, weights, self.delta)
