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
        delta: Half the width of the step's ramp.
        interpolated: Take the precision as the running maximum over the positives in order of rising logit, as
            published; False gives the plain formula.
        weight_by_quality: Weigh each positive by its quality.
        max_negatives: Count only so many negatives, the highest. None counts all.
        scope: Rank together all samples of this process ("batch"), of each image ("image") or of all processes
            ("world").
        method: "fast" is exact at linear cost, by the best engine there is; "triton", "numba" and "torch" name one;
            "dense" takes every pair by itself, the definition.
        check: Whether bad values raise an error that says where they are, which on a GPU waits for the device. If not,
            they make the loss NaN. None checks on a CPU only.
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
