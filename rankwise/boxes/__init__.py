"""Box operations: areas, IoUs and conversions. Boxes are xyxy in pixels."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

#: Avoids 0/0 in the GIoU of boxes without area, as in torchvision.
GIOU_EPSILON = 1e-7


def intersections(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection areas of boxes [R, 4] with other boxes [A, 4], as [R, A]."""
    left, top, right, bottom = boxes.unsqueeze(-1).unbind(1)  # each [R, 1]
    x1, y1, x2, y2 = others.T.contiguous()  # each [A], contiguous, which makes the rows of the table fast
    width = torch.minimum(right, x2).sub_(torch.maximum(left, x1)).clamp_(min=0)
    height = torch.minimum(bottom, y2).sub_(torch.maximum(top, y1)).clamp_(min=0)
    return width.mul_(height)


def table_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """The IoUs of boxes [R, 4] with other boxes [A, 4], as [R, A]; 0 where a box has no area."""
    shared = intersections(boxes, others)
    union = (areas(boxes).unsqueeze(1) + areas(others)).sub_(shared)
    return shared.div_(union)


def paired_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """IoUs of paired boxes, both [..., 4]; bit-identical to :func:`table_iou`."""
    kernels = _kernels(boxes)
    if kernels is not None and boxes.dtype == others.dtype and not boxes.requires_grad and not others.requires_grad:
        return kernels.iou(boxes, others)
    boxes, others = boxes.movedim(-1, 0).contiguous(), others.movedim(-1, 0).contiguous()
    size = (torch.minimum(boxes[2:], others[2:]) - torch.maximum(boxes[:2], others[:2])).clamp_(min=0)
    shared = size[0].mul_(size[1])
    union = (areas(boxes.movedim(0, -1)) + areas(others.movedim(0, -1))).sub_(shared)
    return shared.div_(union)


def giou_loss(boxes: Tensor, others: Tensor) -> Tensor:
    """1 - GIoU of paired boxes, both [..., 4], at least in float32.

    Generalized Intersection over Union, Rezatofighi et al. 2019, https://arxiv.org/abs/1902.09630. Values and gradients
    equal those of ``torchvision.ops.generalized_box_iou_loss``, whose boolean masks make the host wait for a GPU.
    """
    boxes, others = at_least_float32(boxes), at_least_float32(others)
    kernels = _kernels(boxes)
    if kernels is not None and boxes.shape == others.shape and not others.requires_grad:
        loss: Tensor = kernels.GIoULoss.apply(boxes, others.to(boxes.dtype), GIOU_EPSILON)
        return loss
    low, high = boxes.chunk(2, -1)
    other_low, other_high = others.chunk(2, -1)
    size = torch.minimum(high, other_high) - torch.maximum(low, other_low)
    shared = torch.where((size > 0).all(-1), _product(size), 0)
    union = _product(high - low) + _product(other_high - other_low) - shared
    hull = _product(torch.maximum(high, other_high) - torch.minimum(low, other_low))
    return 1 - shared / (union + GIOU_EPSILON) + (hull - union) / (hull + GIOU_EPSILON)


def areas(boxes: Tensor) -> Tensor:
    """Areas of boxes [..., 4], at least 1e-12, so that the IoU of two boxes without area is 0 and not 0/0."""
    width, height = (boxes[..., 2:] - boxes[..., :2]).clamp_(min=0).unbind(-1)
    return (width * height).clamp_(min=1e-12)


def distances(boxes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
    """Distances from the anchor centers to left, top, right and bottom of the boxes, in strides [...]; negative if
    outside."""
    centers, _ = centers_and_sizes(anchors)
    away = torch.cat([centers - boxes[..., :2], boxes[..., 2:] - centers], dim=-1)
    return away / strides[..., None]


def centers_and_sizes(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Centers (x, y) and sizes (width, height) of xyxy boxes [..., 4], each [..., 2]."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, high - low


def at_least_float32(tensor: Tensor) -> Tensor:
    """Converts a tensor to float32, unless it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _product(sizes: Tensor) -> Tensor:
    width, height = sizes.unbind(-1)
    return width * height


def _kernels(boxes: Tensor) -> ModuleType | None:
    """The Triton kernels for boxes on a GPU; not used under torch.compile, which fuses the operations itself."""
    if boxes.device.type != "cuda" or torch.compiler.is_compiling() or find_spec("triton") is None:
        return None
    from rankwise.boxes import kernels

    return kernels
