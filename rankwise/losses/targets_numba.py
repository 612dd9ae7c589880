"""The positives among dense targets, one per entry, in one pass on all threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankwise.jit import compiled
from rankwise.pairsums.engines.numba.passes import INTEGERS
from rankwise.pairsums.spec import ROUNDING
from rankwise.threads import in_parts

#: Targets that are compared with zero at once.
TARGETS_PER_BLOCK = 64

#: A thread gets at least so many targets.
MIN_TARGETS_PER_THREAD = 1 << 16


def positive_targets(targets: Tensor, counted: Tensor | None) -> tuple[Tensor, Tensor, Tensor] | None:
    """Rows and classes of the targets above 0, ascending, int64 [P], and these targets, at most 1, [P].

    None if a target is NaN or outside [0, 1].

    Args:
        targets: float32 or float64 on a CPU, contiguous, [A, C].
        counted: Which entries are read, contiguous bool [A, C], or [A, 1] for whole rows; None for all.
    """
    values = targets.view(-1).numpy()
    bits = values.view(INTEGERS[values.itemsize][0])
    kept = np.zeros(0, np.bool_) if counted is None else counted.view(-1).numpy()
    entries = 1 if counted is None else targets.shape[1] // counted.shape[1]

    def work(begin: int, end: int) -> Any:
        return _positive_targets(values, bits, begin, end, targets.shape[1], kept, entries)

    *arrays, faults = zip(*in_parts(work, values.size, MIN_TARGETS_PER_THREAD), strict=True)
    if any(faults):
        return None
    rows, classes, quality = (torch.from_numpy(np.concatenate(parts)) for parts in arrays)
    return rows, classes, quality


@compiled
def _any(bits: Any) -> Any:
    """Whether any is not zero; without a way out of the loop, which is then one over vectors."""
    found = bits[0]
    for k in range(bits.size):
        found |= bits[k]
    return found != 0


@compiled
def _positive_targets(
    values: Any, bits: Any, begin: Any, end: Any, columns: Any, counted: Any, entries: Any
) -> tuple[Any, Any, Any, Any]:
    """Rows and classes of the targets above 0, these targets, and how many are out of range.

    Args:
        values: All targets, flat.
        bits: The same memory as integers: nearly all are zero, which takes no comparison of numbers to see.
        begin: The first to look at.
        end: One past the last.
        columns: Number of classes.
        counted: Which are read, each flag for some entries in sequence; empty if all are.
        entries: How many entries share a flag.
    """
    blocks, number = np.empty((end - begin) // TARGETS_PER_BLOCK + 1, np.int64), 0
    for first in range(begin, end, TARGETS_PER_BLOCK):
        if _any(bits[first : min(first + TARGETS_PER_BLOCK, end)]):
            blocks[number] = first
            number += 1
    most = number * TARGETS_PER_BLOCK
    rows, classes, quality = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, values.dtype)
    positives = faults = 0
    for first in blocks[:number]:
        for k in range(first, min(first + TARGETS_PER_BLOCK, end)):
            if bits[k] != 0 and (counted.size == 0 or counted[k // entries]):
                if not -ROUNDING <= values[k] <= 1 + ROUNDING:
                    faults += 1
                elif values[k] > 0:
                    row = k // columns
                    rows[positives], classes[positives] = row, k - row * columns
                    quality[positives] = min(values[k], values.dtype.type(1))
                    positives += 1
    return rows[:positives].copy(), classes[:positives].copy(), quality[:positives].copy(), faults
