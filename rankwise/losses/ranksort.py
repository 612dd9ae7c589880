"""RankSort: every positive above every negative, and the positives in order of their quality."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.distributed import all_reduce_mean
from rankwise.losses.base import Outcome, PositiveBoxes
from rankwise.losses.ranking import RankingLoss
from rankwise.pairsums import Method, RankingSpec, Scope, Step


class RankSortLoss(RankingLoss):
    """RankSort loss: ranks the positives above the negatives and sorts them among themselves by quality.

    With H(z) = clamp(z/2δ + 1/2, 0, 1), rank⁺(u) and rank⁻(u) the sums of H(x_v − p_u) over all positives (u itself
    counts H(0) = 1/2) and over the negatives, each positive u has

    - a ranking error rank⁻(u) / (rank⁺(u) + rank⁻(u)),
    - a sorting error: the mean of 1 − q_v over the positives v above it, weighted by H, less the same mean over only
      those of them with q_v ≥ q_u, which is what a perfect order would leave.

    The loss is the mean over the positives of both. The gradient is the identity update: a positive is pulled up by its
    errors; negatives are pushed down by the ranking error in shares of H, positives of lower quality by the sorting
    error in shares of H. The box loss is scaled, by a constant for the gradient, to the value of this loss over all
    processes; give it the weight 1, and weigh the boxes by their scores, as the paper does.

    Rank & Sort Loss for Object Detection and Instance Segmentation, Oksuz et al. 2021, https://arxiv.org/abs/2107.11669

    Args:
        delta: δ, half the width of the step's ramp.
        scope: Rank together all samples of this process ("batch"), of each image ("image") or of all processes
            ("world").
        method: "fast" is exact at linear cost, by the best engine there is; "triton", "numba" and "torch" name one;
            "dense" takes every pair by itself, the definition.
        check: Whether bad values raise an error that says where they are, which on a GPU waits for the device. If not,
            they make the loss NaN. None checks on a CPU only.
    """

    def __init__(
        self, delta: float = 0.5, scope: Scope = "batch", method: Method = "fast", check: bool | None = None
    ) -> None:
        super().__init__(RankingSpec("ranksort", Step(delta), scope=scope), method, check)

    def box_loss(self, boxes: PositiveBoxes, outcome: Outcome) -> Tensor:
        box = super().box_loss(boxes, outcome)
        ranking, mean = all_reduce_mean(torch.stack([outcome.loss.detach().to(box.dtype), box.detach()]))
        return box * (ranking / mean.clamp(min=1e-6))
