"""Sums of the sigmoid and the softplus for more positives than can be compared pair by pair.

Sorted by quality they are cut into blocks of neighbours. Only pairs in a block are compared; the positives of lower
blocks come from a table, as the negatives do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.pairsums.engines.numba.jit import compiled
from rankwise.pairsums.engines.numba.passes import added
from rankwise.pairsums.engines.numba.sigmoid import Located, adjoint, cubic, pairs, push, read

#: Positives in a block.
POSITIVES_PER_BLOCK = 512


@compiled
def _scatter(at: Any, chosen: Any, table: Any) -> None:
    """Add the moments of some positives to their cells."""
    for i in chosen:
        power = 1.0
        for a in range(4):
            table[at.cell[i], a] += power
            power *= at.offset[i]


@compiled
def _some(at: Any, chosen: Any) -> Any:
    """Some of the positives on the lattice."""
    these = np.sort(at.position[chosen])
    return Located(at.order[these], at.cell[these], at.offset[these], at.position)


@compiled
def _lower(rows: Any, at: Any, k: Any, q: Any, with_error: Any, rank: Any, error: Any) -> None:
    """Each positive's sums of S, and of softplus if wanted, over the positives of lower quality: of many."""
    number, inside = len(q.order), 0
    table, unused = np.zeros((rows, 4)), np.zeros(number)
    for first in range(0, number, POSITIVES_PER_BLOCK):
        end, whole = min(first + POSITIVES_PER_BLOCK, number), q.lower[first]
        if whole > 0:
            _scatter(at, at.position[q.order[inside:whole]], table)
            inside = whole
            read(table, _some(at, q.order[first:end]), k, with_error, rank, error)
        pairs(q, first, end, whole, with_error, unused, rank, error)


@compiled
def sums(tables: Any, at: Any, k: Any, q: Any, with_error: Any, by_quality: Any, out: Any) -> None:
    """Each positive's sums, as `sigmoid.sums` gives them for few."""
    table = added(tables)
    read(table, at, k, with_error, out[0], out[1])
    out[2:] = 0.0
    positives = np.zeros(table.shape)
    _scatter(at, np.arange(len(q.order)), positives)
    read(positives, at, k, False, out[2], out[2])
    if by_quality:
        _lower(len(table), at, k, q, with_error, out[3], out[4])


@compiled
def higher(rows: Any, at: Any, k: Any, q: Any, weights: Any, out: Any) -> None:
    """For each positive v, the sum of weights_u · S(p_v - p_u) over the positives u of higher quality."""
    number = inside = len(q.order)
    ordered, cubics = weights[q.order], np.zeros((rows, 4))
    for end in range(number, 0, -POSITIVES_PER_BLOCK):
        first, whole = max(0, end - POSITIVES_PER_BLOCK), q.upper[end - 1]
        if whole < inside:
            adjoint(_some(at, q.order[whole:inside]), weights, k, cubics)
            inside = whole
        for i in range(first, end):
            v, begin = q.order[i], q.upper[i]
            out[v] = push(q.powers[begin:whole], ordered[begin:whole], q.powers[i])
            out[v] += cubic(cubics[at.cell[at.position[v]]], at.offset[at.position[v]])
