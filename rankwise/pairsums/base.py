"""What dense and fast sums over pairs both offer."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from rankwise.pairsums.samples import Sums


class PairSums(ABC):
    """Sums over the pairs of P positives with negatives and with each other, all in float64.

    A pair of positive u and sample v counts if x_v > floor_u, or always if there is no floor. It then adds 1 to u's
    number, ``distance.rank(x_v - p_u)`` to its rank and ``distance.error(x_v - p_u)`` to its error.
    """

    #: As many times too large as gradients must come out: the number of processes they are averaged over.
    copies: int = 1

    #: How many places of the flat gradient `read_back` fills without a gap.
    fills: int = 0

    @abstractmethod
    def over_negatives(self) -> Sums:
        """For each positive, the sums over all negatives."""

    @abstractmethod
    def over_positives(self, quality: Tensor | None = None, values: Tensor | None = None) -> Sums:
        """For each positive u, the sums over all positives v, u itself included.

        Args:
            quality: If given, [P], only over positives v with quality_v < quality_u (which leaves out u itself).
            values: How much each v counts, [P]; 1 if not given.
        """

    @abstractmethod
    def read_back(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · rank(x_v - p_u) to its place in the flat gradient of the logits.

        Args:
            weights: Of each positive u, [P].
            out: The flat gradient, of which nothing but the negatives' places and those they skip is written.
        """

    @abstractmethod
    def read_back_positives(self, weights: Tensor, quality: Tensor | None = None) -> Tensor:
        """For each positive v, Σ_u weights_u · rank(p_v - p_u), u = v included, float64 [P].

        Args:
            weights: Of each positive u, [P].
            quality: If given, [P], only over positives u with quality_u > quality_v.
        """
