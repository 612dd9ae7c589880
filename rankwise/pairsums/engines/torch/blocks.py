"""Blocks of samples, which bound the memory of temporaries."""

from __future__ import annotations

from torch import Tensor

#: Samples per block on a CPU: their temporaries stay in its cache.
SAMPLES_PER_BLOCK = 1 << 16

#: Most blocks on other devices: larger blocks need fewer launches.
MAX_BLOCKS = 8


def blocks(values: Tensor) -> list[slice]:
    """Slices of the values, one per block."""
    step = SAMPLES_PER_BLOCK if values.device.type == "cpu" else max(SAMPLES_PER_BLOCK, -(-len(values) // MAX_BLOCKS))
    return [slice(start, min(start + step, len(values))) for start in range(0, len(values), step)]
