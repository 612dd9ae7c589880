"""The paper's formula: every ranking loss as a distance, a balance constant and a choice of pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.losses.balances import Balance, Rank, ValidNegatives
from rankwise.losses.base import Loss, Outcome
from rankwise.losses.groups import Group, Scope, make_groups
from rankwise.losses.pairs import AdaptivePairs, Pairs, PositiveVsNegative
from rankwise.pairsums import Distance, Method, PairSums, SigmoidCrossEntropy, error_driven, pair_sums


class PairwiseError(Loss):
    """Pairwise error: L = 1/|P| · Σ_u w_u / B_u · Σ_{v ∈ A_u} D(x_v - p_u), with B_u constant for the gradient.

    AP loss, PE and APE are combinations of its choices. The gradient is the error-driven one: with S the distance's
    rank (H, or the sigmoid), each pair pulls u up and pushes v down by w_u / B_u · S(x_v - p_u) / |P|. For cross
    entropy that is also the true gradient.

    Args:
        distance: D, what a pair adds to the error: Step, Sigmoid or SigmoidCrossEntropy.
        balance: B_u, what a positive's errors are divided by: Rank or ValidNegatives.
        pairs: A_u, what a positive is ranked against: PositiveVsNegative or AdaptivePairs.
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
        self.scope = scope
        self.method = method
        if interpolated and (
            isinstance(self.distance, SigmoidCrossEntropy)
            or isinstance(self.balance, ValidNegatives)
            or isinstance(self.pairs, AdaptivePairs)
        ):
            raise ValueError(
                "interpolated=True needs Step or Sigmoid, Rank and PositiveVsNegative: it needs a precision"
            )

    def outcome(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Outcome:
        if quality is None and (self.weight_by_quality or self.pairs.needs_quality):
            raise ValueError("quality must be given: float [A], the IoU of each positive's predicted box")
        with torch.no_grad():
            groups = make_groups(logits, labels, quality, image, self.scope)
            number = sum(group.positives.numel() for group in groups)
            zero = torch.zeros((), dtype=torch.float64, device=logits.device)
            loss, mistakes = zero, zero
            pushed, gradients = [], []
            for group in groups:
                sums, weights, errors, ranked, gradient = self._of(group, number)
                loss = loss + errors.sum() / number
                mistakes = mistakes + ranked.sum() / number
                pushed.append((sums, weights))
                gradients.append(gradient)
            empty = torch.zeros(0, dtype=torch.long, device=logits.device)
            place = torch.cat([empty, *(group.place for group in groups)])
            gradient = torch.cat([zero[None][:0], *gradients])
        value = error_driven(logits, loss, pushed, place, gradient)
        count = torch.full_like(mistakes, number)
        return Outcome(value, {"positives": count, "ranking_error": mistakes})

    def _of(self, group: Group, number: int) -> tuple[PairSums, Tensor, Tensor, Tensor, Tensor]:
        floor = self.balance.floor(group.positives)
        negatives = group.negatives if self.max_negatives is None else group.negatives.highest(self.max_negatives)
        sums = pair_sums(negatives, group.positives, self.distance, floor, self.method)
        over_negatives = sums.over_negatives()
        over_pairs = over_negatives + self.pairs.among_positives(sums, group.quality)
        balance = self.balance.of(sums, over_negatives, over_pairs)
        weight = group.quality if self.weight_by_quality else torch.ones_like(balance)
        error, rank = over_pairs.error / balance, over_pairs.rank / balance
        if self.interpolated:
            order = group.positives.argsort()
            best = torch.empty_like(error)
            best[order] = error[order].cummin(0).values
            weight = weight * torch.where(error > 0, best / error, 1.0)
        share = weight / balance / number
        gradient = self.pairs.read_back(sums, share, group.quality) - share * over_pairs.rank
        return sums, share, weight * error, rank, gradient


__all__ = ["AdaptivePairs", "PairwiseError", "PositiveVsNegative"]
