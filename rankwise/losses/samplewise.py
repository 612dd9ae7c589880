"""Shared code of losses with one term per sample: the sum over the negatives in one pass, and the normalizer."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rankwise.distributed import all_reduce_mean, world_size
from rankwise.eager import eager, handle, of_handle
from rankwise.losses.base import Loss, Outcome
from rankwise.losses.blocks import Block, over_blocks, total
from rankwise.losses.dense import read_dense
from rankwise.losses.inputs import Samples, flat, read_samples
from rankwise.losses.second_order import unshared


class ValueAndGradient(NamedTuple):
    """The value of a loss with its gradient.

    Attributes:
        loss: Scalar.
        gradient: Gradient of the logits, in their dtype, [A, C].
        parts: Scalars to log, in the order of ``SamplewiseLoss.log``.
        scale: Factor of the gradient, a scalar in its dtype; None for 1.
    """

    loss: Tensor
    gradient: Tensor
    parts: tuple[Tensor, ...]
    scale: Tensor | None = None


class SamplewiseLoss(Loss):
    """A loss with one term per sample, computed by ``compute``."""

    #: Whether it uses the quality of positives.
    needs_quality: ClassVar[bool] = True
    #: Whether it reads values, such as the number of positives, on the host, which then waits for a GPU.
    needs_sync: bool = False
    #: Whether it is a sum over samples divided by the number of positives, so that weights and a normalizer apply.
    takes_weights: ClassVar[bool] = True
    #: Names of the scalars to log.
    log: ClassVar[tuple[str, ...]] = ("positive", "negative")

    def __init__(self) -> None:
        super().__init__()
        self.handle = handle(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.handle = handle(self)  # a copied loss needs its own handle

    @abstractmethod
    def compute(self, samples: Samples) -> ValueAndGradient:
        """The loss of the samples and its gradient, computed without autograd."""

    def reads_image(self, image: Tensor | None) -> bool:
        """Whether it uses the image of each row, if given."""
        return False

    def outcome(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Outcome:
        return self._outcome(None, logits, labels, quality, image)

    def outcome_at(
        self,
        rows: Tensor | None,
        logits: Tensor,
        labels: Tensor,
        quality: Tensor | None = None,
        image: Tensor | None = None,
    ) -> Outcome:
        if type(self).outcome is not SamplewiseLoss.outcome:  # a subclass that overrides outcome
            return self.outcome(logits, labels, quality, image)
        return self._outcome(rows, logits, labels, quality, image)

    def _outcome(
        self, rows: Tensor | None, logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None
    ) -> Outcome:
        if torch.compiler.is_compiling():
            logits, *others = flat(logits, labels, quality, image)
            loss, parts, _ = torch.ops.rankwise.samplewise_loss(logits, *others, self.handle)
            return Outcome(loss, dict(zip(("positives", *self.log), parts.detach().unbind(), strict=True)))
        return self._differentiable(self._read(rows, logits, labels, quality, image))

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
        return self._differentiable(samples if self.reads_image(samples.image) else replace(samples, image=None))

    def _read(
        self, rows: Tensor | None, logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None
    ) -> Samples:
        return read_samples(
            logits,
            labels,
            quality,
            image,
            needs_quality=self.needs_quality,
            needs_image=self.reads_image(image),
            sync=self.needs_sync or logits.device.type == "cpu",
            rows=rows,
        )

    def _differentiable(self, samples: Samples) -> Outcome:
        found = self.compute(samples)
        loss = _KnownGradient.apply(samples.logits, found.loss, found.gradient, found.scale)
        dtype = samples.logits.dtype
        parts = zip(self.log, (part.to(dtype) for part in found.parts), strict=True)
        return Outcome(loss, {"positives": samples.number, **dict(parts)})


@torch.library.custom_op("rankwise::samplewise_loss", mutates_args=())
def _operator(
    logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None, handle: str
) -> list[Tensor]:
    """The loss with this handle, in a compiled graph: loss, scalars to log, gradient."""
    loss: SamplewiseLoss = of_handle(handle)
    samples = loss._read(None, logits, labels, quality, image)
    found = loss.compute(samples)
    gradient = found.gradient if found.scale is None else found.gradient * found.scale
    parts = torch.stack([part.to(samples.logits.dtype) for part in (samples.number, *found.parts)])
    return [found.loss.clone(), parts, gradient]


@_operator.register_fake
def _(logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None, handle: str) -> list[Tensor]:
    dtype = torch.promote_types(logits.dtype, torch.float32)
    number = 1 + len(of_handle(handle).log)
    gradient = torch.empty_like(logits, dtype=dtype, memory_format=torch.contiguous_format)
    return [logits.new_empty((), dtype=dtype), logits.new_empty(number, dtype=dtype), gradient]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(output[2])
    ctx.dtype = inputs[0].dtype


def _operator_backward(ctx: Any, upstream: list[Tensor]) -> tuple[Tensor | None, ...]:
    (gradient,) = ctx.saved_tensors
    return (gradient * upstream[0]).to(ctx.dtype), None, None, None, None


_operator.register_autograd(_operator_backward, setup_context=_setup_context)


class _KnownGradient(torch.autograd.Function):
    """A value whose gradient, up to a factor, was computed together with it."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, logits: Tensor, value: Tensor, gradient: Tensor, scale: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(gradient, scale)  # type: ignore[arg-type]
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        gradient, scale = ctx.saved_tensors  # type: ignore[attr-defined]
        if scale is not None:
            upstream = upstream * scale
        elif upstream.device.type == "cpu" and upstream.item() == 1:
            # The usual case, a sum of losses: returning it unscaled saves a pass over the samples.
            return unshared(gradient), None, None, None
        return gradient * upstream, None, None, None


