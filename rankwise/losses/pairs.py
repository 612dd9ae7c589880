"""Pair selections A_u: which samples a positive is ranked against."""

from __future__ import annotations

from dataclasses import dataclass


class Pairs:
    """A pair selection: the samples that a positive is ranked against."""


@dataclass(frozen=True)
class PositiveVsNegative(Pairs):
    """Every positive against every negative: A_u = N."""


@dataclass(frozen=True)
class AdaptivePairs(Pairs):
    """Negatives, and every positive of strictly lower quality (ARPS, Algorithm 1): A_u = N ∪ {v ∈ P : q_v < q_u}."""
