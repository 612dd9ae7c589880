"""IoU-aware binary cross entropy: the target of a positive mixes its score with its quality."""

from __future__ import annotations

from rankwise.losses.inputs import Samples
from rankwise.losses.samplewise import SamplewiseLoss, ValueAndGradient, focal_sum

#: Minimum target of a positive, as published.
LEAST_TARGET = 0.01


class IABCELoss(SamplewiseLoss):
    """IoU-aware binary cross entropy of Align-DETR, the default of LW-DETR and RF-DETR.

    Summed over all samples and divided by the number of positives; ignored rows do not count. With p = sigmoid(x) and
    the target t = max(p^α · q^(1 − α), 0.01), a constant for the gradient:

    - positives: −(t · log p + (1 − t) · log(1 − p))
    - negatives: p^γ · −log(1 − p)

    Align-DETR: Enhancing End-to-end Object Detection with Aligned Loss, Cai et al. 2023,
    https://arxiv.org/abs/2304.07527

    Choices: the rank weights of Align-DETR's many-to-one matching are left out, as in LW-DETR and RF-DETR.

    Args:
        alpha: α, the weight of the score in the target.
        gamma: γ, how strongly easy negatives are down-weighted.
    """

    def __init__(self, alpha: float = 0.25, gamma: float = 2.0) -> None:
        super().__init__()
        if not 0 <= alpha <= 1 or gamma < 0:
            raise ValueError(f"alpha must be in [0, 1] and gamma at least 0, got {alpha} and {gamma}")
        self.alpha = alpha
        self.gamma = gamma

    def compute(self, samples: Samples) -> ValueAndGradient:
        target = samples.positives.sigmoid().pow(self.alpha) * samples.positive_quality.pow(1 - self.alpha)
        return focal_sum(samples, self.gamma, 1.0, target.clamp(min=LEAST_TARGET))
