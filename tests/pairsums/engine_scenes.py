"""Scenes and losses that every engine is judged by."""

import torch
from torch import Tensor

from rankwise.losses import ALRPLoss, APELoss, APLoss, PairwiseError, PELoss, RankSortLoss, Sigmoid, Step

LOSSES = {
    "APE": APELoss,
    "APE by quality": lambda **options: APELoss(lam=5.0, weight_by_quality=True, **options),
    "PE": PELoss,
    "sigmoid": lambda **options: PairwiseError(Sigmoid(3.0), **options),
    "AP": APLoss,
    "adaptive step": lambda **options: PairwiseError(Step(), **options),
    "RankSort": RankSortLoss,
    "aLRP": ALRPLoss,
}

#: Mean and deviation of the negatives' logits, then of the positives'.
STAGES = {
    "beginning": (-4.6, 0.1, -4.6, 0.1),
    "middle": (-6, 1.2, -2, 1.5),
    "end": (-8, 1.5, 0, 1.5),
    "negatives far above": (40, 2, 0, 1),
    "all equal": (-4.6, 0, -4.6, 0),
}


def scene(
    low: float, low_spread: float, high: float, high_spread: float, positives: int = 40, rows: int = 1500
) -> tuple[Tensor, Tensor, Tensor]:
    """Float32 logits, labels with some rows ignored, and quality with some ties."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, 3, generator=generator) * low_spread + low
    labels = torch.full((rows,), 3)
    order = torch.randperm(rows, generator=generator)
    chosen = order[:positives]
    labels[chosen] = torch.randint(3, (positives,), generator=generator)
    labels[order[positives : positives + 20]] = -1
    logits[chosen, labels[chosen]] = torch.randn(positives, generator=generator) * high_spread + high
    quality = torch.rand(rows, generator=generator)
    quality[chosen[::3]] = (quality[chosen[::3]] * 8).round() / 8
    return logits, labels, quality


def run(make, method: str, logits: Tensor, labels: Tensor, quality: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Value, gradient and box weights."""
    leaf = logits.clone().requires_grad_()
    outcome = make(method=method).outcome(leaf, labels, quality)
    return outcome.loss.detach(), torch.autograd.grad(outcome.loss, leaf)[0], outcome.box_weights


def assert_exact(make, method: str, logits: Tensor, labels: Tensor, quality: Tensor) -> None:
    """In float32 each sample's gradient is right to 1e-5, or to 1e-9 of the largest, and the loss to 1e-6."""
    value, gradient, boxes = run(make, method, logits, labels, quality)
    expected, wanted, expected_boxes = run(make, "dense", logits.double(), labels, quality.double())
    assert abs(value.double() - expected) <= 1e-6 * expected
    allowed = (1e-5 * wanted.abs()).clamp(min=1e-9 * float(wanted.abs().max()))
    error = (gradient.double() - wanted).abs()
    assert (error <= allowed).all(), f"off by {float((error / allowed).max()):.1f} times what is allowed"
    if boxes is not None:
        torch.testing.assert_close(boxes.double(), expected_boxes, rtol=1e-5, atol=1e-9)
