"""Shared code of losses with one term per sample: the sum over the negatives in one pass, and the normalizer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rankwise.distributed import all_reduce_mean, world_size
from rankwise.eager import eager
from rankwise.losses.base import Loss, Outcome
from rankwise.losses.blocks import Block, over_blocks, total
from rankwise.losses.dense import read_dense
from rankwise.losses.inputs import Samples, read_samples
from rankwise.losses.second_order import unshared


class SamplewiseLoss(Loss):
    """A loss with one term per sample, computed by ``of``."""

    #: Whether it uses the quality of positives.
    needs_quality: ClassVar[bool] = True
    #: Whether it is a sum over samples divided by the number of positives, so that weights and a normalizer apply.
    takes_weights: ClassVar[bool] = True

    @abstractmethod
    def of(self, samples: Samples) -> Outcome:
        """The loss of the samples."""

    def reads_image(self, image: Tensor | None) -> bool:
        """Whether it uses the image of each row, if given."""
        return False

    @eager
    def outcome(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Outcome:
        reads = {"needs_quality": self.needs_quality, "needs_image": self.reads_image(image)}
        return self._counted(read_samples(logits, labels, quality, image, **reads))

    @eager
    def dense_outcome(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        mask: Tensor | None = None,
        weight: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Outcome:
        if not self.takes_weights and not (weight is None and normalizer is None):
            raise ValueError(f"{type(self).__name__} has its own weighting; remove weight and normalizer")
        samples = read_dense(logits, targets, mask, weight, normalizer).samples()
        return self._counted(samples if self.reads_image(samples.image) else replace(samples, image=None))

    def _counted(self, samples: Samples) -> Outcome:
        outcome = self.of(samples)
        number = torch.full_like(outcome.loss.detach(), len(samples.rows))
        return replace(outcome, parts={"positives": number, **outcome.parts})


class _KnownGradient(torch.autograd.Function):
    """A value whose gradient was computed along with it."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, logits: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors  # type: ignore[attr-defined]
        if upstream.device.type == "cpu" and upstream.item() == 1:
            return (
                unshared(gradient),
                None,
                None,
            )  # a sum of losses passes on ones: saves a pass
        return gradient * upstream, None, None


def with_gradient(logits: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """The scalar ``value`` as a function of ``logits`` with this gradient: no graph and no second pass over them."""
    result: Tensor = _KnownGradient.apply(logits, value.to(logits.dtype), gradient)
    return result


def world_positives(samples: Samples) -> Tensor:
    """The divisor of sums: by default the mean number of positives per process, at least 1 in total."""
    if samples.normalizer is not None:
        return samples.normalizer
    return all_reduce_mean(samples.logits.new_tensor(float(len(samples.rows)))).clamp(min=1 / world_size())


def focal_sum(
    samples: Samples,
    gamma: float,
    weight: float,
    positive: Callable[[Tensor], Tensor],
    constant_weight: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum of ``weight`` · p^γ · softplus(x) over the negatives, p = sigmoid(x), and of the positives' own terms.

    Focal, quality focal, varifocal, MAL, IA-BCE and position-supervised loss are this, with different terms for the
    positives. The gradient is computed in the same pass, block by block, since building it by autograd costs several
    times as much.

    Args:
        samples: The samples.
        gamma: How strongly easy negatives are down-weighted.
        weight: Factor on the negatives.
        positive: Computes the term of each positive from its logit, [P] to [P].
        constant_weight: Whether p^γ is a constant for the gradient.

    Returns:
        The sum over all samples divided by the number of positives (:func:`world_positives`), with the two sums' parts.
    """
    logits, count = samples.logits.detach(), world_positives(samples)
    gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
    scale = weight / count

    def negatives_of(block: Block) -> Tensor:
        p, cross_entropy = block.logits.sigmoid(), F.softplus(block.logits)
        slope = gradient[block.rows]
        if constant_weight:
            slope.copy_(p)
        else:
            torch.sub(1, p, out=slope).mul_(cross_entropy).mul_(gamma).add_(p)
        modulation = block.only_negatives(p.square_() if gamma == 2 else p.pow_(gamma))
        if block.weight is not None:
            modulation.mul_(block.weight)
        slope.mul_(modulation).mul_(scale)
        return modulation.mul_(cross_entropy).sum()

    negatives = scale * total(over_blocks(samples, negatives_of), like=logits.new_zeros(()))
    terms, slope = _derived(positive, logits[samples.rows, samples.classes])
    if samples.weight is not None:
        weights = samples.weight[samples.rows, samples.classes]
        terms, slope = terms * weights, slope * weights
    gradient[samples.rows, samples.classes] = slope / count
    positives = terms.sum(dtype=torch.float64) / count
    loss = with_gradient(samples.logits, negatives + positives, gradient)
    return loss, {"positive": positives.to(logits.dtype), "negative": negatives.to(logits.dtype)}


def _derived(terms: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Terms, each of one x, and their derivatives; in inference mode, which allows none, zeros instead."""
    if torch.is_inference_mode_enabled():
        return terms(x), torch.zeros_like(x)
    with torch.enable_grad():
        x.requires_grad_()
        values = terms(x)
        (slope,) = torch.autograd.grad(values.sum(), x)
    return values.detach(), slope
