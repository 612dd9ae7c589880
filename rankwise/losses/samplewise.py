"""What the losses share that add up one term a sample: the sum over the negatives in one pass, and the normaliser."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rankwise.losses.base import world_average
from rankwise.losses.inputs import Samples

#: So many samples are worked on at once on a CPU: the few temporaries of a block then stay in its cache.
BLOCK = 2**17


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
            return gradient, None, None  # a sum of losses passes on ones: one pass over the samples less
        return gradient * upstream, None, None


def with_gradient(logits: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """The scalar ``value`` as a function of ``logits`` with this gradient: no graph and no second pass over them."""
    result: Tensor = _KnownGradient.apply(logits, value.to(logits.dtype), gradient)
    return result


def world_positives(samples: Samples) -> Tensor:
    """The number of positives a process has on average, of at least 1 in all: what sums over samples are divided by."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    one_in_all = 1 / torch.distributed.get_world_size() if distributed else 1
    return world_average(samples.logits.new_tensor(float(len(samples.rows)))).clamp(min=one_in_all)


def row_blocks(samples: Samples) -> tuple[list[slice], list[slice]]:
    """The rows cut into blocks of about ``BLOCK`` samples, on a GPU into one, and the positives of each block."""
    count, classes = samples.logits.shape
    step = max(1, BLOCK // classes) if samples.logits.device.type == "cpu" else max(1, count)
    starts = list(range(0, count, step))
    first = torch.searchsorted(samples.rows, torch.tensor([*starts, count], device=samples.rows.device)).tolist()
    return [slice(start, start + step) for start in starts], list(itertools.starmap(slice, itertools.pairwise(first)))


def focal_sum(
    samples: Samples, gamma: float, weight: float, positive: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum of ``weight`` · p^γ · softplus(x) over the negatives, p = sigmoid(x), and of the positives' own terms.

    The focal, the quality focal and the varifocal loss are this, with different terms for the positives. The gradient
    is computed in the same pass, block by block, since building it by autograd costs several times as much.

    Args:
        samples: The samples.
        gamma: How fast the weight of an easy negative falls.
        weight: What the negatives are multiplied with.
        positive: Gives each positive's term from its logit, [P] to [P].

    Returns:
        The sum over all samples divided by the number of positives (:func:`world_positives`), with the two sums' parts.
    """
    logits, count = samples.logits.detach(), world_positives(samples)
    gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
    total = logits.new_zeros((), dtype=torch.float64)
    kept = (samples.labels >= 0).to(logits.dtype).unsqueeze(1) if samples.has_ignored else None
    for block, mine in zip(*row_blocks(samples), strict=True):
        x = logits[block]
        p, cross_entropy = x.sigmoid(), F.softplus(x)
        slope = torch.sub(1, p, out=gradient[block])
        slope.mul_(cross_entropy).mul_(gamma).add_(p)
        modulation = p.square_() if gamma == 2 else p.pow_(gamma)
        if kept is not None:
            modulation.mul_(kept[block])
        modulation[samples.rows[mine] - block.start, samples.classes[mine]] = 0  # a positive's entry is no negative
        slope.mul_(modulation).mul_(weight / count)
        total += modulation.mul_(cross_entropy).sum()
    with torch.enable_grad():
        x = logits[samples.rows, samples.classes].requires_grad_()
        terms = positive(x)
        (slope,) = torch.autograd.grad(terms.sum(), x)
    gradient[samples.rows, samples.classes] = slope / count
    negatives, positives = weight * total / count, terms.detach().sum(dtype=torch.float64) / count
    loss = with_gradient(samples.logits, negatives + positives, gradient)
    return loss, {"positive": positives.to(logits.dtype), "negative": negatives.to(logits.dtype)}


def negative_regions(samples: Samples, block: slice, mine: slice, p: Tensor, bins: int) -> Tensor:
    """Which of ``bins`` equal parts of [0, 1] the score of each negative of a block is in, flat; others get ``bins``.

    Args:
        samples: The samples.
        block: Rows, as :func:`row_blocks` gives them.
        mine: The positives among these rows.
        p: Scores of the block, [rows, C].
        bins: Number of parts.
    """
    regions = score_region(p, bins)
    if samples.has_ignored:
        regions.masked_fill_((samples.labels[block] < 0).unsqueeze(1), bins)
    regions[samples.rows[mine] - block.start, samples.classes[mine]] = bins
    return regions.flatten()


def score_region(p: Tensor, bins: int) -> Tensor:
    """Which of ``bins`` equal parts of [0, 1] each score is in; int32, since counting and look-up by it are faster."""
    return p.mul(bins).int().clamp_(max=bins - 1)
