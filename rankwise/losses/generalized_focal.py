"""Generalized focal loss: quality focal loss for the scores, distribution focal loss for the boxes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rankwise.losses.base import Outcome, PositiveBoxes
from rankwise.losses.quality_focal import QualityFocalLoss


class GeneralizedFocalLoss(QualityFocalLoss):
    """Generalized focal loss: ``QualityFocalLoss`` for the scores, with distribution focal loss for the boxes.

    The head must predict the distance of each side as a distribution over bins (``head.bins``). The box loss then adds,
    for each side, the cross entropy of that distribution with the true distance y, split between the neighboring bins i
    and i + 1: (i + 1 − y) · −log S_i + (y − i) · −log S_(i+1). It is averaged over the four sides, with the weights of
    the boxes.

    Generalized Focal Loss, Li et al. 2020, https://arxiv.org/abs/2006.04388

    Args:
        beta: β, how strongly samples close to their target are down-weighted.
        distribution_weight: Weight of the distribution focal loss relative to the box loss. The paper uses 1/4 with a
            box loss weight of 2, which is 1/8.
    """

    needs_distributions = True

    def __init__(self, beta: float = 2.0, distribution_weight: float = 0.125) -> None:
        super().__init__(beta)
        if distribution_weight < 0:
            raise ValueError(f"distribution_weight must be at least 0, got {distribution_weight}")
        self.distribution_weight = distribution_weight

    def box_loss(self, boxes: PositiveBoxes, outcome: Outcome) -> Tensor:
        if boxes.distribution is None or boxes.distances is None:
            raise ValueError(
                "GeneralizedFocalLoss needs a head that predicts distances as distributions: set head.bins (16 in "
                "the paper) and head.coding to ltrb, or use QualityFocalLoss, which is the same without them"
            )
        errors = distribution_focal(boxes.distribution, boxes.distances).mean(1)  # [P]
        both = replace(boxes, errors=boxes.errors + self.distribution_weight * errors)
        return super().box_loss(both, outcome)


def distribution_focal(distribution: Tensor, distances: Tensor) -> Tensor:
    """Cross entropy of distributions over bins with distances that lie between two bins.

    Args:
        distribution: Logits over the bins 0 to n, [..., n + 1].
        distances: True distances in bins, [...]; those outside 0 to n are clamped.
    """
    log_share = distribution.float().log_softmax(-1)
    last = distribution.shape[-1] - 1
    distance = distances.detach().to(log_share.dtype).clamp(0, last)
    lower = distance.floor().clamp(max=last - 1).long()
    share = distance - lower  # weight of the upper bin
    below = log_share.gather(-1, lower.unsqueeze(-1)).squeeze(-1)
    above = log_share.gather(-1, lower.unsqueeze(-1) + 1).squeeze(-1)
    return torch.lerp(-below, -above, share)
