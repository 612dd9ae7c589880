"""GIoU loss and paired IoU against torchvision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.ops import box_iou, generalized_box_iou_loss

from rankwise.boxes import giou_loss, paired_iou


def pairs(count: int = 3000) -> tuple[Tensor, Tensor]:
    """Boxes that are apart, touch, overlap, share sides, hold one another, are equal or have no area."""
    generator = torch.Generator().manual_seed(0)
    corner = torch.randint(0, 8, (2, count, 2), generator=generator).double()
    boxes = torch.cat([corner, corner + torch.randint(0, 5, (2, count, 2), generator=generator)], -1)
    boxes[:, count // 2 :] += torch.rand(2, count - count // 2, 4, generator=generator)
    return boxes[0], boxes[1]


def with_gradient(loss, boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    boxes, others = boxes.clone().requires_grad_(), others.clone().requires_grad_()
    value = loss(boxes, others)
    value.square().sum().backward()
    return value.detach(), boxes.grad, others.grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_giou_loss_and_its_gradients_equal_torchvision(dtype: torch.dtype) -> None:
    boxes, others = (one.to(dtype) for one in pairs())
    found = with_gradient(giou_loss, boxes, others)
    expected = with_gradient(generalized_box_iou_loss, boxes, others)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert found[0].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert dtype == torch.float16 or all(one.isfinite().all() for one in found)
    assert len(giou_loss(boxes[:0], others[:0])) == 0


def test_paired_iou_is_the_diagonal_of_the_table() -> None:
    boxes, others = (one.float() for one in pairs(300))
    real = ((boxes[:, 2:] > boxes[:, :2]) & (others[:, 2:] > others[:, :2])).all(1)
    found = paired_iou(boxes, others)
    assert torch.equal(found[real], box_iou(boxes, others).diagonal()[real])
    assert (found[~real] == 0).all()
