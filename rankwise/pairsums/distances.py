"""Distance functions of z = x_v - p_u: how far a sample ranks above a positive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

#: Largest λ and δ, and the inverse of the smallest: sums are exact in this range.
MAX_PARAMETER = 1e9


class Distance(ABC):
    """A distance function: the contribution of a pair to the error and rank of a positive."""

    @abstractmethod
    def floor(self, positives: Tensor) -> Tensor | None:
        """The lower limit of samples that form a pair with each positive, float64 [P]; None for no limit."""

    @abstractmethod
    def error(self, z: Tensor) -> Tensor:
        """The error of a pair."""

    @abstractmethod
    def rank(self, z: Tensor) -> Tensor:
        """The contribution of the sample to the rank of the positive, 0 to 1; also the gradient of the pair."""


@dataclass(frozen=True)
class Step(Distance):
    """A step with a linear ramp: H(z) = clamp(z / 2δ + 1/2, 0, 1), the distance of AP loss.

    Args:
        delta: Half the width of the ramp.
    """

    delta: float = 0.5

    def __post_init__(self) -> None:
        _positive("delta", self.delta)

    def floor(self, positives: Tensor) -> Tensor | None:
        """The lower limit of samples that form a pair; None for no limit."""
        return None

    def error(self, z: Tensor) -> Tensor:
        """The error of a pair: H(z)."""
        return self.rank(z)

    def rank(self, z: Tensor) -> Tensor:
        """The contribution of the sample to the rank of the positive: H(z); also the gradient of the pair."""
        return (z / (2 * self.delta) + 0.5).clamp(0, 1)


@dataclass(frozen=True)
class Sigmoid(Distance):
    """A smooth step: S(z) = 1 / (1 + e^(-λz)).

    Args:
        lam: Steepness λ.
        cut: Ignore pairs with λz < -cut, as the published code does with 4. None keeps all pairs.
    """

    lam: float = 8.0
    cut: float | None = None

    def __post_init__(self) -> None:
        _positive("lam", self.lam)
        if self.cut is not None:
            _positive("cut", self.cut)

    def floor(self, positives: Tensor) -> Tensor | None:
        """The lower limit of samples that form a pair with each positive, float64 [P]; None for no limit."""
        if self.cut is None:
            return None
        lowest = positives.double() - self.cut / self.lam
        return lowest.nextafter(torch.full_like(lowest, -torch.inf))  # a pair just at the cut still counts

    def error(self, z: Tensor) -> Tensor:
        """The error of a pair: S(z)."""
        return self.rank(z)

    def rank(self, z: Tensor) -> Tensor:
        """The contribution of the sample to the rank of the positive: S(z); also the gradient of the pair."""
        return (self.lam * z).sigmoid()


@dataclass(frozen=True)
class SigmoidCrossEntropy(Sigmoid):
    """Cross entropy of a smooth step with target 0, divided by λ: softplus(λz) / λ; its gradient is S(z).

    Args:
        lam: Steepness λ.
        cut: Ignore pairs with λz < -cut, as the published code does with 4. None keeps all pairs.
    """

    def error(self, z: Tensor) -> Tensor:
        """The error of a pair: softplus(λz) / λ."""
        return softplus(self.lam * z, threshold=40.0) / self.lam


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be greater than 0, got {value}")
    if not 1 / MAX_PARAMETER <= value <= MAX_PARAMETER:
        raise ValueError(f"{name} must be within [{1 / MAX_PARAMETER:g}, {MAX_PARAMETER:g}], got {value:g}")
