"""The distances as device functions: what a pair adds to a positive's rank and to its error."""

from __future__ import annotations

import triton
import triton.language as tl

#: Beyond so many δ, neighboring float32 numbers are more than a ramp apart.
COARSE = tl.constexpr(float(1 << 26))


@triton.jit
def sigmoid(z):
    """S(z) and 1 - S(z), both with all their digits, and e^-|z|."""
    e = tl.exp(-tl.abs(z))
    large = 1.0 / (1.0 + e)
    small = e * large
    return tl.where(z >= 0, large, small), tl.where(z >= 0, small, large), e


@triton.jit
def log1p(e):
    """log(1 + e) for e in [0, 1] to the precision of float32, however small e is: 2 artanh(e / (2 + e)) as a series."""
    s = e / (2.0 + e)
    q = s * s
    series = 1.0 / 11 + q * (1.0 / 13 + q * (1.0 / 15 + q * (1.0 / 17)))
    series = 1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q * (1.0 / 9 + q * series)))
    return 2.0 * s + 2.0 * s * (q * series)


@triton.jit
def coordinate(x, SCALE: tl.constexpr, STEP: tl.constexpr):
    """A float32 logit as float64.

    For the step, numbers that are so large that p ± δ might be rounded to p are moved closer together: their neighbors
    are more than a ramp away, so only their order counts.
    """
    wide = x.to(tl.float64)
    if STEP:
        limit: tl.constexpr = COARSE * SCALE
        size = tl.abs(x)
        edge = tl.full(x.shape, limit, tl.float32)
        steps = size.to(tl.int32, bitcast=True) - edge.to(tl.int32, bitcast=True)
        far = edge.to(tl.float64) + steps.to(tl.float64) * (4 * SCALE)
        wide = tl.where(size > edge, tl.where(x > 0, far, -far), wide)
    return wide


@triton.jit
def pair_rank(d, SCALE: tl.constexpr, STEP: tl.constexpr):
    """How far a sample is before a positive, 0 to 1, from the difference d of their coordinates, float64."""
    if STEP:
        rank = tl.minimum(tl.maximum(d * (0.5 / SCALE) + 0.5, 0.0), 1.0)
    else:
        s, _, _ = sigmoid(_clipped(d, SCALE))
        rank = s.to(tl.float64)
    return rank


@triton.jit
def softplus(d, SCALE: tl.constexpr):
    """softplus(λd) / λ, float64; d may be as large as it likes."""
    e = tl.exp(-tl.abs(_clipped(d, SCALE)))
    return tl.maximum(d, 0.0) + (log1p(e) / SCALE).to(tl.float64)


@triton.jit
def _clipped(d, SCALE: tl.constexpr):
    return tl.minimum(tl.maximum(d * SCALE, -1e4), 1e4).to(tl.float32)
