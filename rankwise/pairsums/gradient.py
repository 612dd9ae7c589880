"""A loss whose gradient is given, not derived: the error-driven update of the ranking losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankwise.pairsums.base import PairSums


def error_driven(
    logits: Tensor, loss: Tensor, pushed: Sequence[tuple[PairSums, Tensor]], place: Tensor, gradient: Tensor
) -> Tensor:
    """The loss with this gradient: what it gives each negative is only read back from the sums when backward runs.

    Args:
        logits: The logits that the gradient goes to, any shape and floating type.
        loss: The value, a detached scalar.
        pushed: Sums over pairs with a weight for each positive, [P]: a negative v gets Σ_u weights_u · rank(x_v - p_u).
        place: Where the positives are in the flat logits, int64 [P]; -1 for those of another process.
        gradient: The positives' gradient, [P].
    """
    result: Tensor = _ErrorDriven.apply(logits, loss.to(_working(logits.dtype)), pushed, place, gradient)
    return result


class _ErrorDriven(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, loss: Tensor, pushed: Any, place: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(logits)  # kept only so that a change in place is noticed: the sums read the same memory
        ctx.pushed, ctx.place, ctx.gradient = pushed, place, gradient
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        (logits,) = ctx.saved_tensors
        working = _working(logits.dtype)
        covered = sum(sums.fills for sums, _ in ctx.pushed) == logits.numel()
        out = (torch.empty if covered else torch.zeros)(logits.numel(), dtype=working, device=logits.device)
        copies = 1
        for sums, weights in ctx.pushed:
            copies = sums.copies
            sums.read_back(weights * (outer * copies), out)
        mine = ctx.place >= 0
        out[ctx.place[mine]] = (ctx.gradient * (outer * copies)).to(working)[mine]
        return out.view(logits.shape).to(logits.dtype), None, None, None, None


def _working(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
