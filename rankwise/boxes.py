"""Arithmetic of boxes: areas, IoUs and conversions. Boxes are xyxy in pixels."""

from __future__ import annotations

import torch
from torch import Tensor


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


def distances(boxes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
    """From the anchors' centres to left, top, right and bottom of the boxes, in strides; negative if outside.

    Args:
        boxes: xyxy, [..., 4].
        anchors: xyxy, [..., 4].
        strides: What one unit is in pixels, [...].
    """
    centres, _ = centres_and_sizes(anchors)
    away = torch.cat([centres - boxes[..., :2], boxes[..., 2:] - centres], dim=-1)
    return away / strides[..., None]


def centres_and_sizes(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Centres (x, y) and sizes (width, height) of xyxy boxes [..., 4], each [..., 2]."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, high - low
