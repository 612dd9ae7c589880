"""Losses of the focal family on a GPU: value and gradient of all samples in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankwise.pairsums.engines.triton.distances import log1p, sigmoid

BLOCK = 1024


def focal_sums(
    logits: Tensor,
    labels: Tensor,
    target: Tensor | float,
    positive_weight: Tensor | float,
    positive_gamma: float,
    weight: float,
    gamma: float,
    constant_weight: bool,
) -> tuple[Tensor, Tensor]:
    """The sums of `rankwise.losses.samplewise.focal_sum`, without a host sync.

    Args:
        logits: Float32 [A, C], detached.
        labels: int64 [A].
        target: y of each row, read at positives, [A], or one for all.
        positive_weight: Weight of each row, read at positives, [A], or one for all.
        positive_gamma: γ of the positives.
        weight: Weight of the negatives.
        gamma: γ of the negatives.
        constant_weight: Whether p^γ of the negatives is a constant for the gradient.

    Returns:
        The sums over positives and negatives, the number of positives, and the number of invalid logits and labels,
        float64 [4]; and the gradient of the two sums, [A, C].
    """
    logits = logits.contiguous()
    gradient = torch.empty_like(logits)
    if not logits.numel():
        return logits.new_zeros(4, dtype=torch.float64), gradient
    programs = triton.cdiv(logits.numel(), BLOCK)
    partial = logits.new_empty(4, programs)
    focal[(programs,)](
        logits,
        labels.contiguous(),
        target.contiguous() if isinstance(target, Tensor) else logits,
        positive_weight.contiguous() if isinstance(positive_weight, Tensor) else logits,
        gradient,
        partial,
        logits.numel(),
        programs,
        CLASSES=logits.shape[1],
        TARGET=None if isinstance(target, Tensor) else float(target),
        POSITIVE_WEIGHT=None if isinstance(positive_weight, Tensor) else float(positive_weight),
        POSITIVE_GAMMA=float(positive_gamma),
        WEIGHT=float(weight),
        GAMMA=float(gamma),
        CONSTANT_WEIGHT=constant_weight,
        BLOCK=BLOCK,
    )
    return partial.sum(1, dtype=torch.float64), gradient


@triton.jit
def focal(  # type: ignore[no-untyped-def]
    logits,
    labels,
    targets,
    weights,
    gradient,
    partial,
    number,
    programs,
    CLASSES: tl.constexpr,
    TARGET: tl.constexpr,
    POSITIVE_WEIGHT: tl.constexpr,
    POSITIVE_GAMMA: tl.constexpr,
    WEIGHT: tl.constexpr,
    GAMMA: tl.constexpr,
    CONSTANT_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One lane per sample."""
    program = tl.program_id(0).to(tl.int64)
    at = program * BLOCK + tl.arange(0, BLOCK)
    valid = at < number
    row = at // CLASSES
    column = at - row * CLASSES
    label = tl.load(labels + row, mask=valid, other=-1)
    read = label >= 0
    x = tl.load(logits + at, mask=read, other=0.0)
    positive = read & (label == column)
    p, q, e = sigmoid(x)
    rest = log1p(e)
    above, below = tl.maximum(x, 0.0) + rest, tl.maximum(-x, 0.0) + rest  # -log(1 - p) and -log p

    modulation = WEIGHT * tl.exp(-GAMMA * below)
    slope = modulation * (p if CONSTANT_WEIGHT else GAMMA * q * above + p)
    loss = modulation * above

    if TARGET is None:  # noqa: SIM108  Triton compiles only one branch
        y = tl.load(targets + row, mask=positive, other=0.0)
    else:
        y = tl.full(x.shape, TARGET, x.dtype)
    if POSITIVE_WEIGHT is None:
        w = tl.load(weights + row, mask=positive, other=0.0)
    else:
        w = tl.full(x.shape, POSITIVE_WEIGHT, x.dtype)
    lack = y * q - (1.0 - y) * p
    entropy = y * below + (1.0 - y) * above
    if POSITIVE_GAMMA == 0:
        own, pull = w * entropy, -w * lack
    else:
        away = tl.abs(lack)
        nonzero = tl.where(away > 0, away, 1.0)
        w = tl.where(away > 0, w * tl.exp(POSITIVE_GAMMA * tl.log(nonzero)), 0.0)
        w = tl.where(lack == lack, w, lack)  # NaN if the target is NaN
        own = w * entropy
        pull = tl.where(lack > 0, -w, w) * (POSITIVE_GAMMA * entropy * (p * q / nonzero) + away)

    tl.store(gradient + at, tl.where(positive, pull, tl.where(read, slope, 0.0)), mask=valid)
    bad = (read & ~(tl.abs(x) < float("inf"))) | (valid & (column == 0) & ((label < -1) | (label > CLASSES)))
    tl.store(partial + program, tl.sum(tl.where(positive, own, 0.0), 0))
    tl.store(partial + programs + program, tl.sum(tl.where(read & ~positive, loss, 0.0), 0))
    tl.store(partial + 2 * programs + program, tl.sum(positive.to(x.dtype), 0))
    tl.store(partial + 3 * programs + program, tl.sum(bad.to(x.dtype), 0))
