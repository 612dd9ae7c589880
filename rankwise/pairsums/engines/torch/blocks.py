"""Samples that are worked on at once."""

from __future__ import annotations

from torch import Tensor

#: Samples whose temporaries stay in a CPU's cache.
SAMPLES_PER_BLOCK = 1 << 16

#: On other devices at most so many blocks: memory for temporaries is then a few times that of the logits' share.
MAX_BLOCKS = 8


def blocks(values: Tensor) -> list[slice]:
    """Parts of the values to work on one after the other."""
    step = SAMPLES_PER_BLOCK if values.device.type == "cpu" else max(SAMPLES_PER_BLOCK, -(-len(values) // MAX_BLOCKS))
    return [slice(start, min(start + step, len(values))) for start in range(0, len(values), step)]
