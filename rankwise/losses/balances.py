"""Balance constants B_u, the divisors of the pair errors of a positive."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.losses.inputs import check_factors


class Balance:
    """A balance constant: the divisor of the errors of a positive."""


@dataclass(frozen=True)
class Rank(Balance):
    """The rank of the positive among all samples: rank⁺(u) + rank⁻(u), plus a term for itself.

    Args:
        own: The contribution of the positive to its own rank: 1/2, the value of the distance at 0, or 1 as in AP loss.
            Without it, a single positive far above all negatives would always keep its full gradient.
    """

    own: float = 0.5

    def __post_init__(self) -> None:
        check_factors(own=self.own)


@dataclass(frozen=True)
class ValidNegatives(Balance):
    """The number of valid pairs: those whose negative has a logit above p_u - T. Other pairs are ignored.

    With ``AdaptivePairs``, positives of lower quality count as negatives of u, with the same margin. A positive without
    a valid pair has no error.

    Args:
        margin: T, how far below the positive a negative may be.
    """

    margin: float = 0.25

    def __post_init__(self) -> None:
        check_factors(margin=self.margin)
