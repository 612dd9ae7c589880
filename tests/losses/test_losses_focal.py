"""Focal loss against torchvision."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import sigmoid_focal_loss

from rankwise.losses import FocalLoss


def reference(logits: Tensor, labels: Tensor, alpha: float, gamma: float) -> Tensor:
    classes = logits.shape[1]
    targets = F.one_hot(labels.clamp(min=0), classes + 1)[:, :classes].to(logits.dtype)
    kept = (labels >= 0)[:, None]
    positives = ((labels >= 0) & (labels < classes)).sum().clamp(min=1)
    return (sigmoid_focal_loss(logits, targets, alpha, gamma) * kept).sum() / positives


@pytest.mark.parametrize(("alpha", "gamma"), [(0.25, 2.0), (0.4, 1.5), (0.5, 0.0)])
@pytest.mark.parametrize(("rows", "classes"), [(4000, 80), (50, 1), (3, 5)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)], ids=["float64", "float32"]
)
def test_focal_equals_torchvision(alpha, gamma, rows, classes, dtype, tolerance):
    torch.manual_seed(0)
    logits = (4 * torch.randn(rows, classes, dtype=dtype)).requires_grad_()
    labels = torch.randint(-1, classes + 1, (rows,))
    loss = FocalLoss(alpha, gamma)(logits, labels)
    expected = reference(logits, labels, alpha, gamma)
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=tolerance)
    got, wanted = torch.autograd.grad(loss, logits)[0], torch.autograd.grad(expected, logits)[0]
    assert (got - wanted).norm() <= tolerance * wanted.norm()


def test_focal_stays_finite_for_huge_logits():
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    loss = FocalLoss()(logits, torch.tensor([1, 2]))
    loss.backward()
    torch.testing.assert_close(loss, torch.tensor(0.75 * 2e4 + 0.25 * 1e4))
    assert logits.grad.isfinite().all()


def test_focal_parts_add_up_to_the_loss():
    torch.manual_seed(0)
    loss = FocalLoss()
    logits, labels = torch.randn(20, 4), torch.randint(0, 5, (20,))
    outcome = loss.outcome(logits, labels)
    torch.testing.assert_close(outcome.parts["positive"] + outcome.parts["negative"], outcome.loss)


def test_focal_rejects_an_impossible_alpha():
    with pytest.raises(ValueError, match="alpha"):
        FocalLoss(alpha=1.5)
