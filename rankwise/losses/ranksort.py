"""RankSort: every positive above every negative, and the positives in order of their quality."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from rankwise.distributed import all_reduce_mean
from rankwise.losses.base import Loss, Outcome, PositiveBoxes
from rankwise.losses.groups import Scope, make_groups
from rankwise.losses.inputs import check_choice
from rankwise.pairsums import Method, PairSums, Step, eager, error_driven, pair_sums
from rankwise.pairsums.by_quality import StepByQuality

#: Positives with fewer missorted ones above them have no sorting gradient: there is nothing to share it among.
FEW = 1e-9


class RankSortLoss(Loss):
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
        method: "fast" is exact at linear cost; "dense" takes every pair by itself, the definition.
    """

    def __init__(self, delta: float = 0.5, scope: Scope = "batch", method: Method = "fast") -> None:
        super().__init__()
        check_choice("scope", scope, get_args(Scope))
        check_choice("method", method, get_args(Method))
        self.distance = Step(delta)
        self.scope: Scope = scope
        self.method: Method = method

    @eager
    def outcome(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Outcome:
        if quality is None:
            raise ValueError("quality must be given: float [A], the IoU of each positive's predicted box")
        with torch.no_grad():
            groups = make_groups(logits, labels, quality, image, self.scope)
            number = sum(group.positives.numel() for group in groups)
            ranking = sorting = torch.zeros((), dtype=torch.float64, device=logits.device)
            pushed, gradients = [], [ranking[None][:0]]
            for group in groups:
                sums = pair_sums(group.negatives, group.positives, self.distance, method=self.method)
                above = sums.over_negatives().rank
                among = sums.over_positives().rank
                order = StepByQuality(sums, group.positives, group.quality, self.distance.delta, self.method)
                sorting_error, gradient = _sorting(sums, order, among)
                ranking = ranking + (above / (among + above)).sum() / number
                sorting = sorting + sorting_error.sum() / number
                pushed.append((sums, 1 / (among + above) / number))
                gradients.append((gradient - above / (among + above)) / number)
            place = torch.cat([labels.new_zeros(0, dtype=torch.int64), *(group.place for group in groups)])
        loss = error_driven(logits, ranking + sorting, pushed, place, torch.cat(gradients))
        parts = {"positives": torch.full_like(ranking, number)}
        parts |= {"ranking": ranking.to(loss.dtype), "sorting": sorting.to(loss.dtype)}
        return Outcome(loss, parts)

    def box_loss(self, boxes: PositiveBoxes, outcome: Outcome) -> Tensor:
        box = super().box_loss(boxes, outcome)
        ranking, mean = all_reduce_mean(torch.stack([outcome.loss.detach().to(box.dtype), box.detach()]))
        return box * (ranking / mean.clamp(min=1e-6))


def _sorting(sums: PairSums, order: StepByQuality, among: Tensor) -> tuple[Tensor, Tensor]:
    """Each positive's sorting error, and the gradient of all positives by them, [P].

    Args:
        sums: Sums over pairs.
        order: Sums over pairs of positives of different quality.
        among: Each positive's rank among the positives, [P].
    """
    lack = 1 - order.quality
    current = sums.over_positives(values=lack).rank
    worse, of_worse = order.over_lower(torch.stack([torch.ones_like(lack), lack]))
    # current/among − (current − of_worse)/(among − worse), written so that nothing cancels
    error = (of_worse - worse * current / among) / (among - worse)
    share = torch.where(worse > FEW, error / worse.clamp(min=FEW), 0.0)
    return error, order.read_back(share) - share * worse
