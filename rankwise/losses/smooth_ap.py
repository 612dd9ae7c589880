"""Smooth-AP: average precision with sigmoids for its steps, differentiated through the ranks."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from rankwise.losses.inputs import Samples, check_choice
from rankwise.losses.samplewise import SamplewiseLoss, ValueAndGradient, with_gradient

#: Beyond this, the sigmoid is 0 or 1 in float64 and its derivative is below 1e-26.
SATURATED = 60.0

#: Pairs per block: 4 million take 32 MB.
PAIRS = 1 << 22

Method = Literal["fast", "dense"]


class SmoothAPLoss(SamplewiseLoss):
    """Smooth-AP: one minus the mean over positives of rank⁺/rank, with ranks as sums of S(z) = sigmoid(z/τ).

    rank⁺(u) is 1 plus the sum of S(f_v − f_u) over the other positives, rank(u) is rank⁺(u) plus the sum over the
    negatives. The gradient is the true one, through both ranks. Without positives the loss is 0.

    Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval, Brown et al. 2020,
    https://arxiv.org/abs/2007.12163

    Choices: f = sigmoid(x), because the published code ranks similarities, which are bounded like scores, and τ is
    chosen for that range. All samples of this process are ranked together. Pairs so far apart that S is 0 or 1 in
    float64 are counted; the others are computed one by one, so a batch with many similar scores costs positives
    times negatives. It is included for comparison.

    Args:
        temperature: τ, the softness of a step.
        method: "fast" counts the pairs that are far apart; "dense" computes every pair, as in the definition.
    """

    needs_quality = False
    takes_weights = False
    log = ("precision",)

    def __init__(self, temperature: float = 0.01, method: Method = "fast") -> None:
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        check_choice("method", method, get_args(Method))
        self.temperature = temperature
        self.method: Method = method

    @property
    def needs_sync(self) -> bool:
        return True  # for the pairs of positives

    def compute(self, samples: Samples) -> ValueAndGradient:
        with torch.no_grad():
            scores = samples.logits.detach().double().sigmoid()
            negative = torch.ones_like(scores, dtype=torch.bool)
            negative[samples.rows, samples.classes] = False
            if samples.ignored is not None:
                negative &= ~samples.ignored
            positives, negatives = scores[samples.rows, samples.classes], scores[negative]
            number = max(1, len(positives))
            above, slope_above = self._sums(positives, negatives)
            among, slope_among = self._sums(positives, positives)
            among = among + 0.5  # u itself contributes 1/2 to the sum, but counts 1
            rank = among + above
            loss = (1 - among / rank).sum() / number
            # dL/d(rank⁺) = -above / rank², and the derivative by the sum over the negatives is rank⁺ / rank².
            push, pull = among / rank.square() / number, -above / rank.square() / number
            gradient = torch.zeros_like(scores)
            gradient[negative] = self._adjoint(positives, negatives, push)
            own = self._adjoint(positives, positives, pull) - push * slope_above - pull * slope_among
            gradient[samples.rows, samples.classes] = own
            gradient *= scores * (1 - scores)
            precision = 1 - loss if len(positives) else loss
        return with_gradient(samples, loss, gradient.to(samples.logits.dtype), precision)

    def _sums(self, positives: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of S and of its slope over the others, per positive, float64 [P]."""
        ordered, order, first, last = self._near(positives, others)
        total, slope = (len(others) - last).double(), torch.zeros_like(positives)
        for some in self._blocks(last - first):
            u, v = _pairs(some, first, last)
            z = (ordered[v] - positives[u]) / self.temperature
            total.index_add_(0, u, z.sigmoid())
            slope.index_add_(0, u, self._slope(z, u, order[v], others is positives))
        return total, slope

    def _adjoint(self, positives: Tensor, others: Tensor, weights: Tensor) -> Tensor:
        """The sum of weights · slope over the positives, for each of the others, float64."""
        ordered, order, first, last = self._near(positives, others)
        result = torch.zeros_like(others)
        for some in self._blocks(last - first):
            u, v = _pairs(some, first, last)
            z = (ordered[v] - positives[u]) / self.temperature
            result.index_add_(0, order[v], weights[u] * self._slope(z, u, order[v], others is positives))
        return result

    def _slope(self, z: Tensor, u: Tensor, v: Tensor, same: bool) -> Tensor:
        """The slope of S for each pair; 0 for a positive with itself, whose contributions cancel."""
        slope = z.sigmoid() * z.neg().sigmoid() / self.temperature
        return slope * (u != v) if same else slope

    def _near(self, positives: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The others sorted, their original indices, and the range (first, end) of those close to each positive."""
        ordered, order = others.sort()
        reach = SATURATED * self.temperature if self.method == "fast" else 2.0
        first = torch.searchsorted(ordered, positives - reach)
        return ordered, order, first, torch.searchsorted(ordered, positives + reach, right=True)

    def _blocks(self, sizes: Tensor) -> list[Tensor]:
        """Splits the positives into blocks with a limited number of pairs."""
        if not len(sizes):
            return []
        block = sizes.cumsum(0) // PAIRS
        return list(
            torch.arange(len(sizes), device=sizes.device).split(
                block.unique_consecutive(return_counts=True)[1].tolist()
            )
        )


def _pairs(some: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs of these positives with the samples close to them."""
    sizes = (last - first)[some]
    u = some.repeat_interleave(sizes)
    start = sizes.cumsum(0) - sizes
    return u, torch.arange(len(u), device=u.device) - start.repeat_interleave(sizes) + first[u]
