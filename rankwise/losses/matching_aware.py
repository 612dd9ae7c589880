"""Matching-aware loss: the target of a positive is a power of its quality."""

from __future__ import annotations

from rankwise.losses.inputs import Samples
from rankwise.losses.samplewise import SamplewiseLoss, ValueAndGradient, focal_sum


class MALoss(SamplewiseLoss):
    """Matching-aware loss of DEIM: varifocal loss in which positives with poor boxes keep their weight.

    Summed over all samples and divided by the number of positives; ignored rows do not count. With p = sigmoid(x):

    - positives: −(q^γ · log p + (1 − q^γ) · log(1 − p))
    - negatives: α · p^γ · −log(1 − p), where p^γ is a constant for the gradient

    DEIM: DETR with Improved Matching for Fast Convergence, Huang et al. 2025, https://arxiv.org/abs/2412.04234

    Args:
        gamma: γ, the exponent of the target and of the weight of negatives. DEIM uses 1.5.
        alpha: α, the weight of negatives; 1 in DEIM.
    """

    def __init__(self, gamma: float = 1.5, alpha: float = 1.0) -> None:
        super().__init__()
        if gamma < 0 or alpha < 0:
            raise ValueError(f"gamma and alpha must be at least 0, got {gamma} and {alpha}")
        self.gamma = gamma
        self.alpha = alpha

    def compute(self, samples: Samples) -> ValueAndGradient:
        target = samples.positive_quality.pow(self.gamma)
        return focal_sum(samples, self.gamma, self.alpha, target, constant_weight=True)
