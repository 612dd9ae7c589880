"""Forward and backward of one batch, ranked as a whole even where memory holds only a part of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rankwise.models import Detector
from rankwise.structures import Batch, Predictions
from rankwise.training.criterion import Criterion, Losses
from rankwise.training.tracking import Stopwatch

DIFFERENTIABLE = ("logits", "boxes", "distribution")


class PlainForward(nn.Module):
    """The detector with its predictions as a plain dict, which is what Fabric and DDP can look into.

    Args:
        detector: The detector.
    """

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: Tensor) -> dict[str, Any]:
        return vars(self.detector(images))


def whole_batch_backward(
    fabric: Fabric, model: _FabricModule, criterion: Criterion, batch: Batch, parts: int, watch: Stopwatch
) -> Losses:
    """Adds the gradient of the batch's losses to the weights.

    A ranking loss is no sum over images: with several parts, all run forward without a graph, the losses and their
    gradients with respect to the predictions are those of the whole batch, and each part runs forward again to take
    its share of them back to the weights.

    Args:
        fabric: Precision and processes.
        model: The detector in :class:`PlainForward`, set up by Fabric.
        criterion: The losses.
        batch: Images and targets of this process.
        parts: Into how many parts to take it.
        watch: Gets the time of each part of the step.
    """
    if parts == 1 or len(batch.targets) == 1:
        with watch.part("forward"):
            predictions = Predictions(**model(batch.images))
        losses = _losses(criterion, predictions, batch, watch)
        with watch.part("backward"):
            fabric.backward(losses.total)
        return losses

    chunks = batch.images.chunk(parts)
    seeds = torch.randint(2**31, (len(chunks),)).tolist()
    with watch.part("forward"), torch.no_grad(), _still_statistics(model):
        outputs = [_seeded(model, images, seed) for images, seed in zip(chunks, seeds, strict=True)]
    whole = _joined(outputs)
    losses = _losses(criterion, whole, batch, watch)
    with watch.part("backward"):
        leaves = [value for name in DIFFERENTIABLE if (value := getattr(whole, name)) is not None]
        gradients = torch.autograd.grad(losses.total, leaves)
        shares = zip(*(gradient.split([len(images) for images in chunks]) for gradient in gradients), strict=True)
        for number, (images, seed, share) in enumerate(zip(chunks, seeds, shares, strict=True), start=1):
            with fabric.no_backward_sync(model, enabled=number < len(chunks)):
                output = _seeded(model, images, seed)
                values = [output[name] for name in DIFFERENTIABLE if output[name] is not None]
                fabric.backward(sum((v * g.to(v.dtype)).sum() for v, g in zip(values, share, strict=True)))
    return losses


def _losses(criterion: Criterion, predictions: Predictions, batch: Batch, watch: Stopwatch) -> Losses:
    with watch.part("assign"):
        assignment = criterion.assign(predictions.detach(), batch.targets)
    with watch.part("loss"):
        return criterion.losses(predictions, batch.targets, assignment)


def _seeded(model: _FabricModule, images: Tensor, seed: int) -> dict[str, Any]:
    """Forward with random numbers that come again the second time."""
    torch.manual_seed(seed)
    return model(images)


def _joined(outputs: list[dict[str, Any]]) -> Predictions:
    """The predictions of all parts as one, cut off from the graph."""

    def join(name: str) -> Tensor | None:
        values = [output[name] for output in outputs]
        return None if values[0] is None else torch.cat(values).detach().requires_grad_()

    logits, boxes = join("logits"), join("boxes")
    assert logits is not None
    assert boxes is not None
    return replace(Predictions(**outputs[0]), logits=logits, boxes=boxes, distribution=join("distribution"))


@contextmanager
def _still_statistics(model: nn.Module) -> Iterator[None]:
    """Batch norms normalise as in training but leave their running statistics alone."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
