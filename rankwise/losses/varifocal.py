"""Varifocal loss: positives are weighted by quality, negatives by their error."""

from __future__ import annotations

from rankwise.losses.inputs import Samples
from rankwise.losses.samplewise import SamplewiseLoss, ValueAndGradient, focal_sum


class VarifocalLoss(SamplewiseLoss):
    """Varifocal loss: the quality q of its box is both target and weight of a positive; easy negatives count less.

    Summed over all samples and divided by the number of positives; ignored rows do not count. With p = sigmoid(x):

    - positives: q · −(q · log p + (1 − q) · log(1 − p))
    - negatives: α · p^γ · −log(1 − p)

    VarifocalNet, Zhang et al. 2021, https://arxiv.org/abs/2008.13367

    Args:
        alpha: α, the weight of negatives.
        gamma: γ, how strongly easy negatives are down-weighted.
    """

    def __init__(self, alpha: float = 0.75, gamma: float = 2.0) -> None:
        super().__init__()
        if alpha < 0 or gamma < 0:
            raise ValueError(f"alpha and gamma must be at least 0, got {alpha} and {gamma}")
        self.alpha = alpha
        self.gamma = gamma

    def compute(self, samples: Samples) -> ValueAndGradient:
        quality = samples.positive_quality
        return focal_sum(samples, self.gamma, self.alpha, quality, quality)
