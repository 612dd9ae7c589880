"""Forward and backward of one batch, ranked as a whole even if memory only holds a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rankwise.criterion import Criterion, Losses
from rankwise.errors import SettingsError
from rankwise.files.names import escaped
from rankwise.models import Detector
from rankwise.training.tracking import Stopwatch
from rankwise.types import Batch, Predictions

FIELDS = tuple(field.name for field in fields(Predictions))
DIFFERENTIABLE = ("logits", "boxes", "distribution")


class PlainForward(nn.Module):
    """The detector with its predictions as a plain dict, as Fabric and DDP require."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: Tensor) -> dict[str, Any]:
        predictions = self.detector(images)
        # By name, because vars() of a dataclass is empty under torch.compile.
        return {name: getattr(predictions, name) for name in FIELDS}


def compile_step(model: nn.Module, criterion: Criterion, device: torch.device) -> nn.Module:
    """Compiles the model with torch.compile; on a GPU, also the criterion, in place.

    On a CPU, numba has already compiled the loops of the criterion.
    """
    if device.type != "cpu":
        criterion.compile_losses()
    return torch.compile(model)  # type: ignore[return-value]


@contextmanager
def compile_errors(folder: Path) -> Iterator[None]:
    """Context manager that turns errors of torch.compile, such as a missing C++ compiler, into a SettingsError."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        reason = " ".join(str(error).partition("\n\nSet TORCH")[0].split())[:300]  # without torch's advice on debugging
        raise SettingsError(
            f"--train.compile: torch.compile does not work here ({escaped(reason)})\n"
            f"To continue without it: rankwise train --resume {folder} --train.compile false"
        ) from error


def whole_batch_backward(
    fabric: Fabric,
    model: _FabricModule,
    criterion: Criterion,
    batch: Batch,
    parts: int,
    watch: Stopwatch,
    is_usable: Callable[[Predictions], bool] | None = None,
) -> Losses | None:
    """Computes the gradients of the losses of a batch.

    A loss that is not finite makes every gradient NaN, in all processes once DDP has averaged them. The gradient norm
    then tells all of them to skip the step.

    A ranking loss is not a sum over images. With several parts, all parts first run forward without a graph. The losses
    and their gradients with respect to the predictions are then computed for the whole batch. Finally, each part runs
    forward again and backpropagates its share.

    ``is_usable`` is called once after the forward pass; if it returns false, the step ends and None is returned.
    """
    if parts == 1 or len(batch.targets) == 1:
        with watch.stage("forward"):
            predictions = Predictions(**model(batch.images))
        if is_usable is not None and not is_usable(predictions):
            return None
        losses = _losses(criterion, predictions, batch, watch)
        with watch.stage("backward"):
            fabric.backward(_finite_or_nan(losses.total))
        return losses

    chunks = batch.images.chunk(parts)
    seeds = torch.randint(2**31, (len(chunks),)).tolist()
    with watch.stage("forward"), torch.no_grad(), _still_statistics(model):
        outputs = [_seeded(model, images, seed) for images, seed in zip(chunks, seeds, strict=True)]
    whole = _joined(outputs)
    if is_usable is not None and not is_usable(whole):
        return None
    losses = _losses(criterion, whole, batch, watch)
    with watch.stage("backward"):
        gradients = torch.autograd.grad(_finite_or_nan(losses.total), _differentiable(vars(whole)))
        shares = zip(*(gradient.split([len(images) for images in chunks]) for gradient in gradients), strict=True)
        for number, (images, seed, share) in enumerate(zip(chunks, seeds, shares, strict=True), start=1):
            with fabric.no_backward_sync(model, enabled=number < len(chunks)):
                values = _differentiable(_seeded(model, images, seed))
                fabric.backward(sum((v * g.to(v.dtype)).sum() for v, g in zip(values, share, strict=True)))
    return losses


class Parts:
    """Runs the backward pass of a step in ``accumulate`` parts; 0 starts with one part and doubles it when memory runs
    out.

    A step is only retried with a single process: others would wait for it. ``undo`` restores what the first attempt
    changed.
    """

    def __init__(self, accumulate: int, world_size: int, undo: Callable[[], None], log: Callable[[str], None]) -> None:
        self.count = max(1, accumulate)
        self.grows = accumulate == 0 and world_size == 1
        self.undo, self.log = undo, log

    def backward(self, fabric: Any, model: Any, criterion: Any, batch: Batch, watch: Any, is_usable: Any) -> Any:
        """The same as :func:`whole_batch_backward`, with as many parts as memory needs."""
        while True:
            try:
                return whole_batch_backward(fabric, model, criterion, batch, self.count, watch, is_usable)
            except torch.OutOfMemoryError:
                if not self.grows or self.count >= len(batch.targets):
                    raise
            self.count = min(2 * self.count, len(batch.targets))
            self.undo()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.log(f"GPU memory is too small for a whole batch: batches are now split into {self.count} parts")


def finite(predictions: Predictions) -> Tensor:
    """Whether all predictions are finite, as a scalar. A sum needs one pass and no copy, and keeps NaN and infinity."""
    sums = [value.detach().sum(dtype=torch.float32) for value in _differentiable(vars(predictions))]
    return torch.isfinite(torch.stack(sums).sum())


class Buffers:
    """Saves the buffers of modules before a step, in case the step is skipped: running statistics never recover from a
    NaN."""

    def __init__(self, *modules: nn.Module) -> None:
        self.modules = modules
        self.saved: list[Tensor] = []

    @torch.no_grad()
    def save(self) -> None:
        """Saves the buffers."""
        current = self._current()
        if len(self.saved) != len(current):
            self.saved = [buffer.clone() for buffer in current]
        elif current:
            torch._foreach_copy_(self.saved, current)

    @torch.no_grad()
    def restore(self) -> None:
        """Restores the buffers."""
        if self.saved:
            torch._foreach_copy_(self._current(), self.saved)

    def _current(self) -> list[Tensor]:
        return [buffer for module in self.modules for buffer in module.buffers()]


def _differentiable(predictions: dict[str, Any]) -> list[Tensor]:
    """The predictions, by name, that have a gradient."""
    return [predictions[name] for name in DIFFERENTIABLE if predictions[name] is not None]


def _finite_or_nan(total: Tensor) -> Tensor:
    return total * torch.where(torch.isfinite(total.detach()), 1.0, torch.nan)


def _losses(criterion: Criterion, predictions: Predictions, batch: Batch, watch: Stopwatch) -> Losses:
    try:
        with watch.stage("assign"):
            assignment = criterion.assign(predictions.detach(), batch.targets)
        with watch.stage("loss"):
            return criterion.losses(predictions, batch.targets, assignment)
    except ValueError:
        if bool(finite(predictions)):
            raise
        # The loss refuses predictions that are not finite. The other processes are about to run backward, and this one
        # must join them: with NaN, so that all of them skip the step.
        values = _differentiable(vars(predictions))
        return Losses({"ranking": sum((value.sum() for value in values), values[0].new_zeros(())) * torch.nan})


def _seeded(model: _FabricModule, images: Tensor, seed: int) -> dict[str, Any]:
    """Forward pass with reproducible random numbers, for the second run."""
    torch.manual_seed(seed)
    return model(images)


def _joined(outputs: list[dict[str, Any]]) -> Predictions:
    """The concatenated predictions of all parts, detached."""

    def join(name: str) -> Tensor | None:
        values = [output[name] for output in outputs]
        return None if values[0] is None else torch.cat(values).detach().requires_grad_()

    logits, boxes = join("logits"), join("boxes")
    assert logits is not None
    assert boxes is not None
    return replace(Predictions(**outputs[0]), logits=logits, boxes=boxes, distribution=join("distribution"))


@contextmanager
def _still_statistics(model: nn.Module) -> Iterator[None]:
    """Batch norms normalize as in training but do not update their running statistics."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
