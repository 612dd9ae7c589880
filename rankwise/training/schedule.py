"""Optimiser and learning rate as functions of the settings."""

from __future__ import annotations

import math
from bisect import bisect_right

import torch
from torch import nn

from rankwise.config.settings import OptimizerSettings, ScheduleSettings


def build_optimizer(model: nn.Module, settings: OptimizerSettings, scaled: bool = False) -> torch.optim.Optimizer:
    """The optimiser over all weights that train; norms and biases get no weight decay.

    Args:
        model: Whose weights.
        settings: The recipe's section.
        scaled: Whether gradients come scaled, as in 16-bit training.
    """
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            groups.setdefault(("backbone" in name.split("."), weight.ndim > 1), []).append(weight)
    params = [
        {
            "params": weights,
            "lr": settings.lr * (settings.backbone_lr if backbone else 1.0),
            "weight_decay": settings.weight_decay if decays else 0.0,
        }
        for (backbone, decays), weights in groups.items()
    ]
    # All weights in one pass over each instead of one for every operation; such a step would undo the scale by itself,
    # too late for the gradients to be clipped before.
    fused = None if scaled else True
    if settings.name == "SGD":
        return torch.optim.SGD(params, lr=settings.lr, momentum=settings.momentum, fused=fused)
    return torch.optim.AdamW(params, lr=settings.lr, betas=(settings.momentum, 0.999), fused=fused)


def lr_factor(step: int, settings: ScheduleSettings, steps_per_epoch: int, epochs: int) -> float:
    """The share of the full learning rate at a step, counted from 0.

    Args:
        step: Steps taken so far.
        settings: The schedule.
        steps_per_epoch: Steps in an epoch.
        epochs: Length of the whole training.
    """
    warmup = 1.0
    if step < settings.warmup_steps:
        warmup = settings.warmup_start + (1 - settings.warmup_start) * step / settings.warmup_steps
    if settings.decay == "step":
        return warmup * 0.1 ** bisect_right(settings.milestones, step / steps_per_epoch)
    if settings.decay == "cosine":
        done = step / max(1, steps_per_epoch * epochs)
        return warmup * (settings.final + (1 - settings.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
    return warmup


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> float:
    """Sets every parameter group to its share of its full learning rate; returns the first group's.

    There is no scheduler object whose state a resumed run would have to restore: the rate follows from the step.
    """
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
    return float(optimizer.param_groups[0]["lr"])
