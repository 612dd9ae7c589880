"""Balance constants B_u: what the errors of a positive's pairs are divided by."""

from __future__ import annotations

from dataclasses import dataclass


class Balance:
    """A balance constant: what a positive's errors are divided by."""


@dataclass(frozen=True)
class Rank(Balance):
    """The positive's rank among all samples: rank⁺(u) + rank⁻(u), plus a term for itself.

    Args:
        own: What the positive counts in its own rank: 1/2, the distance's value at 0, or 1 as in AP loss. Without it
            a lone positive far above all negatives would keep its full gradient for ever.
    """

    own: float = 0.5


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
