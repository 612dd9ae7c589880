"""The formulas of the ranking losses: from each positive's sums over its pairs to the loss and the gradient.

They use only what tensors and numpy's arrays have in common: the numba engine has arrays, the others tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from torch import Tensor

from rankwise.pairsums.spec import Family, RankingSpec

#: A float64 Tensor or numpy array.
Array: TypeAlias = Any

#: RankSort: positives with fewer missorted ones above them have no sorting gradient: nothing to share it among.
FEW_MISSORTED = 1e-9

#: aLRP: positives with fewer negatives above them have no gradient, as published.
FEW_ABOVE = 1e-5

#: Far below any error that matters; in a quotient of two errors it makes 0 / 0 a 1.
TINY = 1e-300


class Sums(NamedTuple):
    """Per positive u, sums over samples v: of rank(x_v - p_u), of error(x_v - p_u), and how many; float64 [P] each.

    The number may be None unless the spec has a margin: nothing else asks for it.
    """

    rank: Array
    error: Array
    number: Array | None = None


class Over(NamedTuple):
    """Each positive's sums over its pairs.

    Attributes:
        negatives: Over the negatives.
        positives: Of values_v · rank over all positives v, u itself included, for each row of the values, [K, P].
        lower: Over the positives of strictly lower quality; its rank is [K, P], one row for each of the values. None
            if not asked for.
        faults: How many of the negatives are NaN or infinite.
    """

    negatives: Sums
    positives: Array
    lower: Sums | None
    faults: Tensor | int


class PairSums(Protocol):
    """Sums over the pairs of a group's P positives with its negatives and with each other, all in float64."""

    def over(self, values: Sequence[Array], lower: bool) -> Over:
        """Each positive's sums over its pairs.

        Args:
            values: How much each positive counts as a sample, K times [P]; the first are ones.
            lower: Whether to sum over the positives of lower quality too.
        """

    def push(self, weights: Array, lower: bool) -> Array:
        """For each positive v, Σ_u weights_u · rank(p_v - p_u), [P]: over all u, or over those of higher quality."""

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · rank(x_v - p_u) to its index in the group's flat gradient.

        Samples that are not negatives get 0.
        """


class ByPositive(NamedTuple):
    """The loss as a sum over positives, each with its gradient, float64 [P] each.

    Attributes:
        term: What each positive adds to the loss.
        weights: How strongly it pushes the negatives.
        lower: How strongly it pushes the positives of lower quality; None: not at all.
        pull: How strongly it is pulled up itself.
    """

    term: Array
    weights: Array
    lower: Array | None
    pull: Array


class Terms(NamedTuple):
    """What a formula makes of the sums.

    Attributes:
        loss: The group's share of the loss, scalar.
        log: Its share of the numbers for the log, after "positives" and "faults".
        weights: How strongly each positive pushes the negatives, [P].
        gradient: The positives' gradient, [P].
        box_weights: How much each positive's box error counts, [P], or None.
        table: What the backward pass of an engine reads instead of the weights, float64 [n], or None.
        layout: How to find a sample's entries in the table, float64 [m], with a table.
        by_positive: Computes the same for each positive; None if the engine does not support it.
    """

    loss: Array
    log: tuple[Array, ...]
    weights: Array
    gradient: Array
    box_weights: Array | None = None
    table: Tensor | None = None
    layout: Tensor | None = None
    by_positive: Callable[[], ByPositive] | None = None


class Positives(NamedTuple):
    """The positives of samples that rank together.

    Attributes:
        logits: float64 [P].
        quality: float64 [P]; zeros if the loss reads none.
        number: Number of positives in all groups together.
    """

    logits: Array
    quality: Array
    number: int


Push = Callable[[Array, bool], Array]


def values_of(spec: RankingSpec, quality: Array) -> list[Array]:
    """How much a positive counts as a sample in the sums over positives, [P]: once, and by its box error."""
    ones = quality * 0 + 1
    if spec.family == "pairwise":
        return [ones]
    return [ones, 1 - quality if spec.family == "ranksort" else _box_error(spec, quality)]


def _box_error(spec: RankingSpec, quality: Array) -> Array:
    """The box error of aLRP: 1/2 for a box that just counts as correct."""
    return (1 - quality) / (2 - 2 * spec.tau)


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
        balance = (number + lower).clip(min=1)
    inverse = 1 / (balance * group.number)
    share = inverse * group.quality if spec.weight_by_quality else inverse
    if spec.interpolated:
        share = share * _interpolation(error / balance, group.logits)
    gradient = share * -rank
    if spec.adaptive:
        gradient += push(share, True)

    def by_positive() -> ByPositive:
        return ByPositive(error * share, share, share if spec.adaptive else None, share * rank)

    return Terms(error @ share, (rank @ inverse,), share, gradient, by_positive=by_positive)


def ranksort(spec: RankingSpec, group: Positives, over: Over, push: Push) -> Terms:
    """The mean over positives of ranking error and sorting error: `RankSortLoss`."""
    assert over.lower is not None
    above, (among, lacking), (worse, worse_lacking) = over.negatives.rank, over.positives, over.lower.rank
    rank = among + above
    ranking, inverse = above / rank, 1 / (rank * group.number)
    # lacking / among - (lacking - worse_lacking) / (among - worse), written so that nothing cancels
    sorting = (worse_lacking - worse * lacking / among) / (among - worse)
    share = (worse > FEW_MISSORTED) * sorting / worse.clip(min=FEW_MISSORTED)
    pull = share * worse + ranking
    gradient = (push(share, True) - pull) / group.number
    log = above @ inverse, sorting.sum() / group.number

    def by_positive() -> ByPositive:
        return ByPositive((ranking + sorting) / group.number, inverse, share / group.number, pull / group.number)

    return Terms(log[0] + log[1], log, inverse, gradient, by_positive=by_positive)


def alrp(spec: RankingSpec, group: Positives, over: Over, push: Push) -> Terms:
    """The mean over positives of the precision error, with box errors in the gradient: `ALRPLoss`."""
    above, (among, boxes) = over.negatives.rank, over.positives
    # The sums over all positives count u itself with H(0) = 1/2; in the rank it counts 1, in the box errors 0.
    rank, boxes = above + among + 0.5, boxes - 0.5 * _box_error(spec, group.quality)
    inverse = 1 / (rank * group.number)
    pull = (above > FEW_ABOVE) * (above + boxes) * inverse
    loss, box_weights = above @ inverse, push(inverse, False) + 0.5 * inverse
    weights = pull / above.clip(min=FEW_ABOVE)

    def by_positive() -> ByPositive:
        return ByPositive(above * inverse, weights, None, pull)

    return Terms(loss, (loss,), weights, -pull, box_weights, by_positive=by_positive)


FORMULAS: dict[Family, Callable[[RankingSpec, Positives, Over, Push], Terms]] = {
    "pairwise": pairwise,
    "ranksort": ranksort,
    "alrp": alrp,
}


def _interpolation(error: Array, positives: Array) -> Array:
    """By what factor each error falls if the precision 1 - error is the best so far, from the lowest positive up."""
    order, best = positives.argsort(), error * 0
    rising = error[order]
    best[order] = np.minimum.accumulate(rising) if isinstance(rising, np.ndarray) else rising.cummin(0).values
    return (best + TINY) / (error + TINY)  # 1 where there is no error
