"""The learning rate is a function of the step, and the optimizer follows the settings."""

import pytest
import torch
from torch import nn

from rankwise.config.settings import OptimizerSettings, ScheduleSettings
from rankwise.training.schedule import build_optimizer, head_lr, lr_factor, set_lr, unreached


def test_warmup_rises_linearly_from_its_start_to_the_full_rate():
    schedule = ScheduleSettings(warmup_steps=100, warmup_start=0.1, decay="none")
    factors = [lr_factor(step, schedule, 50, 1000) for step in (0, 50, 100, 400)]
    assert factors == pytest.approx([0.1, 0.55, 1.0, 1.0])


def test_step_decay_divides_by_ten_at_each_milestone():
    schedule = ScheduleSettings(warmup_steps=0, decay="step", milestones=(18.0, 22.0))
    factors = [lr_factor(int(epoch * 10), schedule, 10, 240) for epoch in (0, 17.9, 18, 21.9, 22, 23.9)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_cosine_falls_from_one_to_its_final_share():
    schedule = ScheduleSettings(warmup_steps=0, decay="cosine", final=0.1)
    factors = [lr_factor(step, schedule, 10, 100) for step in (0, 50, 100)]
    assert factors == pytest.approx([1.0, 0.55, 0.1])


def test_norms_and_biases_get_no_weight_decay_and_the_backbone_its_own_rate():
    model = nn.ModuleDict(
        {"backbone": nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), "head": nn.Conv2d(2, 1, 1)}
    )
    optimizer = build_optimizer(model, OptimizerSettings("AdamW", lr=0.1, weight_decay=0.5, backbone_lr=0.1))
    found = {id(w): (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for w in g["params"]}
    expected = {
        "backbone.0.weight": (0.01, 0.5),
        "backbone.0.bias": (0.01, 0.0),
        "backbone.1.weight": (0.01, 0.0),
        "backbone.1.bias": (0.01, 0.0),
        "head.weight": (0.1, 0.5),
        "head.bias": (0.1, 0.0),
    }
    for name, weight in model.named_parameters():
        assert found[id(weight)] == pytest.approx(expected[name]), name


def test_setting_the_rate_twice_does_not_compound():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    set_lr(optimizer, 0.1)
    set_lr(optimizer, 0.2)
    assert head_lr(optimizer) == pytest.approx(0.1)


@pytest.mark.parametrize("steps", [40, 100, 4990, 5000, 100_000])
def test_warmup_takes_at_most_a_tenth_of_the_run(steps):
    schedule = ScheduleSettings(warmup_steps=500, decay="none")
    factors = [lr_factor(step, schedule, 10, steps) for step in range(min(steps, 600))]
    assert factors.index(1.0) == min(500, steps // 10)


def test_milestones_below_one_are_shares_of_a_run_of_any_length():
    schedule = ScheduleSettings(warmup_steps=0, decay="step", milestones=(0.75, 0.9))
    for steps in (40, 4000):
        factors = [lr_factor(int(share * steps), schedule, 10, steps) for share in (0.7, 0.75, 0.9)]
        assert factors == pytest.approx([1, 0.1, 0.01])
    assert unreached(schedule, 10, 40) is None


def test_milestones_beyond_the_end_give_a_warning():
    schedule = ScheduleSettings(decay="step", milestones=(8.0, 11.0))
    assert unreached(schedule, 10, 120) is None
    said = unreached(schedule, 10, 100)
    assert said is not None
    assert "the run has 10" in said


def test_the_logged_learning_rate_is_that_of_the_head():
    model = nn.ModuleDict({"backbone": nn.Conv2d(1, 2, 3), "head": nn.Conv2d(2, 1, 1)})
    optimizer = build_optimizer(model, OptimizerSettings(lr=0.1, backbone_lr=0.1))
    set_lr(optimizer, 0.5)
    assert head_lr(optimizer) == pytest.approx(0.05)
