"""Samples that are worked on at once."""

from __future__ import annotations

from torch import Tensor

#: Samples whose temporaries stay in a CPU's cache.
BLOCK = 1 << 16

#: On other devices at most so many blocks: memory for temporaries is then a few times that of the logits' share.
MOST_BLOCKS = 8


def blocks(values: Tensor) -> list[slice]:
    """Parts of the values to work on one after the other."""
    step = BLOCK if values.device.type == "cpu" else max(BLOCK, -(-len(values) // MOST_BLOCKS))
    return [slice(start, min(start + step, len(values))) for start in range(0, len(values), step)]
