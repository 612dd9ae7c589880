"""Optimizer and learning rate schedule."""

from __future__ import annotations

import math
from bisect import bisect_right

import torch
from torch import nn

from rankwise.config.settings import OptimizerSettings, ScheduleSettings
from rankwise.training.muon import Muon


def build_optimizer(model: nn.Module, settings: OptimizerSettings, scaled: bool = False) -> torch.optim.Optimizer:
    """Creates the optimizer over all trainable weights; norms and biases have no weight decay.

    ``scaled`` says whether gradients are scaled, as in 16-bit training.
    """
    groups: dict[tuple[bool, bool, bool], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            parts = name.split(".")
            # The rows of an output layer are classes or sides of a box, and those of a depthwise convolution are
            # separate channels: orthogonal steps make no sense there.
            hidden = weight.ndim > 1 and weight.shape[1] > 1 and not {"class_output", "box_output"} & {*parts}
            key = "backbone" in parts, weight.ndim > 1, hidden and settings.name == "Muon"
            groups.setdefault(key, []).append(weight)
    params = [
        {
            "params": weights,
            "name": "backbone" if backbone else "head",
            "lr": settings.lr * (settings.backbone_lr if backbone else 1.0),
            "weight_decay": settings.weight_decay if decays else 0.0,
            "orthogonal": orthogonal,
        }
        for (backbone, decays, orthogonal), weights in groups.items()
    ]
    # The fused step makes one pass over the weights instead of one per operation. With scaled gradients it would
    # unscale them itself, too late for clipping.
    fused = None if scaled else True
    if settings.name == "SGD":
        return torch.optim.SGD(params, lr=settings.lr, momentum=settings.momentum, fused=fused)
    kind = Muon if settings.name == "Muon" else torch.optim.AdamW
    return kind(params, lr=settings.lr, betas=(settings.momentum, 0.999), fused=fused)


#: Maximum fraction of a run for warm-up: a short run would end before it reached its full learning rate.
WARMUP_SHARE = 0.1


def lr_factor(step: int, settings: ScheduleSettings, steps_per_epoch: int, steps: int) -> float:
    """The factor on the learning rate at a step, counted from 0."""
    warmup, warmup_steps = 1.0, min(settings.warmup_steps, int(WARMUP_SHARE * steps))
    if step < warmup_steps:
        warmup = settings.warmup_start + (1 - settings.warmup_start) * step / warmup_steps
    done = step / max(1, steps)
    if settings.decay == "step":
        shares = all(milestone < 1 for milestone in settings.milestones)
        return warmup * 0.1 ** bisect_right(settings.milestones, done if shares else step / steps_per_epoch)
    if settings.decay == "cosine":
        return warmup * (settings.final + (1 - settings.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
    return warmup


def unreached(settings: ScheduleSettings, steps_per_epoch: int, steps: int) -> str | None:
    """A warning about milestones beyond the end of the run, or None."""
    epochs = steps / steps_per_epoch
    if settings.decay != "step" or not any(milestone >= max(1, epochs) for milestone in settings.milestones):
        return None
    return (
        f"schedule.milestones {list(settings.milestones)} are epochs, but the run has {epochs:.3g}: later milestones "
        'have no effect. Fractions of the run work for any length: --schedule.milestones "[0.75, 0.9]"'
    )


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Sets the learning rate of every parameter group.

    The rate is a function of the step, so there is no scheduler state to restore.
    """
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def head_lr(optimizer: torch.optim.Optimizer) -> float:
    """The learning rate of the head, as set in the recipe; the backbone has an extra factor."""
    groups = optimizer.param_groups
    return float(next((group for group in groups if group.get("name") != "backbone"), groups[0])["lr"])
