"""Splits the table of objects × anchors into chunks, so that the full table is never in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

#: Maximum bytes of a chunk of the table of objects × anchors, including temporaries, by device type. A CPU is fastest
#: if chunks fit its cache, other devices (the entry "other") with a few large chunks.
PAIR_BUDGET: dict[str, int] = {"cpu": 8 << 20, "other": 64 << 20}

#: Maximum bytes per pair: its IoU with the indices of a tie, or a distance with a sort key.
PAIR_BYTES = 40


def pieces(rows: int, columns: int, device: torch.device) -> Iterator[slice]:
    """Splits the columns of a table into slices that stay within :data:`PAIR_BUDGET`, with at least one column each."""
    budget = PAIR_BUDGET.get(device.type, PAIR_BUDGET["other"])
    size = max(1, budget // (PAIR_BYTES * max(rows, 1)))
    for start in range(0, columns, size):
        yield slice(start, min(start + size, columns))
