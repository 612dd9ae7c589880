"""IoU and GIoU loss on an emulated GPU: the same values as on a CPU, in one launch."""

from __future__ import annotations

import pytest
import torch
from gpu_counting import CountGPUWork, on_gpu, on_host
from test_boxes_giou import pairs

from rankwise.boxes import giou_loss, paired_iou


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gpu_kernels_give_the_same_values_in_one_launch(dtype: torch.dtype) -> None:
    boxes, others = (one.to(dtype) for one in pairs(200))
    leaf = boxes.clone().requires_grad_()
    expected = giou_loss(leaf, others)
    expected.square().sum().backward()
    with CountGPUWork() as work:
        pretended = on_gpu(boxes).requires_grad_()
        found = giou_loss(pretended, on_gpu(others))
        forward = work.launches
        found.square().sum().backward()
        ious = paired_iou(on_gpu(boxes), on_gpu(others))
    assert forward == 1, work.report()
    assert not work.syncs, work.report()
    assert torch.equal(on_host(ious), paired_iou(boxes, others))
    torch.testing.assert_close(on_host(found), expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(on_host(pretended.grad), leaf.grad, rtol=1e-4, atol=1e-5)
