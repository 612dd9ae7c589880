"""The formulas of the ranking losses: from each positive's sums over its pairs to the loss and the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rankwise.pairsums.spec import Family, RankingSpec

#: RankSort: positives with fewer missorted ones above them have no sorting gradient: nothing to share it among.
FEW_MISSORTED = 1e-9

#: aLRP: positives with fewer negatives above them have no gradient, as published.
FEW_ABOVE = 1e-5


class Sums(NamedTuple):
    """Per positive u, sums over samples v: of rank(x_v - p_u), of error(x_v - p_u), and how many; float64 [P] each.

    The number may be None unless the spec has a margin: nothing else asks for it.
    """

    rank: Tensor
    error: Tensor
    number: Tensor | None = None


class Over(NamedTuple):
    """Each positive's sums over its pairs.

    Attributes:
        negatives: Over the negatives.
        positives: Of values_v · rank over all positives v, u itself included, for each row of the values, [K, P].
        lower: Over the positives of strictly lower quality; its rank is [K, P], one row for each of the values. None
            if not asked for.
        faults: How many of the negatives are NaN or infinite, scalar.
    """

    negatives: Sums
    positives: Tensor
    lower: Sums | None
    faults: Tensor


class PairSums(Protocol):
    """Sums over the pairs of a group's P positives with its negatives and with each other, all in float64."""

    def over(self, values: Tensor, lower: bool) -> Over:
        """Each positive's sums over its pairs.

        Args:
            values: How much each positive counts as a sample, [K, P]; the first row is ones.
            lower: Whether to sum over the positives of lower quality too.
        """

    def push(self, weights: Tensor, lower: bool) -> Tensor:
        """For each positive v, Σ_u weights_u · rank(p_v - p_u), [P]: over all u, or over those of higher quality."""

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · rank(x_v - p_u) to its index in the group's flat gradient.

        Samples that are not negatives get 0.
        """


class Terms(NamedTuple):
    """What a formula makes of the sums.

    Attributes:
        loss: The group's share of the loss, scalar.
        log: Its share of the numbers for the log, after "positives" and "faults".
        weights: How strongly each positive pushes the negatives, [P].
        gradient: The positives' gradient, [P].
        box_weights: How much each positive's box error counts, [P], or None.
    """

    loss: Tensor
    log: tuple[Tensor, ...]
    weights: Tensor
    gradient: Tensor
    box_weights: Tensor | None = None


class Positives(NamedTuple):
    """The positives of samples that rank together.

    Attributes:
        logits: float64 [P].
        quality: float64 [P]; zeros if the loss reads none.
        number: Number of positives in all groups together.
    """

    logits: Tensor
    quality: Tensor
    number: int


Push = Callable[[Tensor, bool], Tensor]


def values_of(spec: RankingSpec, quality: Tensor) -> Tensor:
    """How much a positive counts as a sample in the sums over positives, [K, P]: once, and by its box error."""
    ones = torch.ones_like(quality)
    if spec.family == "pairwise":
        return ones[None]
    return torch.stack([ones, ones - quality if spec.family == "ranksort" else (ones - quality) / (2 - 2 * spec.tau)])


def pairwise(spec: RankingSpec, group: Positives, over: Over, push: Push) -> Terms:
    """L = 1/|P| · Σ_u w_u / B_u · Σ_{v ∈ A_u} D(x_v - p_u): `PairwiseError`."""
    rank, error, number = over.negatives
    balance = rank + over.positives[0] + (spec.own - 0.5)  # u's own rank(0) = 1/2 is in the sum over all positives
    if over.lower is not None:
        rank, error = rank + over.lower.rank[0], error + over.lower.error
    if spec.margin is not None:
        lower = 0 if over.lower is None else over.lower.number
        assert number is not None
        assert lower is not None
        balance = (number + lower).clamp(min=1)
    error = error / balance
    weight = group.quality if spec.weight_by_quality else torch.ones_like(balance)
    if spec.interpolated:
        weight = weight * _interpolation(error, group.logits)
    share = weight / (balance * group.number)
    gradient = share * -rank
    if spec.adaptive:
        gradient += push(share, True)
    mistakes = (rank / balance).sum() / group.number
    return Terms((weight * error).sum() / group.number, (mistakes,), share, gradient)


def ranksort(spec: RankingSpec, group: Positives, over: Over, push: Push) -> Terms:
    """The mean over positives of ranking error and sorting error: `RankSortLoss`."""
    assert over.lower is not None
    above, (among, lacking), (worse, worse_lacking) = over.negatives.rank, over.positives, over.lower.rank
    ranking = above / (among + above)
    # lacking / among - (lacking - worse_lacking) / (among - worse), written so that nothing cancels
    sorting = (worse_lacking - worse * lacking / among) / (among - worse)
    share = torch.where(worse > FEW_MISSORTED, sorting / worse.clamp(min=FEW_MISSORTED), 0.0)
    gradient = push(share, True) - share * worse - ranking
    log = ranking.sum() / group.number, sorting.sum() / group.number
    return Terms(log[0] + log[1], log, 1 / ((among + above) * group.number), gradient / group.number)


def alrp(spec: RankingSpec, group: Positives, over: Over, push: Push) -> Terms:
    """The mean over positives of the precision error, with box errors in the gradient: `ALRPLoss`."""
    above, (among, boxes) = over.negatives.rank, over.positives
    # The sums over all positives count u itself with H(0) = 1/2; in the rank it counts 1, in the box errors 0.
    rank, boxes = above + among + 0.5, boxes - 0.5 * values_of(spec, group.quality)[1]
    pull = torch.where(above > FEW_ABOVE, (above + boxes) / rank, 0.0) / group.number
    loss = (above / rank).sum() / group.number
    box_weights = (push(1 / rank, False) + 0.5 / rank) / group.number
    return Terms(loss, (loss,), pull / above.clamp(min=FEW_ABOVE), -pull, box_weights)


FORMULAS: dict[Family, Callable[[RankingSpec, Positives, Over, Push], Terms]] = {
    "pairwise": pairwise,
    "ranksort": ranksort,
    "alrp": alrp,
}


def _interpolation(error: Tensor, positives: Tensor) -> Tensor:
    """By what factor each error falls if the precision 1 - error is the best so far, from the lowest positive up."""
    order = positives.argsort()
    best = torch.empty_like(error)
    best[order] = error[order].cummin(0).values
    return torch.where(error > 0, best / error, 1.0)
