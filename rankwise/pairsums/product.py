"""Sums over pairs of exp(-a · (f_i - f_j)(q_i - q_j)): how far two orders of the same samples agree.

The exponent is a product of differences, so no single order of the samples makes the sum easy. But with f and q within
[0, 1] it is a smooth function of small products, and its power series splits every pair into a term of i times a term
of j: a table of moments of all j then serves every i. Time and memory are linear in the samples.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: The series ends where its terms fall below this: what is left out is no more than the rounding of long sums.
ROUNDING = 1e-13

#: Samples taken at once, so that their powers stay in cache.
TERMS_PER_BLOCK = 512


def product_sums(f: Tensor, q: Tensor, group: Tensor, groups: int, a: float, values: Tensor) -> Tensor:
    """For each i, Σ_j values_j · exp(-a · (f_i - f_j)(q_i - q_j)) over all j of its group, i itself included.

    Args:
        f: First order, float64 within [0, 1], [P].
        q: Second order, float64 within [0, 1], [P].
        group: Which group each sample is in, int64 [P].
        groups: Number of groups.
        a: How strongly disagreement counts.
        values: How much each j counts, float64, several sums at once, [P, K].

    Returns:
        The sums, float64 [P, K].
    """
    f, q = f - 0.5, q - 0.5  # halves the products, so that half as many powers do
    # -a (f_i - f_j)(q_i - q_j) = -a f_i q_i - a f_j q_j + a f_i q_j + a q_i f_j, and the last two are series.
    alone = torch.exp(-a * f * q)
    degree = _degree(a / 4)
    scale = f.new_tensor([a**k / math.factorial(k) for k in range(degree)])  # of t^k in exp(a t)
    moments = f.new_zeros(groups, degree, degree, values.shape[1])
    blocks = [slice(start, start + TERMS_PER_BLOCK) for start in range(0, len(f), TERMS_PER_BLOCK)]
    for block in blocks:
        powers = _powers(q[block], degree)[:, :, None] * _powers(f[block], degree)[:, None, :]  # [b, k, l]
        weighted = powers[..., None] * (alone[block, None] * values[block])[:, None, None]
        moments.index_add_(0, group[block], weighted)
    moments *= (scale[:, None] * scale)[..., None]
    result = torch.empty_like(values)
    for block in blocks:
        powers = _powers(f[block], degree)[:, :, None] * _powers(q[block], degree)[:, None, :]
        result[block] = alone[block, None] * torch.einsum("bkl,bklv->bv", powers, moments[group[block]])
    return result


def _degree(bound: float) -> int:
    """How many terms of the power series of exp(t) are needed for |t| <= bound."""
    degree, term = 1, bound
    while term > ROUNDING:
        degree += 1
        term *= bound / degree
    return degree


def _powers(x: Tensor, degree: int) -> Tensor:
    """1, x, x², … [len(x), degree]."""
    return torch.cat([torch.ones_like(x[:, None]), x[:, None].expand(-1, degree - 1).cumprod(1)], 1)
