"""Focal loss: cross entropy that down-weights easy samples."""

from __future__ import annotations

from rankwise.losses.inputs import Samples
from rankwise.losses.samplewise import SamplewiseLoss, ValueAndGradient, focal_sum


class FocalLoss(SamplewiseLoss):
    """Focal loss, the usual classification loss of dense detectors: cross entropy that down-weights easy samples.

    Summed over all samples and divided by the number of positives; ignored rows do not count. With p = sigmoid(x):

    - positives: α · (1 − p)^γ · −log p
    - negatives: (1 − α) · p^γ · −log(1 − p)

    Focal Loss for Dense Object Detection, Lin et al. 2017, https://arxiv.org/abs/1708.02002

    Args:
        alpha: α, the weight of positives; negatives have 1 − α.
        gamma: γ, how strongly easy samples are down-weighted; 0 is weighted cross entropy.
    """

    needs_quality = False

    def __init__(self, alpha: float = 0.25, gamma: float = 2.0) -> None:
        super().__init__()
        if not 0 <= alpha <= 1 or gamma < 0:
            raise ValueError(f"alpha must be in [0, 1] and gamma at least 0, got {alpha} and {gamma}")
        self.alpha = alpha
        self.gamma = gamma

    def compute(self, samples: Samples) -> ValueAndGradient:
        return focal_sum(samples, self.gamma, 1 - self.alpha, 1.0, self.alpha, self.gamma)
