"""Muon: orthogonal steps for the weights of layers, AdamW for everything else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: The iteration p ← (a + b·S + c·S²) p, S = p pᵀ, brings singular values near 1; steep at 0, so few steps suffice.
COEFFICIENTS, STEPS = (3.4445, -4.7750, 2.0315), 5
MOMENTUM = 0.95


class Muon(torch.optim.AdamW):
    """AdamW in which parameter groups with ``orthogonal: True`` make orthogonal steps.

    The momentum of a layer, as a matrix with one row per output, is replaced by the nearest matrix with equal singular
    values; its size is that of AdamW's steps, so that learning rate and weight decay mean the same. torch.optim.Muon
    takes no convolutions, and it and timm's compute in bfloat16, which many CPUs can only emulate.

    Muon: An optimizer for hidden layers in neural networks, Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/;
    the size of a step: Muon is Scalable for LLM Training, Liu et al. 2025, https://arxiv.org/abs/2502.16982.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Makes one step."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        layers = [group for group in self.param_groups if group["orthogonal"]]
        kept = [(weight, weight.grad) for group in layers for weight in group["params"]]
        for group in layers:
            self._orthogonal_step(group)
        for weight, _ in kept:
            weight.grad = None  # AdamW skips weights without a gradient
        super().step()
        for weight, gradient in kept:
            weight.grad = gradient
        return value

    def _orthogonal_step(self, group: dict[str, Any]) -> None:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        for weight in weights:
            if not (state := self.state[weight]):  # AdamW expects a step in every state that it loads
                state["momentum"], state["step"] = torch.zeros_like(weight), torch.zeros(())
        momenta, gradients = [self.state[weight]["momentum"] for weight in weights], [weight.grad for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        ahead = torch._foreach_lerp(gradients, momenta, MOMENTUM)
        steps = orthogonalized([value.flatten(1) for value in ahead])
        sizes = [-group["lr"] * 0.2 * math.sqrt(max(step.shape)) for step in steps]
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(
            weights, [step.mul_(size).view(w.shape) for step, size, w in zip(steps, sizes, weights, strict=True)]
        )


def orthogonalized(matrices: list[Tensor]) -> list[Tensor]:
    """Matrices with the same singular vectors and singular values of about 1 (0.7 to 1.2 unless tiny).

    All steps of the iteration are polynomials of the square matrix p pᵀ of the first one, so that only two products
    are with the long side, and layers with equal short sides share the rest.
    """
    tall = [matrix.shape[0] > matrix.shape[1] for matrix in matrices]
    wide = [matrix.mT if high else matrix for matrix, high in zip(matrices, tall, strict=True)]
    wide = [matrix / matrix.norm().clamp(min=1e-12) for matrix in wide]
    by_side: dict[int, list[int]] = {}
    for index, matrix in enumerate(wide):
        by_side.setdefault(len(matrix), []).append(index)
    found: dict[int, Tensor] = {}
    for which in by_side.values():
        factors = _factors(torch.stack([wide[index] @ wide[index].mT for index in which]))
        found |= {index: factor @ wide[index] for index, factor in zip(which, factors, strict=True)}
    return [found[index].mT if high else found[index] for index, high in enumerate(tall)]


def _factors(gram: Tensor) -> Tensor:
    """What all steps of the iteration multiply p with, given p pᵀ, [layers, m, m]."""
    a, b, c = COEFFICIENTS
    one = a * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    factor = None
    for step in range(STEPS):
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c).add_(one)
        factor = polynomial if factor is None else polynomial @ factor
        if step < STEPS - 1:
            gram = polynomial @ gram @ polynomial
    assert factor is not None
    return factor
