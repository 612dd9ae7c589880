"""Samplewise losses on an emulated GPU: the same values as on a CPU, without a host sync."""

from __future__ import annotations

import copy

import pytest
import torch
from gpu_counting import CountGPUWork, on_gpu, on_host
from torch import Tensor

from rankwise import losses
from rankwise.losses import Loss

#: Each with the most launches, forward and backward.
LOSSES: list[tuple[Loss, int]] = [
    (losses.FocalLoss(), 25),
    (losses.FocalLoss(gamma=0.7), 25),
    (losses.QualityFocalLoss(), 32),
    (losses.GeneralizedFocalLoss(beta=1.5), 32),
    (losses.VarifocalLoss(), 32),
    (losses.MALoss(), 33),
    (losses.IABCELoss(), 40),
    (losses.PositionSupervisedLoss(), 50),
    (losses.GHMLoss(), 110),
    (losses.DRLoss(), 120),
]


def scene(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits from tame to wild, ignored rows with what must not be read, quality that is read only at positives."""
    generator = torch.Generator().manual_seed(0)
    logits = 6 * torch.randn(150, 11, generator=generator, dtype=torch.float64) - 3
    labels = torch.randint(-1, 16, (150,), generator=generator).clamp(max=11)
    logits[0], labels[0] = 60.0, 11
    logits[1], labels[1] = 60.0, 3
    logits[2], labels[2] = -60.0, 4
    logits[labels < 0] = torch.nan
    quality = torch.rand(150, generator=generator).where((labels >= 0) & (labels < 11), torch.nan)
    quality[1], quality[2] = 1.0, 0.0
    return logits.to(dtype), labels, quality, torch.arange(150) % 3


def on_cpu(loss: Loss, logits: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    value = loss(leaf, *others)
    value.backward()
    return value.detach(), leaf.grad


def pretended(loss: Loss, logits: Tensor, *others: Tensor, launches: int = 1000) -> tuple[Tensor, Tensor]:
    for name, buffer in loss.named_buffers():
        setattr(loss, name, on_gpu(buffer))
    with CountGPUWork() as work:
        leaf = on_gpu(logits).requires_grad_()
        value = loss(leaf, *map(on_gpu, others))
        value.backward()
    assert not work.syncs, f"{loss}: {work.report()}"
    assert work.launches <= launches, f"{loss}: {work.report()}"
    return on_host(value).detach(), on_host(leaf.grad)


@pytest.mark.parametrize(("loss", "most"), LOSSES, ids=str)
def test_gpu_losses_equal_cpu_without_a_sync(loss: Loss, most: int) -> None:
    for dtype, tolerance in ((torch.float32, 3e-6), (torch.float64, 1e-11)):
        arguments = scene(dtype)
        value, gradient = on_cpu(copy.deepcopy(loss), *arguments)
        found, slope = pretended(copy.deepcopy(loss), *arguments, launches=most if dtype == torch.float32 else 1000)
        torch.testing.assert_close(found, value, rtol=tolerance, atol=tolerance)
        assert (slope - gradient).norm() <= tolerance * gradient.norm(), dtype
        assert not slope[arguments[1] < 0].any()


@pytest.mark.parametrize("loss", [loss for loss, _ in LOSSES], ids=str)
def test_gpu_losses_without_positives_equal_cpu(loss: Loss) -> None:
    logits, labels, quality, image = scene(torch.float32)
    background = torch.where(labels < 0, -1, 11)
    torch.testing.assert_close(
        pretended(copy.deepcopy(loss), logits, background, quality, image),
        on_cpu(copy.deepcopy(loss), logits, background, quality, image),
    )


@pytest.mark.parametrize("loss", [loss for loss, _ in LOSSES], ids=str)
def test_gpu_losses_of_bad_values_are_nan(loss: Loss) -> None:
    logits, labels, quality, image = scene(torch.float32)
    bad, wrong, far = logits.clone(), labels.clone(), quality.clone()
    bad[5, 3], labels[5], wrong[5] = -torch.inf, 11, 11
    wrong[7] = 12
    far[1] = 1.2
    faults = [(bad, labels, quality), (logits, wrong, quality)]
    faults += [(logits, labels, far)] * loss.needs_quality
    for arguments in faults:
        value, gradient = pretended(copy.deepcopy(loss), *arguments, image)
        assert value.isnan()
        assert gradient.isnan().any()
