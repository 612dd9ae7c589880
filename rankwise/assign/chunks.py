"""Cuts the table of objects × anchors into chunks, so that the full table is never in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

#: How many bytes a piece of the table of objects × anchors may take with all that is computed on it, by type of device.
#: A CPU works fastest on what fits its cache, everything else (the entry "other") on few large pieces.
PAIR_BUDGET: dict[str, int] = {"cpu": 8 << 20, "other": 64 << 20}

#: What one pair costs at most while it is worked on: its IoU with the indices of a tie, or a distance with a sort key.
PAIR_BYTES = 40


def pieces(rows: int, columns: int, device: torch.device) -> Iterator[slice]:
    """Cuts the columns of a table into slices whose pairs keep to :data:`PAIR_BUDGET` (and have at least one column).

    Args:
        rows: Rows of the table, all of which are in every piece.
        columns: Columns of the table.
        device: Where it is computed.
    """
    budget = PAIR_BUDGET.get(device.type, PAIR_BUDGET["other"])
    size = max(1, budget // (PAIR_BYTES * max(rows, 1)))
    for start in range(0, columns, size):
        yield slice(start, min(start + size, columns))