def with_gradient(samples: Samples, loss: Tensor, gradient: Tensor, *parts: Tensor) -> ValueAndGradient:
    """A loss with its gradient; both are NaN if unchecked samples are invalid."""
    loss = loss.to(samples.logits.dtype)
    return ValueAndGradient(
        loss if samples.validity is None else loss * samples.validity, gradient, parts, samples.validity
    )


def world_positives(samples: Samples, number: Tensor | None = None) -> Tensor:
    """The divisor of sums: the normalizer, or the mean number of positives per process, at least 1 in total."""
    if samples.normalizer is not None:
        return samples.normalizer
    return all_reduce_mean(samples.number if number is None else number).clamp(min=1 / world_size())


def focal_sum(
    samples: Samples,
    gamma: float,
    weight: float,
    target: Tensor | float,
    positive_weight: Tensor | float = 1.0,
    positive_gamma: float = 0.0,
    constant_weight: bool = False,
) -> ValueAndGradient:
    """The sum over all samples for losses of the focal family: cross entropy weighted by the error of the score.

    - negatives: ``weight`` · p^γ · −log(1 − p), p = sigmoid(x)
    - positives: ``positive_weight`` · |y − p|^γ⁺ · −(y · log p + (1 − y) · log(1 − p)), y the target, a constant

    This covers focal, quality focal, varifocal, MAL, IA-BCE and position-supervised loss. The gradient is computed in
    the same pass, block by block or by a GPU kernel, because autograd would take several times as long.

    Args:
        samples: The samples.
        gamma: γ of negatives.
        weight: Weight of the negatives.
        target: y, [P], or one for all positives.
        positive_weight: Weight of the positives, [P], or one for all.
        positive_gamma: γ⁺.
        constant_weight: Whether p^γ of negatives is a constant for the gradient.

    Returns:
        The sum over all samples divided by the number of positives (:func:`world_positives`), with its two parts.
    """
    own = target, positive_weight, positive_gamma
    if samples.is_positive is not None and _has_kernel(samples.logits):
        return _by_kernel(samples, gamma, weight, own, constant_weight)
    logits, count = samples.values, world_positives(samples)
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
    terms, slope = _positive_terms(samples.positives, *own)
    if samples.weight is not None:
        weights = samples.weight[samples.rows, samples.classes]
        terms, slope = terms * weights, slope * weights
    samples.write(gradient, slope / count)
    positives = samples.only_positives(terms).sum(dtype=torch.float64) / count
    return with_gradient(samples, negatives + positives, gradient, positives, negatives)


def _positive_terms(x: Tensor, target: Tensor | float, weight: Tensor | float, gamma: float) -> tuple[Tensor, Tensor]:
    """The terms of the positives and their derivatives, [P] each."""
    p, q = x.sigmoid(), x.neg().sigmoid()
    lack = target * q - (1 - target) * p  # target minus score, exact for targets 0 and 1
    entropy = target * F.softplus(x.neg()) + (1 - target) * F.softplus(x)
    if gamma == 0:
        return weight * entropy, -weight * lack
    away = lack.abs()
    nonzero = away.where(away > 0, 1.0)
    # A sample at its target gets no gradient, because a power below 1 has no derivative there.
    weight = (weight * nonzero.pow(gamma)).where(away > 0, 0.0)
    return weight * entropy, -weight * lack.sign() * (gamma * entropy * (p * q / nonzero) + away)


def _has_kernel(logits: Tensor) -> bool:
    return logits.device.type == "cuda" and logits.dtype == torch.float32 and find_spec("triton") is not None


def _by_kernel(
    samples: Samples,
    gamma: float,
    weight: float,
    positives: tuple[Tensor | float, Tensor | float, float],
    constant_weight: bool,
) -> ValueAndGradient:
    from rankwise.losses.focal_triton import focal_sums

    logits = samples.logits.detach()
    sums, gradient = focal_sums(logits, samples.labels, *positives, weight, gamma, constant_weight)
    scale = torch.where(sums[3] > 0, torch.nan, 1.0) / world_positives(samples, sums[2])
    positive, negative, loss = (torch.cat([sums[:2], sums[:2].sum(0, keepdim=True)]) * scale).to(logits.dtype)
    return ValueAndGradient(loss, gradient, (positive, negative), scale.to(logits.dtype))
