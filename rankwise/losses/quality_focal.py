"""Quality focal loss: the target of a positive is the IoU of its box."""

from __future__ import annotations

from rankwise.losses.inputs import Samples
from rankwise.losses.samplewise import SamplewiseLoss, ValueAndGradient, focal_sum


class QualityFocalLoss(SamplewiseLoss):
    """Quality focal loss: focal loss whose target for a positive is the quality q of its box instead of 1.

    Summed over all samples and divided by the number of positives; ignored rows do not count. With p = sigmoid(x) and
    the target y (q for positives, 0 for negatives) each sample adds

        |y − p|^β · −(y · log p + (1 − y) · log(1 − p))

    Generalized Focal Loss, Li et al. 2020, https://arxiv.org/abs/2006.04388

    Args:
        beta: β, how strongly samples close to their target are down-weighted.
    """

    def __init__(self, beta: float = 2.0) -> None:
        super().__init__()
        if beta < 0:
            raise ValueError(f"beta must be at least 0, got {beta}")
        self.beta = beta

    def compute(self, samples: Samples) -> ValueAndGradient:
        return focal_sum(samples, self.beta, 1.0, samples.positive_quality, 1.0, self.beta)
