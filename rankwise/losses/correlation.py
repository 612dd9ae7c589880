"""Correlation loss, added to another loss: scores of positives should follow the quality of their boxes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankwise.eager import eager
from rankwise.losses.base import Loss, Outcome, PositiveBoxes, check_loss
from rankwise.losses.dense import read_dense
from rankwise.losses.focal import FocalLoss
from rankwise.losses.inputs import check_choice, read_samples

#: Values that differ by less count as equal, because their correlation would be that of rounding errors.
ROUNDING = 1e-9

Coefficient = Literal["spearman", "pearson", "concordance"]


class CorrelationLoss(Loss):
    """Any loss plus ``weight`` · (1 − ρ): ρ correlates the scores sigmoid(x) of the positives with their quality.

    ρ is one of

    - "pearson": covariance over the product of both deviations;
    - "concordance": 2 · covariance over both variances plus the squared difference of the means;
    - "spearman": Pearson's coefficient of the ranks. To have a gradient, ranks are soft (Blondel et al. 2020,
      https://arxiv.org/abs/2002.08871): the projection of the values divided by ``softness`` onto all orders.

    With fewer than two positives, or if all scores or all qualities are equal, the added term is 0.

    Correlation Loss: Enforcing Correlation between Classification and Localization, Kahraman et al. 2023,
    https://arxiv.org/abs/2301.01019

    Choices: the published code uses a softness of 1. Scores and qualities differ by less than 1, so every soft rank is
        then linear in its value and Spearman's coefficient equals Pearson's. Here the softness is 0.01, close to true
        ranks. The correlation is over the positives of this process, whatever the scope of the other loss.

    Args:
        loss: The loss it is added to, by default focal loss. Its box loss is kept.
        coefficient: "spearman", "pearson" or "concordance".
        weight: Weight of the added term. The paper uses 0.1 to 0.4.
        softness: Softness of the ranks, only for "spearman".
    """

    def __init__(
        self,
        loss: Loss | None = None,
        coefficient: Coefficient = "spearman",
        weight: float = 0.2,
        softness: float = 0.01,
    ) -> None:
        super().__init__()
        check_choice("coefficient", coefficient, get_args(Coefficient))
        if weight < 0 or softness <= 0:
            raise ValueError(f"weight must be at least 0 and softness above 0, got {weight} and {softness}")
        self.loss = FocalLoss() if loss is None else check_loss(loss)
        self.needs_distributions = self.loss.needs_distributions
        self.coefficient = coefficient
        self.weight = weight
        self.softness = softness

    @eager
    def outcome(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Outcome:
        samples = read_samples(logits, labels, quality, needs_quality=True, finite=False)
        base = self.loss.outcome(logits, labels, quality, image)
        return self._added(base, samples.logits[samples.rows, samples.classes], samples.positive_quality)

    @eager
    def dense_outcome(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        mask: Tensor | None = None,
        weight: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Outcome:
        read = read_dense(logits, targets, mask, weight, normalizer)
        base = self.loss.dense_outcome(logits, targets, mask=mask, weight=weight, normalizer=normalizer)
        return self._added(base, read.logits[read.rows, read.classes], read.quality)

    def _added(self, base: Outcome, positives: Tensor, quality: Tensor) -> Outcome:
        """The outcome of the other loss with the correlation of its positives [P] added."""
        lack = self._lack(positives.double().sigmoid(), quality.double()).to(base.loss.dtype)
        parts = {**base.parts, "correlation": (1 - lack).detach()}
        return replace(base, loss=base.loss + self.weight * lack, parts=parts)

    def box_loss(self, boxes: PositiveBoxes, outcome: Outcome) -> Tensor:
        return self.loss.box_loss(boxes, outcome)

    def _lack(self, scores: Tensor, quality: Tensor) -> Tensor:
        """1 − ρ, or 0 if ρ is undefined."""
        if len(scores) < 2 or _constant(scores) or _constant(quality):
            return scores.sum() * 0
        if self.coefficient == "spearman":
            scores, quality = soft_rank(scores, self.softness), soft_rank(quality, self.softness)
        x, y = scores - scores.mean(), quality - quality.mean()
        if self.coefficient == "concordance":
            # As published, with sample variances: divided by the number of positives minus 1.
            shift = (scores.mean() - quality.mean()).square() * (len(scores) - 1)
            return 1 - 2 * (x * y).sum() / (x.square().sum() + y.square().sum() + shift)
        return 1 - (x * y).sum() / (x.norm() * y.norm())


def _constant(values: Tensor) -> bool:
    low, high = values.detach().aminmax()
    return bool(high - low < ROUNDING)


class _SoftRank(torch.autograd.Function):
    """Projection onto the permutahedron by isotonic regression; its Jacobian subtracts the mean of each pool."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, values: Tensor, softness: float) -> Tensor:
        ordered, order = (values.detach() / softness).sort()
        exact = torch.arange(1, len(values) + 1, device=values.device, dtype=values.dtype)
        from scipy.optimize import isotonic_regression  # importing the losses should only load torch

        fit = isotonic_regression((ordered - exact).cpu().numpy())
        pooled = torch.from_numpy(fit.x).to(values)
        sizes = torch.from_numpy(fit.blocks).to(values.device).diff()
        pool = torch.arange(len(sizes), device=values.device).repeat_interleave(sizes)
        ctx.save_for_backward(order, pool, sizes)
        ctx.softness = softness  # type: ignore[attr-defined]
        return torch.empty_like(values).scatter_(0, order, ordered - pooled)

    @staticmethod
    @once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, upstream: Tensor) -> tuple[Tensor, None]:
        order, pool, sizes = ctx.saved_tensors  # type: ignore[attr-defined]
        ordered = upstream[order]
        means = ordered.new_zeros(len(sizes)).index_add_(0, pool, ordered) / sizes
        slope = torch.empty_like(upstream).scatter_(0, order, ordered - means[pool])
        return slope / ctx.softness, None  # type: ignore[attr-defined]


def soft_rank(values: Tensor, softness: float) -> Tensor:
    """Differentiable ranks from 1 (the lowest) to the number of values, [P] to [P]; soft for similar values.

    Args:
        values: Float [P].
        softness: Values that differ by less have ranks that differ by less than 1; smaller values are closer to true
            ranks.
    """
    ranks: Tensor = _SoftRank.apply(values, softness)
    return ranks
