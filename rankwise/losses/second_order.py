"""Gradients that were computed with the loss: they can be modified in place, but differentiating them is an error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MESSAGE = (
    "the gradient of this loss cannot be differentiated again (a gradient penalty, create_graph=True, or nested "
    "torch.func.grad): it was computed together with the loss, without a graph. Penalize the gradients of another "
    "loss, or detach this one first"
)


def forbid_double_backward(logits: Tensor) -> Tensor:
    """The same logits; differentiating the gradient that flows back through them raises an error.

    Otherwise a gradient penalty would silently be a constant.
    """
    if torch.compiler.is_compiling() or not (isinstance(logits, Tensor) and logits.requires_grad):
        return logits
    same: Tensor = _ForbidDoubleBackward.apply(logits)
    return same


def unshared(gradient: Tensor) -> Tensor:
    """A copy of a gradient that can be modified in place while the graph keeps the original; made when written to."""
    try:
        return torch._lazy_clone(gradient)
    except (AttributeError, RuntimeError):  # an older torch, or memory that torch did not allocate
        return gradient.clone()


class _ForbidDoubleBackward(torch.autograd.Function):
    """Identity. With ``create_graph``, its gradient becomes one that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.save_for_backward(logits)
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            marked: Tensor = _NotDifferentiable.apply(gradient, *ctx.saved_tensors)
            return marked
        return gradient


class _NotDifferentiable(torch.autograd.Function):
    """A gradient as a function of the logits; its derivative raises an error."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, logits: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor, Tensor]:
        raise RuntimeError(MESSAGE)
