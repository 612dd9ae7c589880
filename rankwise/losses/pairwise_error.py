"""The paper's formula: every ranking loss as a distance, a balance constant and a choice of pairs."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from rankwise.losses.balances import Balance, Rank
from rankwise.losses.base import Loss, Outcome
from rankwise.losses.groups import Group, Scope, make_groups
from rankwise.losses.pairs import AdaptivePairs, Pairs, PositiveVsNegative
from rankwise.pairsums import (
    Distance,
    Method,
    PairSums,
    SigmoidCrossEntropy,
    eager,
    error_driven,
    highest,
    pair_sums,
)


class PairwiseError(Loss):
    """Pairwise error: L = 1/|P| · Σ_u w_u / B_u · Σ_{v ∈ A_u} D(x_v - p_u), with B_u constant for the gradient.

    AP loss, PE and APE are combinations of its choices. The gradient is the error-driven one: with S the distance's
    rank (H, or the sigmoid), each pair pulls u up and pushes v down by w_u / B_u · S(x_v - p_u) / |P|. For cross
    entropy that is also the true gradient. Without positives the loss is 0.

    Args:
        distance: D, what a pair adds to the error: Step, Sigmoid or SigmoidCrossEntropy, the default.
        balance: B_u, what a positive's errors are divided by: Rank, the default, or ValidNegatives.
        pairs: A_u, what a positive is ranked against: AdaptivePairs, the default, or PositiveVsNegative.
        weight_by_quality: Weigh each positive by its quality (w_u = q_u) instead of 1.
        interpolated: Take the precision as the running maximum over the positives in order of rising logit, as AP loss
            does. Only with Step or Sigmoid, Rank and PositiveVsNegative.
        max_negatives: Q, count only the Q highest negatives. None counts all.
        scope: Rank together all samples of this process ("batch"), of each image ("image", which needs the argument
            ``image`` in the call) or of all processes ("world").
        method: "fast" is exact at linear cost; "dense" takes every pair by itself, the definition.
    """

    def __init__(
        self,
        distance: Distance | None = None,
        balance: Balance | None = None,
        pairs: Pairs | None = None,
        weight_by_quality: bool = False,
        interpolated: bool = False,
        max_negatives: int | None = None,
        scope: Scope = "batch",
        method: Method = "fast",
    ) -> None:
        super().__init__()
        self.distance = distance or SigmoidCrossEntropy()
        self.balance = balance or Rank()
        self.pairs = pairs or AdaptivePairs()
        self.weight_by_quality = weight_by_quality
        self.interpolated = interpolated
        self.max_negatives = max_negatives
        self.scope: Scope = scope
        self.method: Method = method
        if interpolated and not self._has_precision():
            raise ValueError("interpolated=True needs Step or Sigmoid, Rank and PositiveVsNegative to have a precision")
        if max_negatives is not None and max_negatives < 1:
            raise ValueError(f"max_negatives must be at least 1, or None for all, got {max_negatives}")
        for name, value, known in (("scope", scope, get_args(Scope)), ("method", method, get_args(Method))):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")

    @eager
    def outcome(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Outcome:
        if quality is None and (self.weight_by_quality or self.pairs.needs_quality):
            raise ValueError("quality must be given: float [A], the IoU of each positive's predicted box")
        with torch.no_grad():
            groups = make_groups(logits, labels, quality, image, self.scope)
            number = sum(group.positives.numel() for group in groups)
            loss = mistakes = torch.zeros((), dtype=torch.float64, device=logits.device)
            pushed, gradients = [], [loss[None][:0]]
            for group in groups:
                sums = self._sums(group)
                error, rank, weight, gradient = self._terms(sums, group, number)
                loss = loss + error / number
                mistakes = mistakes + rank / number
                pushed.append((sums, weight))
                gradients.append(gradient)
            place = torch.cat([labels.new_zeros(0, dtype=torch.int64), *(group.place for group in groups)])
        value = error_driven(logits, loss, pushed, place, torch.cat(gradients))
        return Outcome(value, {"positives": torch.full_like(mistakes, number), "ranking_error": mistakes})

    def _sums(self, group: Group) -> PairSums:
        """Sums over the pairs that count at all."""
        floors = (part.floor(group.positives) for part in (self.distance, self.balance))
        given = [floor for floor in floors if floor is not None]
        floor = torch.stack(given).amax(0) if given else None
        negatives = group.negatives if self.max_negatives is None else highest(group.negatives, self.max_negatives)
        return pair_sums(negatives, group.positives, self.distance, floor, self.method)

    def _terms(self, sums: PairSums, group: Group, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The formula: sum of errors, sum of ranking errors, weight of each u's pairs, gradient of the positives."""
        over_negatives = sums.over_negatives()
        over_pairs = over_negatives + self.pairs.among_positives(sums, group.quality)
        balance = self.balance.of(sums, over_negatives, over_pairs)
        weight = group.quality if self.weight_by_quality else torch.ones_like(balance)
        error = over_pairs.error / balance
        if self.interpolated:
            weight = weight * _interpolation(error, group.positives)
        share = weight / balance / number
        gradient = self.pairs.read_back(sums, share, group.quality) - share * over_pairs.rank
        return (weight * error).sum(), (over_pairs.rank / balance).sum(), share, gradient

    def _has_precision(self) -> bool:
        """Whether the errors over the balance are one minus a precision."""
        return (
            not isinstance(self.distance, SigmoidCrossEntropy)
            and isinstance(self.balance, Rank)
            and isinstance(self.pairs, PositiveVsNegative)
        )


def _interpolation(error: Tensor, positives: Tensor) -> Tensor:
    """By what factor each error falls if the precision 1 - error is the best so far, from the lowest positive up."""
    order = positives.argsort()
    best = torch.empty_like(error)
    best[order] = error[order].cummin(0).values
    return torch.where(error > 0, best / error, 1.0)
