"""Quality focal, varifocal and generalized focal loss against the formulas of their papers."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rankwise.losses import GeneralizedFocalLoss, PositiveBoxes, QualityFocalLoss, VarifocalLoss


def scene(rows: int = 300, classes: int = 7, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, classes, dtype=torch.float64, generator=generator)
    labels = torch.randint(-1, classes + 1, (rows,), generator=generator)
    return logits.requires_grad_(), labels, torch.rand(rows, dtype=torch.float64, generator=generator)


def targets(logits: Tensor, labels: Tensor, quality: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Positives [A, C], targets [A, C] and kept samples [A, 1], as plainly as can be."""
    classes = logits.shape[1]
    positive = F.one_hot(labels.clamp(min=0), classes + 1)[:, :classes].bool() & (labels >= 0)[:, None]
    return positive, positive * quality[:, None], (labels >= 0)[:, None]


def quality_focal(logits: Tensor, labels: Tensor, quality: Tensor, beta: float) -> Tensor:
    positive, target, kept = targets(logits, labels, quality)
    p = logits.sigmoid()
    entropy = -(target * p.log() + (1 - target) * (1 - p).log())
    return ((target - p).abs() ** beta * entropy * kept).sum() / positive.sum().clamp(min=1)


def varifocal(logits: Tensor, labels: Tensor, quality: Tensor, alpha: float, gamma: float) -> Tensor:
    positive, target, kept = targets(logits, labels, quality)
    p = logits.sigmoid()
    entropy = -(target * p.log() + (1 - target) * (1 - p).log())
    weight = torch.where(positive, target, alpha * p**gamma)
    # The weight of negatives is part of the loss that is differentiated.
    return (weight * entropy * kept).sum() / positive.sum().clamp(min=1)


def assert_same(loss: Tensor, expected: Tensor, logits: Tensor) -> None:
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-12)
    got, wanted = torch.autograd.grad(loss, logits)[0], torch.autograd.grad(expected, logits)[0]
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("beta", [2.0, 1.0, 0.0])
def test_quality_focal_follows_the_formula(beta):
    logits, labels, quality = scene()
    expected = quality_focal(logits, labels, quality, beta)
    assert_same(QualityFocalLoss(beta)(logits, labels, quality), expected, logits)


@pytest.mark.parametrize(("alpha", "gamma"), [(0.75, 2.0), (0.3, 1.5)])
def test_varifocal_follows_the_formula(alpha, gamma):
    logits, labels, quality = scene()
    expected = varifocal(logits, labels, quality, alpha, gamma)
    assert_same(VarifocalLoss(alpha, gamma)(logits, labels, quality), expected, logits)


def test_a_score_equal_to_its_quality_has_no_quality_focal_gradient():
    quality = torch.tensor([0.7])
    logits = torch.logit(quality).view(1, 1).requires_grad_()
    QualityFocalLoss()(logits, torch.tensor([0]), quality).backward()
    assert logits.grad.abs().max() < 1e-6


def boxes_with_distribution(positives: int = 6, bins: int = 8) -> PositiveBoxes:
    generator = torch.Generator().manual_seed(3)
    return PositiveBoxes(
        errors=torch.rand(positives, generator=generator, dtype=torch.float64).requires_grad_(),
        weights=torch.rand(positives, generator=generator, dtype=torch.float64),
        distribution=torch.randn(positives, 4, bins + 1, generator=generator).requires_grad_(),
        distances=bins * torch.rand(positives, 4, generator=generator),
    )


def test_generalized_focal_adds_the_distribution_focal_loss_to_the_box_loss():
    logits, labels, quality = scene()
    loss = GeneralizedFocalLoss()
    boxes = boxes_with_distribution()
    expected = 0.0
    for box in range(6):
        share = boxes.distribution[box].double().softmax(-1)
        sides = []
        for side in range(4):
            y = float(boxes.distances[box, side])
            i = int(y)
            sides.append(-((i + 1 - y) * share[side, i].log() + (y - i) * share[side, i + 1].log()))
        both = boxes.errors[box] + 0.125 * torch.stack(sides).mean()
        expected = expected + boxes.weights[box] * both / boxes.weights.sum()
    got = loss.box_loss(boxes, loss.outcome(logits, labels, quality))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)
    for tensor in (boxes.errors, boxes.distribution):
        actual = torch.autograd.grad(got, tensor, retain_graph=True)[0]
        wanted = torch.autograd.grad(expected, tensor, retain_graph=True)[0]
        torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-7)


def test_distances_outside_the_bins_are_clamped():
    loss = GeneralizedFocalLoss()
    logits, labels, quality = scene()
    outcome = loss.outcome(logits, labels, quality)
    boxes = boxes_with_distribution(positives=2)
    beyond = PositiveBoxes(boxes.errors, boxes.weights, boxes.distribution, torch.full((2, 4), 99.0))
    last = PositiveBoxes(boxes.errors, boxes.weights, boxes.distribution, torch.full((2, 4), 8.0))
    torch.testing.assert_close(loss.box_loss(beyond, outcome), loss.box_loss(last, outcome))


def test_generalized_focal_scores_as_quality_focal():
    logits, labels, quality = scene()
    ours, plain = GeneralizedFocalLoss()(logits, labels, quality), QualityFocalLoss()(logits, labels, quality)
    torch.testing.assert_close(ours, plain)


def test_generalized_focal_says_which_head_it_needs():
    logits, labels, quality = scene()
    loss = GeneralizedFocalLoss()
    with pytest.raises(ValueError, match="bins"):
        loss.box_loss(PositiveBoxes(torch.ones(2), torch.ones(2)), loss.outcome(logits, labels, quality))


@pytest.mark.parametrize("loss", [QualityFocalLoss(), VarifocalLoss()])
def test_missing_quality_is_an_error_that_says_so(loss):
    logits, labels, _ = scene()
    with pytest.raises(ValueError, match="quality"):
        loss(logits, labels)
