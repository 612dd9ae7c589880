"""Gradients of every loss are finite, never dropped and never shared; unsupported uses raise an error."""

import pytest
import torch

from rankwise import losses
from rankwise.losses import FocalLoss, Loss, QualityFocalLoss

ALL = sorted(
    (value for value in vars(losses).values() if isinstance(value, type) and issubclass(value, Loss) and value != Loss),
    key=lambda value: value.__name__,
)
GENTLE = {"FocalLoss": {"gamma": 0.5}, "QualityFocalLoss": {"beta": 0.5}, "VarifocalLoss": {"gamma": 0.5}}


@pytest.fixture(params=ALL, ids=lambda value: value.__name__)
def loss(request):
    return request.param(**GENTLE.get(request.param.__name__, {}))


def scene():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 3, generator=generator).requires_grad_()
    labels = torch.full((40,), 3)
    labels[:6] = torch.tensor([0, 1, 2, 0, 1, 2])
    return logits, labels, torch.linspace(0.1, 0.9, 40)


@pytest.mark.parametrize("logit", [0.0, 17.0, -17.0, 110.0, -110.0, 1e4, -1e4])
def test_gradients_are_finite_at_scores_of_0_and_1(loss, logit):
    logits = torch.full((6, 1), logit).requires_grad_()
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    quality = torch.tensor([0.5, 0.0, 1.0, 0.0, 0.0, 0.0])
    value = loss(logits, labels, quality)
    (gradient,) = torch.autograd.grad(value, logits)
    assert bool(torch.isfinite(value))
    assert bool(torch.isfinite(gradient).all())


def test_gentle_powers_have_the_gradients_of_their_formulas():
    x = torch.tensor([[-3.0], [0.5], [2.0], [9.0]], dtype=torch.float64).requires_grad_()
    labels, quality = torch.tensor([0, 0, 1, 1]), torch.tensor([0.3, 0.9, 0.0, 0.0], dtype=torch.float64)
    for loss in (FocalLoss(gamma=0.5), QualityFocalLoss(beta=0.5), QualityFocalLoss(beta=0.0)):
        assert torch.autograd.gradcheck(lambda logits, loss=loss: loss(logits, labels, quality), x)


def test_a_gradient_penalty_is_an_error_and_not_silently_ignored(loss):
    logits, labels, quality = scene()
    value = loss(logits, labels, quality)
    (gradient,) = torch.autograd.grad(value, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        (value + gradient.square().sum()).backward()
    plain = torch.autograd.grad(loss(logits, labels, quality), logits)[0]
    assert torch.equal(gradient, plain)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.func.grad(lambda x: torch.func.grad(lambda y: loss(y, labels, quality))(x).sum())(logits.detach())


def test_changing_a_gradient_in_place_does_not_affect_the_graph(loss):
    logits, labels, quality = scene()
    value = loss(logits * 1, labels, quality)
    (first,) = torch.autograd.grad(value, logits, retain_graph=True)
    expected = first.clone()
    first.mul_(100)
    leaf = loss(logits, labels, quality)
    torch.autograd.grad(leaf, logits, retain_graph=True)[0].zero_()
    assert torch.equal(torch.autograd.grad(value, logits)[0], expected)
    assert torch.equal(torch.autograd.grad(leaf, logits)[0], expected)


def test_functional_gradients_work_and_vmap_says_that_it_does_not(loss):
    logits, labels, quality = scene()
    expected = torch.autograd.grad(loss(logits, labels, quality), logits)[0]
    found = torch.func.grad(lambda x: loss(x, labels, quality))(logits.detach())
    torch.testing.assert_close(found, expected)
    with pytest.raises(RuntimeError, match=r"torch\.vmap cannot batch this loss"):
        torch.vmap(lambda x: loss(x, labels, quality))(logits.detach().expand(2, -1, -1))
