"""Correlation loss, added to another loss: scores of positives should follow the quality of their boxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from rankwise.eager import eager
from rankwise.losses.base import Loss, Outcome, PositiveBoxes, check_loss
from rankwise.losses.focal import FocalLoss
from rankwise.losses.inputs import Samples, check_choice
from rankwise.losses.samplewise import SamplewiseLoss, ValueAndGradient, with_gradient

#: Values within a smaller range count as equal, because their correlation would be that of rounding errors.
SMALLEST_SPREAD = 1e-9

Coefficient = Literal["spearman", "pearson", "concordance"]


class CorrelationLoss(Loss):
    """Any loss plus ``weight`` · (1 − ρ): ρ correlates the scores sigmoid(x) of the positives with their quality.

    ρ is one of

    - "pearson": the covariance over the product of both standard deviations;
    - "concordance": 2 · covariance over the sum of both variances and the squared difference of the means;
    - "spearman": Pearson's coefficient of the ranks. To have a gradient, ranks are soft (Blondel et al. 2020,
      https://arxiv.org/abs/2002.08871): the values divided by ``softness``, projected onto the permutahedron.

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
        self.weight = weight
        self.addition = _Addition(coefficient, softness)

    def outcome(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Outcome:
        return self.outcome_at(None, logits, labels, quality, image)

    def outcome_at(
        self,
        rows: Tensor | None,
        logits: Tensor,
        labels: Tensor,
        quality: Tensor | None = None,
        image: Tensor | None = None,
    ) -> Outcome:
        given = rows, logits, labels, quality, image
        return self._added(self.loss.outcome_at(*given), self.addition.outcome_at(*given))

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
        base = self.loss.dense_outcome(logits, targets, mask=mask, weight=weight, normalizer=normalizer)
        return self._added(base, self.addition.dense_outcome(logits, targets, mask=mask))

    def _added(self, base: Outcome, addition: Outcome) -> Outcome:
        parts = {**base.parts, "correlation": addition.parts["correlation"]}
        return replace(base, loss=base.loss + self.weight * addition.loss, parts=parts)

    def box_loss(self, boxes: PositiveBoxes, outcome: Outcome) -> Tensor:
        return self.loss.box_loss(boxes, outcome)


class _Addition(SamplewiseLoss):
    """1 − ρ, or 0 if ρ is undefined."""

    takes_weights = False
    needs_sync = True  # ranks are computed on the host
    log = ("correlation",)

    def __init__(self, coefficient: Coefficient, softness: float) -> None:
        super().__init__()
        self.coefficient = coefficient
        self.softness = softness

    def compute(self, samples: Samples) -> ValueAndGradient:
        scores = samples.positives.double().sigmoid()
        coefficient, slope = self._correlated(scores, samples.positive_quality.double())
        gradient = torch.zeros_like(samples.values, memory_format=torch.contiguous_format)
        samples.write(gradient, -slope * scores * (1 - scores))
        return with_gradient(samples, 1 - coefficient, gradient, coefficient)

    def _correlated(self, scores: Tensor, quality: Tensor) -> tuple[Tensor, Tensor]:
        """ρ and its derivatives with respect to the scores; 1 and zeros if ρ is undefined."""
        if len(scores) < 2 or _constant(scores) or _constant(quality):
            return scores.new_ones(()), torch.zeros_like(scores)
        if self.coefficient == "spearman":
            ranks, adjoint = soft_rank(scores, self.softness)
            coefficient, slope = _pearson(ranks, soft_rank(quality, self.softness)[0])
            return coefficient, adjoint(slope)
        return (_concordance if self.coefficient == "concordance" else _pearson)(scores, quality)


def _constant(values: Tensor) -> bool:
    low, high = values.aminmax()
    return bool(high - low < SMALLEST_SPREAD)


def _pearson(scores: Tensor, quality: Tensor) -> tuple[Tensor, Tensor]:
    x, y = scores - scores.mean(), quality - quality.mean()
    x, y, length = x / x.norm(), y / y.norm(), x.norm()
    coefficient = (x * y).sum()
    return coefficient, (y - coefficient * x) / length


def _concordance(scores: Tensor, quality: Tensor) -> tuple[Tensor, Tensor]:
    x, y, shift = scores - scores.mean(), quality - quality.mean(), scores.mean() - quality.mean()
    # As published, with the variances of a sample: divided by one less than the number of positives.
    freedom = len(scores) - 1
    whole = x.square().sum() + y.square().sum() + shift.square() * freedom
    coefficient = 2 * (x * y).sum() / whole
    return coefficient, 2 * (y - coefficient * (x + shift * freedom / len(scores))) / whole


def soft_rank(values: Tensor, softness: float) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Ranks from 1 (the lowest) to the number of values, [P] to [P], soft where values are close, and their adjoint.

    The projection onto the permutahedron by isotonic regression; its Jacobian subtracts the mean of each pool.

    Args:
        values: Float [P].
        softness: Values that differ by less than this have ranks that differ by less than 1. A small softness gives
            ranks close to the true ones.

    Returns:
        The ranks, and a function from gradients of the ranks to gradients of the values.
    """
    from scipy.optimize import isotonic_regression  # imported here, so that the losses load only torch

    ordered, order = (values / softness).sort()
    exact = torch.arange(1, len(values) + 1, device=values.device, dtype=values.dtype)
    fit = isotonic_regression((ordered - exact).cpu().numpy())
    pooled = torch.from_numpy(fit.x).to(values)
    sizes = torch.from_numpy(fit.blocks).to(values.device).diff()
    pool = torch.arange(len(sizes), device=values.device).repeat_interleave(sizes)

    def adjoint(upstream: Tensor) -> Tensor:
        rising = upstream[order]
        means = rising.new_zeros(len(sizes)).index_add_(0, pool, rising) / sizes
        return torch.empty_like(upstream).scatter_(0, order, rising - means[pool]) / softness

    return torch.empty_like(values).scatter_(0, order, ordered - pooled), adjoint
