"""RankSort: positives above negatives, and positives in order of quality."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.distributed import all_reduce_mean
from rankwise.losses.base import Outcome, PositiveBoxes
from rankwise.losses.ranking import RankingLoss
from rankwise.pairsums import Method, RankingSpec, Scope, Step


class RankSortLoss(RankingLoss):
    """RankSort loss: ranks positives above negatives and sorts positives by quality.

    With H(z) = clamp(z/2δ + 1/2, 0, 1), rank⁺(u) and rank⁻(u) the sums of H(x_v − p_u) over all positives (u itself
    counts H(0) = 1/2) and over the negatives, each positive u has

    - a ranking error rank⁻(u) / (rank⁺(u) + rank⁻(u)),
    - a sorting error: the mean of 1 − q_v over the positives v above it, weighted by H, minus the same mean over only
      those with q_v ≥ q_u, the value for a perfect order.

    The loss is the mean over the positives of both. The gradient is the identity update: a positive is pulled up by its
    errors, negatives are pushed down by the ranking error and positives of lower quality by the sorting error, both in
    proportion to H. The box loss is scaled to the value of this loss over all processes, by a factor that is constant
    for the gradient. Use a weight of 1 and weight the boxes by score, as in the paper.

    Rank & Sort Loss for Object Detection and Instance Segmentation, Oksuz et al. 2021, https://arxiv.org/abs/2107.11669

    Args:
        delta: δ, half the width of the ramp.
        scope: The samples ranked together: those of this process ("batch"), of each image ("image"), of each class
            ("class") or of all processes ("world").
        method: "fast" is exact at linear cost and uses the best available engine; "triton", "numba" and "torch" select
            one; "dense" computes every pair, as in the definition.
        check: Whether invalid values raise an error that says where they are, which waits for the device on a GPU.
            Otherwise they make the loss NaN. None checks only on a CPU.
    """

    def __init__(
        self, delta: float = 0.5, scope: Scope = "batch", method: Method = "fast", check: bool | None = None
    ) -> None:
        super().__init__(RankingSpec("ranksort", Step(delta), scope=scope), method, check)

    def box_loss(self, boxes: PositiveBoxes, outcome: Outcome) -> Tensor:
        box = super().box_loss(boxes, outcome)
        ranking, mean = all_reduce_mean(torch.stack([outcome.loss.detach().to(box.dtype), box.detach()]))
        return box * (ranking / mean.clamp(min=1e-6))
