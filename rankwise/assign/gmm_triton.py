"""Gaussian mixtures on a GPU: one program fits one set from start to convergence, without host syncs."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG_TWO_PI = tl.constexpr(math.log(2 * math.pi))
EPSILON = tl.constexpr(10 * 2.220446049250313e-16)  # scikit-learn's guard against empty components


def fit(values: Tensor, valid: Tensor, tolerance: float, floor: float, iterations: int) -> tuple[Tensor, Tensor]:
    """See :func:`rankwise.assign.gmm.fit_mixtures`: weights, means and variances [3, 2, T], and what has converged."""
    rows, columns = values.shape
    parameters = torch.empty(3, 2, rows, dtype=torch.float64, device=values.device)
    converged = torch.empty(rows, dtype=torch.bool, device=values.device)
    if rows:
        block = triton.next_power_of_2(max(columns, 1))
        fit_set[(rows,)](
            values,
            valid.contiguous(),
            parameters,
            converged,
            rows,
            columns,
            TOLERANCE=tolerance,
            FLOOR=floor,
            ITERATIONS=iterations,
            BLOCK=block,
            num_warps=1 if block <= 64 else 4,
        )
    return parameters, converged


@triton.jit
def fit_set(  # type: ignore[no-untyped-def]
    values,
    valid,
    parameters,
    converged,
    rows,
    columns,
    TOLERANCE: tl.constexpr,
    FLOOR: tl.constexpr,
    ITERATIONS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The steps of `rankwise.assign.numba_loops._fit` for one row, in float64."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    at = row.to(tl.int64) * columns + column
    present = tl.load(valid + at, mask=inside, other=0).to(tl.int1)
    x = tl.load(values + at, mask=inside & present, other=0.0)
    one = present.to(tl.float64)
    count = tl.maximum(tl.sum(one), 1.0)
    any_present = tl.sum(one) > 0
    m0 = tl.where(any_present, tl.min(tl.where(present, x, float("inf"))), 0.0)
    m1 = tl.where(any_present, tl.max(tl.where(present, x, float("-inf"))), 0.0)
    w0 = count * 0 + 0.5
    w1 = w0
    v0 = w0 + 0.5
    v1 = v0
    bound = v0 - float("inf")
    done = 0
    step = 0
    while (step < ITERATIONS) & (done == 0):
        log0 = tl.log(w0) - 0.5 * (LOG_TWO_PI + tl.log(v0)) - 0.5 * (x - m0) * (x - m0) / v0
        log1 = tl.log(w1) - 0.5 * (LOG_TWO_PI + tl.log(v1)) - 0.5 * (x - m1) * (x - m1) / v1
        e = tl.exp(-tl.abs(log0 - log1))
        likelihood = tl.sum(tl.where(present, tl.maximum(log0, log1) + tl.log(1.0 + e), 0.0)) / count
        large = one / (1.0 + e)
        small = one * e / (1.0 + e)
        first = log0 >= log1
        share = tl.where(first, large, small)
        other = tl.where(first, small, large)
        s0 = tl.sum(share) + EPSILON
        s1 = tl.sum(other) + EPSILON
        m0 = tl.sum(share * x) / s0
        m1 = tl.sum(other * x) / s1
        v0 = tl.sum(share * (x - m0) * (x - m0)) / s0 + FLOOR
        v1 = tl.sum(other * (x - m1) * (x - m1)) / s1 + FLOOR
        w0 = s0 / (s0 + s1)
        w1 = s1 / (s0 + s1)
        done = (tl.abs(likelihood - bound) < TOLERANCE).to(tl.int32)
        bound = likelihood
        step += 1
    tl.store(parameters + row, w0)
    tl.store(parameters + rows + row, w1)
    tl.store(parameters + 2 * rows + row, m0)
    tl.store(parameters + 3 * rows + row, m1)
    tl.store(parameters + 4 * rows + row, v0)
    tl.store(parameters + 5 * rows + row, v1)
    tl.store(converged + row, done != 0)
