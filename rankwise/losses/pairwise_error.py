"""The general formula of the paper: a ranking loss as distance, balance constant and pair selection."""

from __future__ import annotations

from rankwise.losses.balances import Balance, Rank, ValidNegatives
from rankwise.losses.pairs import AdaptivePairs, Pairs, PositiveVsNegative
from rankwise.losses.ranking import RankingLoss
from rankwise.pairsums import Distance, Method, RankingSpec, Scope, SigmoidCrossEntropy


class PairwiseError(RankingLoss):
    """Pairwise error: L = 1/|P| · Σ_u w_u / B_u · Σ_{v ∈ A_u} D(x_v - p_u), with B_u constant for the gradient.

    AP loss, PE and APE are special cases. The gradient is error-driven: with S the rank function of the distance (H, or
    the sigmoid), each pair pulls u up and pushes v down by w_u / B_u · S(x_v - p_u) / |P|. For cross entropy, this is
    also the true gradient. Without positives, the loss is 0.

    Args:
        distance: D, the error of a pair: Step, Sigmoid or SigmoidCrossEntropy (default).
        balance: B_u, the divisor of the errors of a positive: Rank (default) or ValidNegatives.
        pairs: A_u, the samples that a positive is ranked against: AdaptivePairs (default) or PositiveVsNegative.
        weight_by_quality: Weight each positive by its quality (w_u = q_u) instead of 1.
        interpolated: Use interpolated precision, the running maximum over the positives in ascending order of logit, as
            in AP loss. Only with Step or Sigmoid, Rank and PositiveVsNegative.
        max_negatives: Q, use only the Q negatives with the highest logits. None uses all.
        scope: The samples ranked together: those of this process ("batch"), of each image ("image", which needs the
            argument ``image``), of each class ("class") or of all processes ("world").
        method: "fast" is exact at linear cost and uses the best available engine; "triton", "numba" and "torch" select
            one; "dense" computes every pair, as in the definition.
        check: Whether invalid values raise an error that says where they are, which waits for the device on a GPU.
            Otherwise they make the loss NaN. None checks only on a CPU.
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
        check: bool | None = None,
    ) -> None:
        distance = distance or SigmoidCrossEntropy()
        balance, pairs = balance or Rank(), pairs or AdaptivePairs()
        if type(balance) not in (Rank, ValidNegatives) or type(pairs) not in (AdaptivePairs, PositiveVsNegative):
            raise ValueError(
                "balance must be Rank or ValidNegatives and pairs AdaptivePairs or PositiveVsNegative, "
                f"got {type(balance).__name__} and {type(pairs).__name__}"
            )
        by_rank, adaptive = isinstance(balance, Rank), isinstance(pairs, AdaptivePairs)
        if interpolated and (isinstance(distance, SigmoidCrossEntropy) or not by_rank or adaptive):
            raise ValueError(
                "interpolated=True needs Step or Sigmoid, Rank and PositiveVsNegative, because it "
                "interpolates the precision"
            )
        if max_negatives is not None and max_negatives < 1:
            raise ValueError(f"max_negatives must be at least 1, or None for all, got {max_negatives}")
        spec = RankingSpec(
            "pairwise",
            distance,
            own=balance.own if isinstance(balance, Rank) else 0.5,
            margin=balance.margin if isinstance(balance, ValidNegatives) else None,
            adaptive=adaptive,
            weight_by_quality=weight_by_quality,
            interpolated=interpolated,
            max_negatives=max_negatives,
            scope=scope,
        )
        super().__init__(spec, method, check)
        self.balance, self.pairs = balance, pairs
