"""The same sums as in `sigmoid` for more positives.

Sorted by quality, they are cut into blocks: only pairs in a block are compared, the positives of lower blocks are
summed from a table, as the negatives are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.jit import compiled
from rankwise.pairsums.engines.numba.sigmoid import (
    Located,
    adjoint,
    by_quality,
    cubic,
    located,
    over_negatives,
    pairs,
    push,
    read,
)

#: Positives in a block.
POSITIVES_PER_BLOCK = 512


@compiled
def sums_of_many(
    part: Any, positives: Any, lattice: Any, k: Any, lam: Any, with_error: Any, with_lower: Any, out: Any
) -> Any:
    """The same as `sums_of_few`."""
    at = located(positives.p, positives.order, lattice)
    largest = over_negatives(part, lattice, at, k, with_error, out)
    if part.begin == 0:
        table = np.zeros((np.int64(lattice.high - lattice.low) + 2, 4))
        _scatter(at, np.arange(len(positives.p)), table)
        read(table, at, k, False, out[2], out[2])
        if with_lower:
            _lower(len(table), at, k, by_quality(positives, lam), with_error, out[3], out[4])
    return largest


@compiled
def higher_of_many(positives: Any, lattice: Any, k: Any, lam: Any, weights: Any, out: Any) -> None:
    """The same as `higher_of_few`."""
    at, q = located(positives.p, positives.order, lattice), by_quality(positives, lam)
    number = inside = len(q.order)
    ordered, cubics = weights[q.order], np.zeros((np.int64(lattice.high - lattice.low) + 2, 4))
    for end in range(number, 0, -POSITIVES_PER_BLOCK):
        first, whole = max(0, end - POSITIVES_PER_BLOCK), q.upper[end - 1]
        if whole < inside:
            adjoint(_some(at, q.order[whole:inside]), weights, k, cubics)
            inside = whole
        for i in range(first, end):
            v, begin = q.order[i], q.upper[i]
            out[v] = push(q.powers[begin:whole], ordered[begin:whole], q.powers[i])
            out[v] += cubic(cubics[at.cell[at.position[v]]], at.offset[at.position[v]])


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
