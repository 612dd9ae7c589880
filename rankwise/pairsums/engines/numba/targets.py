"""The positives among dense targets, one per entry, in one pass on all threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankwise.pairsums.engines.numba.jit import compiled
from rankwise.pairsums.engines.numba.passes import flat
from rankwise.threads import in_parts

#: Targets that are compared with zero at once.
TARGETS_PER_BLOCK = 64

#: A thread gets at least so many targets.
MIN_TARGETS_PER_THREAD = 1 << 16


def positive_targets(targets: Tensor, counted: Tensor | None, rounding: float) -> Tensor | None:
    """Flat indices of the targets above 0, ascending, int64 [P]; None if a target is NaN or outside [0, 1].

    Args:
        targets: float32 or float64 on a CPU, contiguous, [A, C].
        counted: Which entries are read, contiguous bool [A, C], or [A, 1] for whole rows; None for all.
        rounding: By how much a target may leave [0, 1].
    """
    values, bits, _ = flat(targets.view(-1).numpy())
    kept = np.zeros(0, np.bool_) if counted is None else counted.view(-1).numpy()
    entries = 1 if counted is None else targets.shape[1] // counted.shape[1]

    def work(begin: int, end: int) -> Any:
        return _positive_targets(values, bits, begin, end, kept, entries, rounding)

    parts = in_parts(work, values.size, MIN_TARGETS_PER_THREAD)
    if any(faults for _, faults in parts):
        return None
    return torch.from_numpy(np.concatenate([where for where, _ in parts]))


@compiled
def _any(bits: Any) -> Any:
    """Whether any is not zero; without a way out of the loop, which is then one over vectors."""
    found = bits[0]
    for k in range(bits.size):
        found |= bits[k]
    return found != 0


@compiled
def _positive_targets(
    values: Any, bits: Any, begin: Any, end: Any, counted: Any, entries: Any, rounding: Any
) -> tuple[Any, Any]:
    """Indices of the targets above 0, and how many are out of range.

    Args:
        values: All targets, flat.
        bits: The same memory as integers: nearly all are zero, which takes no comparison of numbers to see.
        begin: The first to look at.
        end: One past the last.
        counted: Which are read, each flag for some entries in sequence; empty if all are.
        entries: How many entries share a flag.
        rounding: By how much a target may leave [0, 1].
    """
    blocks, number = np.empty((end - begin) // TARGETS_PER_BLOCK + 1, np.int64), 0
    for first in range(begin, end, TARGETS_PER_BLOCK):
        if _any(bits[first : min(first + TARGETS_PER_BLOCK, end)]):
            blocks[number] = first
            number += 1
    where, positives, faults = np.empty(number * TARGETS_PER_BLOCK, np.int64), 0, 0
    for first in blocks[:number]:
        for k in range(first, min(first + TARGETS_PER_BLOCK, end)):
            if bits[k] != 0 and (counted.size == 0 or counted[k // entries]):
                if not -rounding <= values[k] <= 1 + rounding:
                    faults += 1
                elif values[k] > 0:
                    where[positives] = k
                    positives += 1
    return where[:positives].copy(), faults
