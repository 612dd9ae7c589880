"""AP loss."""

from __future__ import annotations

from rankwise.losses.balances import Rank
from rankwise.losses.pairs import PositiveVsNegative
from rankwise.losses.pairwise_error import PairwiseError
from rankwise.pairsums import Method, Scope, Step


class APLoss(PairwiseError):
    """AP loss: one minus the precision at each positive, averaged, with its error-driven gradient.

    Chen et al., `Towards Accurate One-Stage Object Detection with AP-Loss <https://arxiv.org/abs/1904.06373>`_.

    Args:
        delta: δ, half the width of the ramp.
        interpolated: Use interpolated precision, the running maximum over the positives in ascending order of logit, as
            published; False turns it off.
        weight_by_quality: Weight each positive by its quality.
        max_negatives: Use only this many negatives, those with the highest logits. None uses all.
        scope: The samples ranked together: those of this process ("batch"), of each image ("image"), of each class
            ("class") or of all processes ("world").
        method: "fast" is exact at linear cost and uses the best available engine; "triton", "numba" and "torch" select
            one; "dense" computes every pair, as in the definition.
        check: Whether invalid values raise an error that says where they are, which waits for the device on a GPU.
            Otherwise they make the loss NaN. None checks only on a CPU.
    """

    def __init__(
        self,
        delta: float = 0.5,
        interpolated: bool = True,
        weight_by_quality: bool = False,
        max_negatives: int | None = None,
        scope: Scope = "batch",
        method: Method = "fast",
        check: bool | None = None,
    ) -> None:
        super().__init__(
            Step(delta),
            Rank(own=1.0),
            PositiveVsNegative(),
            weight_by_quality=weight_by_quality,
            interpolated=interpolated,
            max_negatives=max_negatives,
            scope=scope,
            method=method,
            check=check,
        )
