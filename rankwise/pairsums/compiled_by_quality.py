"""Sums of the step over positives of lower quality, compiled by numba for the CPU: P log P steps.

For positive u the positives v of lower quality fall in three stretches of logits: below p_u - δ they add nothing, above
p_u + δ each its value, between them the ramp. In order of quality each positive asks a Fenwick tree over the sorted
logits for its stretches, before those of its own quality are put in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankwise.pairsums.jit import compiled


def over_lower(positives: Tensor, quality: Tensor, values: Tensor, delta: float) -> Tensor:
    """For each positive u, Σ_v values_v · H(p_v - p_u) over the positives v with quality_v < quality_u.

    Args:
        positives: Logits, float64 [P], on the CPU.
        quality: [P].
        values: How much each v counts, several sums at once, float64 [P, K].
        delta: Half the width of the step's ramp.

    Returns:
        The sums, float64 [P, K].
    """
    p = (positives - positives.mean()).numpy()  # nearer to zero the products of the ramp lose less
    q = quality.double().numpy()
    ordered = np.sort(p)
    ends = np.searchsorted(ordered, np.stack([p - delta, p + delta]))
    place = np.empty(p.size, np.int64)
    place[np.argsort(p, kind="stable")] = np.arange(p.size)
    result = np.empty((p.size, values.shape[1]))
    _over_lower(p, q, np.argsort(q, kind="stable"), place, ends, values.contiguous().numpy(), delta, result)
    return torch.from_numpy(result)


def over_higher(positives: Tensor, quality: Tensor, weights: Tensor, delta: float) -> Tensor:
    """For each positive v, Σ_u weights_u · H(p_v - p_u) over the positives u with quality_u > quality_v, [P]."""
    return over_lower(-positives, -quality, weights.double()[:, None], delta)[:, 0]


@compiled
def _over_lower(p: Any, q: Any, order: Any, place: Any, ends: Any, values: Any, delta: Any, result: Any) -> None:
    number, kinds = values.shape
    tree = np.zeros((number + 1, 2 * kinds))  # of Σ values and Σ values · p, one after the other for each kind
    total = np.zeros(kinds)
    low, high = np.empty(2 * kinds), np.empty(2 * kinds)
    first = 0
    while first < number:
        end = first
        while end < number and q[order[end]] == q[order[first]]:
            u = order[end]
            _prefix(tree, ends[0, u], low)
            _prefix(tree, ends[1, u], high)
            for k in range(kinds):
                inside, moment = high[2 * k] - low[2 * k], high[2 * k + 1] - low[2 * k + 1]
                ramp = (moment - p[u] * inside) / (2 * delta) + 0.5 * inside
                result[u, k] = total[k] - high[2 * k] + ramp
            end += 1
        for at in range(first, end):
            v = order[at]
            node = place[v] + 1
            while node <= number:
                for k in range(kinds):
                    tree[node, 2 * k] += values[v, k]
                    tree[node, 2 * k + 1] += values[v, k] * p[v]
                node += node & -node
            for k in range(kinds):
                total[k] += values[v, k]
        first = end


@compiled
def _prefix(tree: Any, end: Any, out: Any) -> None:
    """The sums over the first ``end`` places."""
    for k in range(out.size):
        out[k] = 0.0
    while end > 0:
        for k in range(out.size):
            out[k] += tree[end, k]
        end -= end & -end
