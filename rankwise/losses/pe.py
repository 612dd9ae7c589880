"""Pairwise Error loss."""

from __future__ import annotations

from rankwise.losses.balances import Rank
from rankwise.losses.pairs import PositiveVsNegative
from rankwise.losses.pairwise_error import PairwiseError
from rankwise.pairsums import Method, Scope, SigmoidCrossEntropy


class PELoss(PairwiseError):
    """Pairwise Error: the cross entropy of every positive with every negative, divided by the rank of the positive.

    Revisiting AP Loss for Dense Object Detection, Xu et al. 2022, https://arxiv.org/abs/2207.12042

    Args:
        lam: Steepness λ of the sigmoid.
        weight_by_quality: Weight each positive by its quality.
        max_negatives: Use only this many negatives, those with the highest logits. None uses all.
        cut: Drop the pairs with λ(n_v - p_u) < -cut, as the published code does with 4. None keeps all.
        scope: The samples ranked together: those of this process ("batch"), of each image ("image"), of each class
            ("class") or of all processes ("world").
        method: "fast" is exact at linear cost and uses the best available engine; "triton", "numba" and "torch" select
            one; "dense" computes every pair, as in the definition.
        check: Whether invalid values raise an error that says where they are, which waits for the device on a GPU.
            Otherwise they make the loss NaN. None checks only on a CPU.
    """

    def __init__(
        self,
        lam: float = 8.0,
        weight_by_quality: bool = False,
        max_negatives: int | None = None,
        cut: float | None = None,
        scope: Scope = "batch",
        method: Method = "fast",
        check: bool | None = None,
    ) -> None:
        super().__init__(
            SigmoidCrossEntropy(lam, cut),
            Rank(),
            PositiveVsNegative(),
            weight_by_quality=weight_by_quality,
            max_negatives=max_negatives,
            scope=scope,
            method=method,
            check=check,
        )
