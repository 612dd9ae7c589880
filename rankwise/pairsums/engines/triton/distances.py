"""Device functions of the distances: the contribution of a pair to rank and error of its positive."""

from __future__ import annotations

import triton
import triton.language as tl

#: Beyond this many δ, adjacent float32 numbers are more than a ramp apart.
MAX_EXACT = tl.constexpr(float(1 << 26))


@triton.jit
def sigmoid(z):
    """S(z) and 1 - S(z), both to full relative precision, and e^-|z|."""
    e = tl.exp(-tl.abs(z))
    large = 1.0 / (1.0 + e)
    small = e * large
    return tl.where(z >= 0, large, small), tl.where(z >= 0, small, large), e


@triton.jit
def log1p(e):
    """log(1 + e) for e in [0, 1], to full relative precision of float32, as the series of 2 artanh(e / (2 + e))."""
    s = e / (2.0 + e)
    q = s * s
    series = 1.0 / 11 + q * (1.0 / 13 + q * (1.0 / 15 + q * (1.0 / 17)))
    series = 1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q * (1.0 / 9 + q * series)))
    return 2.0 * s + 2.0 * s * (q * series)


@triton.jit
def coordinate(x, SCALE: tl.constexpr, STEP: tl.constexpr):
    """A float32 logit as float64.

    For the step, numbers so large that p ± δ could round to p are moved to a spacing of 4δ in the same order. Float32
    numbers of this size are more than a ramp apart, so that only their order matters.
    """
    wide = x.to(tl.float64)
    if STEP:
        limit: tl.constexpr = MAX_EXACT * SCALE
        size = tl.abs(x)
        edge = tl.full(x.shape, limit, tl.float32)
        steps = size.to(tl.int32, bitcast=True) - edge.to(tl.int32, bitcast=True)
        far = edge.to(tl.float64) + steps.to(tl.float64) * (4 * SCALE)
        wide = tl.where(size > edge, tl.where(x > 0, far, -far), wide)
    return wide


@triton.jit
def pair_rank(d, SCALE: tl.constexpr, STEP: tl.constexpr):
    """The contribution of a sample to the rank of a positive, 0 to 1; d is the difference of coordinates, float64."""
    if STEP:
        rank = tl.minimum(tl.maximum(d * (0.5 / SCALE) + 0.5, 0.0), 1.0)
    else:
        s, _, _ = sigmoid(_clipped(d, SCALE))
        rank = s.to(tl.float64)
    return rank


@triton.jit
def softplus(d, SCALE: tl.constexpr):
    """softplus(λd) / λ, float64, for any finite d."""
    e = tl.exp(-tl.abs(_clipped(d, SCALE)))
    return tl.maximum(d, 0.0) + (log1p(e) / SCALE).to(tl.float64)


@triton.jit
def _clipped(d, SCALE: tl.constexpr):
    return tl.minimum(tl.maximum(d * SCALE, -1e4), 1e4).to(tl.float32)
