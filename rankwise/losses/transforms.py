"""Support for ``torch.func.grad`` and similar transforms, whose tensors are wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rankwise.losses.second_order import MESSAGE


def transforming() -> bool:
    """Whether a transform of ``torch.func`` is active; never while a graph is compiled."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


class _UnwrappedCall(torch.autograd.Function):
    """Calls a function with unwrapped logits and returns its value and gradient."""

    @staticmethod
    def forward(logits: Tensor, call: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            value = call(leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
        return value.detach(), gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, second: Tensor | None) -> tuple[Tensor, None]:
        if second is not None:
            raise RuntimeError(MESSAGE)
        (gradient,) = ctx.saved_tensors
        return upstream.to(gradient.dtype) * gradient, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *_: Any) -> Any:
        raise RuntimeError(
            "torch.vmap cannot batch this loss, whose samples are ranked against each other: call it once per batch, "
            "or pass logits [B, A, C], which are ranked per image or together, depending on scope"
        )


def call_unwrapped(call: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """``call(logits)`` with its gradient, for logits wrapped by a transform of ``torch.func``."""
    value: Tensor = _UnwrappedCall.apply(logits, call)[0]
    return value
