"""DR loss against the formula of its paper."""

import math

import pytest
import torch
from torch import Tensor

from rankwise.losses import DRLoss


def scene(rows: int = 200, classes: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(rows, classes, dtype=torch.float64, generator=generator) - 1
    labels = torch.randint(-1, classes + 1, (rows,), generator=generator)
    return logits.requires_grad_(), labels, torch.randint(3, 6, (rows,), generator=generator)


def reference(logits: Tensor, labels: Tensor) -> Tensor:
    classes = torch.arange(logits.shape[1])
    positive = labels[:, None] == classes
    negative = ~positive & (labels >= 0)[:, None]
    p, n = logits[positive].sigmoid(), logits[negative].sigmoid()
    negatives = ((n / (0.1 / math.log(3.5))).softmax(0) * n).sum()
    positives = ((-p).softmax(0) * p).sum() if len(p) else 1.0
    return 4 * torch.log(1 + torch.exp(6 * (negatives - positives + 0.5))) / 6


def assert_same(got: Tensor, expected: Tensor, logits: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=0)
    actual, wanted = torch.autograd.grad(got, logits)[0], torch.autograd.grad(expected, logits)[0]
    torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-13)


def test_dr_follows_the_formula():
    logits, labels, _ = scene()
    assert_same(DRLoss()(logits, labels), reference(logits, labels), logits)


def test_without_positives_dr_compares_with_an_ideal_one():
    logits, labels, _ = scene()
    labels = torch.where(labels >= 0, 5, -1)
    assert_same(DRLoss()(logits, labels), reference(logits, labels), logits)


def test_image_scope_is_the_mean_over_single_images():
    logits, labels, image = scene()
    labels[image == 4] = 5  # one image without positives
    expected = torch.stack([reference(logits[image == i], labels[image == i]) for i in (3, 4, 5)]).mean()
    assert_same(DRLoss(scope="image")(logits, labels, image=image), expected, logits)


def test_image_scope_needs_the_images():
    logits, labels, _ = scene()
    with pytest.raises(ValueError, match="image"):
        DRLoss(scope="image")(logits, labels)
