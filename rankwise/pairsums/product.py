"""Sums over pairs of exp(-a · (f_i - f_j)(q_i - q_j)), which measure how far two orders of the samples agree.

The exponent is a product of differences, so that sorting the samples does not simplify the sum. With f and q in [0, 1],
a power series separates it into factors of i and of j, as in a fast multipole method: moments of all j give the sums
of every i. Time and memory are linear in the number of samples. In small groups, the pairs themselves are fewer than
the terms of the series.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: The series is truncated where its terms fall below this, which is below the rounding of long sums.
MIN_TERM = 1e-13

#: Samples per block: their powers stay in cache.
SAMPLES_PER_BLOCK = 512

#: Up to this many pairs per sample are summed one by one.
MAX_PAIRS = 32


def product_sums(f: Tensor, q: Tensor, group: Tensor, groups: int, a: float, values: Tensor) -> Tensor:
    """For each i, Σ_j values_j · exp(-a · (f_i - f_j)(q_i - q_j)) over all j of its group, i itself included.

    Args:
        f: Float64 in [0, 1], [P].
        q: Float64 in [0, 1], [P].
        group: Group of each sample, int64 [P].
        groups: Number of groups.
        a: Factor of the exponent.
        values: Weights of j, float64 [P, K], for K sums at once.

    Returns:
        The sums, float64 [P, K].
    """
    sizes = torch.bincount(group, minlength=groups)
    if int(sizes.square().sum()) <= MAX_PAIRS * len(f):
        i, j = _pairs(group, sizes)
        errors = torch.exp(-a * (f[i] - f[j]) * (q[i] - q[j]))
        return torch.zeros_like(values).index_add_(0, i, errors[:, None] * values[j])
    f, q = f - 0.5, q - 0.5  # smaller products need fewer powers
    # -a (f_i - f_j)(q_i - q_j) = -a f_i q_i - a f_j q_j + a f_i q_j + a q_i f_j, and the last two become series.
    own = torch.exp(-a * f * q)
    degree = _degree(a / 4)
    scale = f.new_tensor([a**k / math.factorial(k) for k in range(degree)])  # of t^k in exp(a t)
    moments = f.new_zeros(groups, degree, degree, values.shape[1])
    blocks = [slice(start, start + SAMPLES_PER_BLOCK) for start in range(0, len(f), SAMPLES_PER_BLOCK)]
    for block in blocks:
        powers = _powers(q[block], degree)[:, :, None] * _powers(f[block], degree)[:, None, :]  # [b, k, l]
        weighted = powers[..., None] * (own[block, None] * values[block])[:, None, None]
        moments.index_add_(0, group[block], weighted)
    moments *= (scale[:, None] * scale)[..., None]
    result = torch.empty_like(values)
    for block in blocks:
        powers = _powers(f[block], degree)[:, :, None] * _powers(q[block], degree)[:, None, :]
        result[block] = own[block, None] * torch.einsum("bkl,bklv->bv", powers, moments[group[block]])
    return result


def _pairs(group: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs of samples of the same group: two indices, group by group."""
    order = group.argsort()
    repeats = sizes[group[order]]  # each sample forms a pair with all of its group
    i = order.repeat_interleave(repeats)
    number = torch.arange(len(i), device=i.device) - (repeats.cumsum(0) - repeats).repeat_interleave(repeats)
    first = sizes.cumsum(0) - sizes
    return i, order[first[group[i]] + number]


def _degree(bound: float) -> int:
    """Number of terms of the power series of exp(t) for |t| <= bound."""
    degree, term = 1, bound
    while term > MIN_TERM:
        degree += 1
        term *= bound / degree
    return degree


def _powers(x: Tensor, degree: int) -> Tensor:
    """1, x, x², … [len(x), degree]."""
    return torch.cat([torch.ones_like(x[:, None]), x[:, None].expand(-1, degree - 1).cumprod(1)], 1)
