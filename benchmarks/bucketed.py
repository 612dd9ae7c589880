"""The bucketed approximation of ranking losses, to compare the exact ones with it.

Bucketed Ranking-based Losses for Efficient Training of Object Detectors, Yavuz et al. 2024,
https://arxiv.org/abs/2407.14204. All negatives between two neighboring positives form a bucket, and each stands in the
pairs with the mean logit of its bucket. This is exact for a step without a ramp (δ = 0) only.

Choice: the paper sorts all logits; here each negative finds its bucket by bisection, with the same buckets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rankwise.losses.ranking import RankingLoss
from rankwise.pairsums import RankingSpec
from rankwise.pairsums.formula import FORMULAS, Over, Positives, Sums, values_of


class _Bucketed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, quality: Tensor, spec: RankingSpec) -> Tensor:
        values, classes = logits.detach().flatten(), logits.shape[1]
        rows = (labels < classes).nonzero().squeeze(1)
        where = rows * classes + labels[rows]
        p, q = values[where].double(), quality[rows].double()
        bucket = torch.bucketize(values, values[where].sort().values)
        negative = torch.ones_like(values, dtype=torch.double).index_fill_(0, where, 0)
        number = torch.bincount(bucket, negative, minlength=len(p) + 1)
        mean = torch.bincount(bucket, negative * values, minlength=len(p) + 1) / number.clamp(min=1)

        among = spec.distance.rank(p - p[:, None])  # [P, P]
        worse = among * (q < q[:, None])
        above = spec.distance.rank(mean - p[:, None])  # [P, buckets]
        rank = above @ number
        counted = torch.stack(values_of(spec, q))  # [K, P]
        lower = Sums(counted @ worse.T, worse.sum(1)) if spec.by_quality else None
        over = Over(Sums(rank, rank), counted @ among.T, lower, rank.new_zeros(()))
        terms = FORMULAS[spec.family](
            spec, Positives(p, q, len(p)), over, lambda weights, lower: weights @ (worse if lower else among)
        )
        gradient = (terms.weights @ above).to(values.dtype)[bucket]
        gradient[where] = terms.gradient.to(values.dtype)
        ctx.save_for_backward(gradient.view_as(logits))
        return terms.loss.to(values.dtype)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.saved_tensors[0] * upstream, None, None, None


def bucketed(loss: RankingLoss, logits: Tensor, labels: Tensor, quality: Tensor) -> Tensor:
    """A loss with a step as its distance, approximated; there must be at least one positive and no ignored row."""
    value: Tensor = _Bucketed.apply(logits, labels, quality, loss.spec)
    return value
