"""The moving average of the weights."""

from __future__ import annotations

from copy import deepcopy

import torch

from rankwise.models import Detector


class MovingAverage:
    """A copy of a detector, ``module``, whose weights follow those of the original slowly.

    The decay rises from 0 as 1 - step^(-2/3), so that random initial weights are forgotten early. Statistics of batch
    norms are averaged, too. The tensors of the detector must stay the same objects.
    """

    def __init__(self, detector: Detector, decay: float) -> None:
        self.decay = decay
        self.module = deepcopy(detector).eval()
        # Collected once: state_dict() takes longer than the arithmetic for a small detector.
        pairs = list(zip(self.module.state_dict().values(), detector.state_dict().values(), strict=True))
        self._floats = [pair for pair in pairs if pair[0].is_floating_point()]
        self._counts = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves the average towards the weights; ``step`` is the number of steps before this one."""
        decay = min(self.decay, 1 - max(1, step) ** (-2 / 3))
        averages, values = map(list, zip(*self._floats, strict=True))
        torch._foreach_lerp_(averages, values, 1 - decay)
        for average, value in self._counts:
            average.copy_(value)
