"""Position-supervised loss: the target of a positive is its quality relative to the best of its image."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.losses.inputs import Samples
from rankwise.losses.samplewise import SamplewiseLoss, ValueAndGradient, focal_sum


class PositionSupervisedLoss(SamplewiseLoss):
    """Position-supervised loss of Stable-DINO: focal loss whose target depends only on the box.

    Summed over all samples and divided by the number of positives; ignored rows do not count. With p = sigmoid(x) and s
    = q^power over the largest q^power of the same image:

    - positives: α · |s − p|^γ · −(s · log p + (1 − s) · log(1 − p))
    - negatives: (1 − α) · p^γ · −log(1 − p)

    Without the argument ``image``, the whole batch counts as one image.

    Detection Transformer with Stable Matching, Liu et al. 2023, https://arxiv.org/abs/2304.04742

    Choices: the exponent is 1, as in LW-DETR and RF-DETR; the code of Stable-DINO uses 2.

    Args:
        alpha: α, the weight of positives; negatives have 1 − α.
        gamma: γ, how strongly samples close to their target are down-weighted.
        power: The exponent of the quality in the target.
    """

    def __init__(self, alpha: float = 0.25, gamma: float = 2.0, power: float = 1.0) -> None:
        super().__init__()
        if not 0 <= alpha <= 1 or gamma < 0 or power <= 0:
            raise ValueError(
                f"alpha must be in [0, 1], gamma at least 0 and power above 0, got {alpha}, {gamma} and {power}"
            )
        self.alpha = alpha
        self.gamma = gamma
        self.power = power

    def reads_image(self, image: Tensor | None) -> bool:
        return image is not None

    def compute(self, samples: Samples) -> ValueAndGradient:
        target = _over_best(samples.positive_quality.pow(self.power), samples)
        return focal_sum(samples, self.gamma, 1 - self.alpha, target, self.alpha, self.gamma)


def _over_best(values: Tensor, samples: Samples) -> Tensor:
    """The value of each positive divided by the largest of its image; 0 if that is 0."""
    if not len(values):
        return values
    if samples.image is None:
        best = values.amax()
    else:
        image, order = samples.image[samples.rows].sort()
        group = torch.empty_like(order).scatter_(0, order, image.diff(prepend=image[:1]).ne(0).cumsum(0))
        best = torch.zeros_like(values).scatter_reduce_(0, group, values, "amax")[group]
    return torch.where(best == 0, 0.0, values / best.clamp(min=torch.finfo(values.dtype).tiny))
