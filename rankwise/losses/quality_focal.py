"""Quality focal loss: the target of a positive is the IoU of its box."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from rankwise.losses.base import Outcome
from rankwise.losses.inputs import Samples
from rankwise.losses.samplewise import SamplewiseLoss, focal_sum


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

    def of(self, samples: Samples) -> Outcome:
        target = samples.positive_quality

        def positive(x: Tensor) -> Tensor:
            distance = (target - x.sigmoid()).abs()
            # At distance 0, a power below 1 has no derivative; samples at their target get no gradient.
            weight = distance.where(distance > 0, 1.0).pow(self.beta)
            weight = weight.where(distance > 0, float(self.beta == 0))
            return weight * F.binary_cross_entropy_with_logits(x, target, reduction="none")

        loss, parts = focal_sum(samples, self.beta, 1.0, positive)
        return Outcome(loss, parts)
