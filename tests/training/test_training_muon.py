"""Muon's steps are orthogonal, as large as AdamW's, and reach further than AdamW's where directions differ in size."""

import copy

import pytest
import torch
from torch import nn

from rankwise.config.settings import OptimizerSettings
from rankwise.models import Detector
from rankwise.models.settings import BackboneSettings, DetectorSettings
from rankwise.training.muon import COEFFICIENTS, Muon, orthogonalized
from rankwise.training.schedule import build_optimizer, set_lr


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (12, 27), (64, 576), (256, 64)])
def test_singular_vectors_stay_and_singular_values_become_one(shape):
    generator = torch.Generator().manual_seed(0)
    u, values, v = torch.linalg.svd(torch.randn(2, *shape, generator=generator), full_matrices=False)
    values = torch.linspace(1, 0.05, values.shape[1]).expand_as(values)
    found = u.mT @ torch.stack(orthogonalized(list(u * values[:, None] @ v * 1e-6))) @ v.mT
    ones = found.diagonal(dim1=1, dim2=2)
    assert ones.min() > 0.6
    assert ones.max() < 1.25
    torch.testing.assert_close(found, torch.diag_embed(ones), rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [(32, 288), (256, 64)])
def test_products_with_the_long_side_are_saved_at_no_loss(shape):
    """Against the iteration as it is published, in float64."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected, (a, b, c) = matrix.double() / matrix.norm(), COEFFICIENTS
    for _ in range(5):
        square = expected @ expected.mT
        expected = a * expected + (b * square + c * square @ square) @ expected
    torch.testing.assert_close(orthogonalized([matrix])[0].double(), expected, rtol=0, atol=1e-4)


def test_a_layer_without_a_gradient_signal_stays():
    assert not orthogonalized([torch.zeros(4, 9)])[0].any()


def settings(name="Muon", **others):
    return OptimizerSettings(name, lr=0.01, weight_decay=0.1, **others)


def test_layers_move_orthogonally_and_the_rest_as_with_adamw():
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8))
    model = nn.ModuleDict({"backbone": backbone, "class_output": nn.Conv2d(8, 3, 3)})
    other, start = copy.deepcopy(model), copy.deepcopy(model)
    for name, module in (("Muon", model), ("AdamW", other)):
        for number, weight in enumerate(module.parameters()):
            weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
        kept = [weight.grad for weight in module.parameters()]
        optimizer = build_optimizer(module, settings(name))
        optimizer.step()
        assert [weight.grad for weight in module.parameters()] == kept
    before, adam = dict(start.named_parameters()), dict(other.named_parameters())
    for name, weight in model.named_parameters():
        if name != "backbone.0.weight":
            torch.testing.assert_close(weight, adam[name], rtol=0, atol=0)
            continue
        step = (weight.detach() - before[name].detach() * (1 - 0.01 * 0.1)).flatten(1) / 0.01
        values = torch.linalg.svdvals(step)
        assert values.max() < 2 * values.min()
        assert step.square().mean().sqrt() == pytest.approx(0.2, rel=0.3)  # Adam's steps are about as large


def test_every_layer_of_a_detector_is_in_one_group():
    torch.manual_seed(0)
    detector = Detector(DetectorSettings(backbone=BackboneSettings("resnet10t", pretrained=False)), ["cat", "dog"])
    optimizer = build_optimizer(detector, settings(backbone_lr=0.5))
    groups = [(group, id(weight)) for group in optimizer.param_groups for weight in group["params"]]
    assert sorted(key for _, key in groups) == sorted(id(w) for w in detector.parameters() if w.requires_grad)
    orthogonal = {key for group, key in groups if group["orthogonal"]}
    by_adam = {name for name, w in detector.named_parameters() if w.ndim > 1 and id(w) not in orthogonal}
    assert by_adam == {"head.class_output.weight", "head.box_output.weight"}


def test_directions_of_very_different_size_are_learned_alike():
    """Inputs of sizes 1 to 1/100: what AdamW hardly sees in so few steps at any learning rate, Muon knows."""
    torch.manual_seed(0)
    x = torch.randn(256, 16) * torch.logspace(0, -2, 16) @ torch.linalg.qr(torch.randn(16, 16))[0]
    target = torch.linalg.qr(torch.randn(16, 16))[0]

    def distance(name, lr, steps=100):
        torch.manual_seed(1)
        model = nn.Linear(16, 16, bias=False)
        optimizer = build_optimizer(model, OptimizerSettings(name, lr=lr, weight_decay=0.0))
        for step in range(steps):
            set_lr(optimizer, 1 - step / steps)
            optimizer.zero_grad()
            (model(x) - x @ target.mT).square().mean().backward()
            optimizer.step()
        return (model.weight - target).norm().item()

    muon, adam = (min(distance(name, lr) for lr in (0.01, 0.05, 0.2)) for name in ("Muon", "AdamW"))
    assert muon < 0.3 * adam


def test_its_state_is_saved_and_loaded():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    optimizers, models = [], []
    for kind in (model, copy.deepcopy(model)):
        models.append(kind)
        optimizers.append(build_optimizer(kind, settings()))

    def step(number):
        for weight in models[number].parameters():
            weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
        optimizers[number].step()

    step(0)
    step(0)
    models[1].load_state_dict(models[0].state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    step(0)
    step(1)
    for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, two)
    assert isinstance(optimizers[1], Muon)
