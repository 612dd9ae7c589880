"""IoUs of objects with anchors, a piece at a time: the full table of objects × anchors is never in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

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


def intersections(boxes: Tensor, others: Tensor) -> Tensor:
    """The areas that boxes [R, 4] share with other boxes [A, 4], as [R, A]."""
    left, top, right, bottom = boxes.unsqueeze(-1).unbind(1)  # each [R, 1]
    x1, y1, x2, y2 = others.T.contiguous()  # each [A], and whole in memory: rows of the table are made without strides
    width = torch.minimum(right, x2).sub_(torch.maximum(left, x1)).clamp_(min=0)
    height = torch.minimum(bottom, y2).sub_(torch.maximum(top, y1)).clamp_(min=0)
    return width.mul_(height)


def table_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """The IoUs of boxes [R, 4] with other boxes [A, 4], as [R, A]; 0 where a box has no area."""
    shared = intersections(boxes, others)
    union = (areas(boxes).unsqueeze(1) + areas(others)).sub_(shared)
    return shared.div_(union)


def paired_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """The IoUs of boxes [..., 4] with as many others [..., 4], one by one: the very numbers of :func:`table_iou`."""
    boxes, others = boxes.movedim(-1, 0).contiguous(), others.movedim(-1, 0).contiguous()
    size = (torch.minimum(boxes[2:], others[2:]) - torch.maximum(boxes[:2], others[:2])).clamp_(min=0)
    shared = size[0].mul_(size[1])
    union = (areas(boxes.movedim(0, -1)) + areas(others.movedim(0, -1))).sub_(shared)
    return shared.div_(union)


def areas(boxes: Tensor) -> Tensor:
    """The areas of boxes [..., 4], never quite 0, so that the IoU of two boxes without area is 0 and not 0/0."""
    width, height = (boxes[..., 2:] - boxes[..., :2]).clamp_(min=0).unbind(-1)
    return (width * height).clamp_(min=1e-12)
