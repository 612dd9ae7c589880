"""Balance constants B_u: what the errors of a positive's pairs are divided by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from rankwise.pairsums import PairSums, Sums


class Balance(ABC):
    """A balance constant: what a positive's errors are divided by."""

    @abstractmethod
    def floor(self, positives: Tensor) -> Tensor | None:
        """Only samples above it make a pair with a positive, float64 [P]; None: all do."""

    @abstractmethod
    def of(self, sums: PairSums, over_negatives: Sums, over_pairs: Sums) -> Tensor:
        """Each positive's balance constant, float64 [P].

        Args:
            sums: Sums over all pairs.
            over_negatives: The sums over the negatives.
            over_pairs: The sums over each positive's pairs, A_u.
        """


@dataclass(frozen=True)
class Rank(Balance):
    """The positive's rank among all samples: rank⁺(u) + rank⁻(u), plus a term for itself.

    Args:
        own: What the positive counts in its own rank: 1/2, the distance's value at 0, or 1 as in AP loss. Without it
            a lone positive far above all negatives would keep its full gradient for ever.
    """

    own: float = 0.5

    def floor(self, positives: Tensor) -> Tensor | None:
        """Only samples above it make a pair with a positive; None: all do."""
        return None

    def of(self, sums: PairSums, over_negatives: Sums, over_pairs: Sums) -> Tensor:
        """Each positive's rank, float64 [P]."""
        half = 0.5  # u's own H(0) or S(0), which the sum over all positives has in it
        return over_negatives.rank + (sums.over_positives().rank - half) + self.own


@dataclass(frozen=True)
class ValidNegatives(Balance):
    """The number of valid pairs: those whose negative has a logit above p_u - T. No other pair counts at all.

    With ``AdaptivePairs`` the positives of lower quality are negatives to u: they count here too, by the same margin.
    A positive without a valid pair has no error.

    Args:
        margin: T, how far below the positive a negative is still valid.
    """

    margin: float = 0.25

    def __post_init__(self) -> None:
        if not self.margin >= 0:
            raise ValueError(f"margin must be at least 0, got {self.margin}")

    def floor(self, positives: Tensor) -> Tensor | None:
        """Only samples above it make a pair with a positive, float64 [P]."""
        return positives.double() - self.margin

    def of(self, sums: PairSums, over_negatives: Sums, over_pairs: Sums) -> Tensor:
        """Each positive's number of valid pairs, at least 1, float64 [P]."""
        return over_pairs.number.clamp(min=1)
