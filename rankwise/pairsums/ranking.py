"""A ranking loss with its gradient: one engine is chosen per call, in eager mode and under ``torch.compile`` alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankwise.pairsums.engines.dense import DenseEngine
from rankwise.pairsums.engines.torch import TorchEngine
from rankwise.pairsums.messages import bad_labels, bad_numbers, bad_quality
from rankwise.pairsums.spec import ROUNDING, Engine, Forward, Method, RankingSpec, Samples


class Ranked(NamedTuple):
    """A ranking loss.

    Attributes:
        loss: Scalar with a gradient.
        log: Detached scalars by name.
        box_weights: How much each row's box error counts, [A], or None.
    """

    loss: Tensor
    log: dict[str, Tensor]
    box_weights: Tensor | None


def ranking_loss(
    logits: Tensor,
    labels: Tensor,
    quality: Tensor | None,
    image: Tensor | None,
    spec: RankingSpec,
    method: Method = "fast",
    check: bool | None = None,
) -> Ranked:
    """A ranking loss of samples whose shapes and dtypes are right.

    Args:
        logits: Floating point [A, C].
        labels: Integers [A].
        quality: Floating point [A], or None if the loss reads none.
        image: Integers [A], or None unless the scope is "image".
        spec: Which loss.
        method: The engine, or "fast" for the best there is.
        check: Raise a ValueError that says where a bad value is, which on a GPU waits for the device; otherwise bad
            values make the loss NaN and are counted in the log as "faults". None checks on a CPU only.
    """
    check = logits.device.type == "cpu" if check is None else check
    labels = labels.long().contiguous()
    quality = None if quality is None else quality.detach().contiguous()
    image = None if image is None else image.long().contiguous()
    logits = logits.contiguous()
    if torch.compiler.is_compiling():
        loss, log, boxes, *_ = torch.ops.rankwise.ranking_loss(logits, labels, quality, image, spec.key, method, check)
        log, boxes = log.detach(), boxes.detach()
    else:
        samples = Samples(logits.detach(), labels, quality, image)
        engine = choose(method, spec, samples)
        loss, log, boxes = _Ranking.apply(logits, samples, engine, spec, check)
    values = dict(zip(spec.log, log.unbind(), strict=True))
    return Ranked(loss, values, boxes if spec.family == "alrp" else None)


class Listed(NamedTuple):
    """An engine in the list of `engines`.

    Attributes:
        name: The name for ``method``.
        devices: The supported devices.
        missing: What is missing to use it, or None if it is available.
    """

    name: str
    devices: str
    missing: str | None


def engines() -> list[Listed]:
    """All engines, in the order in which ``method="fast"`` tries them."""
    return [Listed(name, devices, _load(name)[1]) for name, (devices, _) in _ENGINES.items()]


def choose(method: Method, spec: RankingSpec, samples: Samples) -> Engine:
    """The engine for a call: the named one, or for "fast" the first in the list that supports it.

    Engines for other devices are not even imported.

    Raises:
        ValueError: If the named engine is not available here or cannot compute this; the message says why.
    """
    device = samples.logits.device.type
    fitting = [name for name, (devices, _) in _ENGINES.items() if devices == "any" or device in devices.split(", ")]
    for name in fitting if method == "fast" else (method,):
        engine, missing = _load(name)
        reason = missing if engine is None else engine.unsupported(spec, samples)
        if engine is not None and reason is None:
            return engine
        if method != "fast":
            raise ValueError(f'method="{name}" is not possible: {reason}. Use method="fast" for another engine')
    raise ValueError(f'no fast engine supports this ({reason}); use method="dense"')


def _load(name: str) -> tuple[Engine | None, str | None]:
    """The engine, or what is missing to use it."""
    try:
        return _ENGINES[name][1](), None
    except ImportError as error:
        return None, str(error)


def _triton() -> Engine:
    from rankwise.pairsums.engines.triton import TritonEngine

    return TritonEngine()


def _numba() -> Engine:
    from rankwise.pairsums.engines.numba import NumbaEngine

    return NumbaEngine()


#: What each engine runs on, and how to make it: triton and numba are only imported when they are needed.
_ENGINES: dict[str, tuple[str, Callable[[], Engine]]] = {
    "triton": ("cuda, rocm", _triton),
    "numba": ("cpu", _numba),
    "torch": ("any", TorchEngine),
    "dense": ("any", DenseEngine),
}


def _forward(samples: Samples, engine: Engine, spec: RankingSpec, check: bool) -> Forward:
    found = engine.forward(samples, spec)
    if check and not math.isfinite(found.loss.item()):
        raise ValueError(_reason(samples, spec))
    return found


def _reason(samples: Samples, spec: RankingSpec) -> str:
    """Why a loss is not finite."""
    logits, labels = samples.logits, samples.labels
    classes = logits.shape[1]
    if not bool(((labels >= -1) & (labels <= classes)).all()):
        return bad_labels(labels, classes)
    read = logits.masked_fill((labels < 0)[:, None], 0)
    if not bool(read.isfinite().all()):
        return bad_numbers("logits", read)
    if samples.quality is not None:
        rows = ((labels >= 0) & (labels < classes)).nonzero().squeeze(1)
        picked = samples.quality[rows]
        if not bool(((picked >= -ROUNDING) & (picked <= 1 + ROUNDING)).all()):
            return bad_quality(picked, rows)
    if spec.scope == "world":
        return "another process was called with bad values; its own message says which"
    return f"the loss overflows {logits.dtype}: logits are as far apart as {float(read.max()) - float(read.min()):g}"


class _Ranking(torch.autograd.Function):
    """The loss in eager mode: a registered operator would take the host several times as long."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, samples: Samples, engine: Engine, spec: RankingSpec, check: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = _forward(samples, engine, spec, check)
        boxes = found.log[:0] if found.box_weights is None else found.box_weights
        ctx.save_for_backward(*samples, *found.saved)  # autograd then notices changes in place
        ctx.engine, ctx.spec = engine, spec
        ctx.mark_non_differentiable(found.log, boxes)
        ctx.set_materialize_grads(False)  # zeros for the log would be made for nothing
        return found.loss, found.log, boxes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        samples, saved = Samples(*ctx.saved_tensors[:4]), ctx.saved_tensors[4:]
        return ctx.engine.backward(upstream, samples, saved, ctx.spec), None, None, None, None


@torch.library.custom_op("rankwise::ranking_loss", mutates_args=())
def _operator(
    logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None, key: str, method: str, check: bool
) -> list[Tensor]:
    spec, samples = RankingSpec.of_key(key), Samples(logits, labels, quality, image)
    found = _forward(samples, choose(method, spec, samples), spec, check)  # type: ignore[arg-type]
    return _flat(found)


@_operator.register_fake
def _(
    logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None, key: str, method: str, check: bool
) -> list[Tensor]:
    spec, samples = RankingSpec.of_key(key), Samples(logits, labels, quality, image)
    return _flat(choose(method, spec, samples).fake(samples, spec))  # type: ignore[arg-type]


def _flat(found: Forward) -> list[Tensor]:
    boxes = found.loss.new_empty(0) if found.box_weights is None else found.box_weights
    return [found.loss, found.log, boxes, *found.saved]


@torch.library.custom_op("rankwise::ranking_loss_backward", mutates_args=())
def _backward_operator(
    upstream: Tensor,
    logits: Tensor,
    labels: Tensor,
    quality: Tensor | None,
    image: Tensor | None,
    saved: list[Tensor],
    key: str,
    method: str,
) -> Tensor:
    spec, samples = RankingSpec.of_key(key), Samples(logits, labels, quality, image)
    return choose(method, spec, samples).backward(upstream, samples, tuple(saved), spec)  # type: ignore[arg-type]


@_backward_operator.register_fake
def _(upstream: Tensor, logits: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(logits)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(*inputs[:4], *output[3:])
    ctx.key, ctx.method = inputs[4], inputs[5]


def _operator_backward(ctx: Any, upstream: list[Tensor]) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    gradient = torch.ops.rankwise.ranking_loss_backward(upstream[0], *saved[:4], list(saved[4:]), ctx.key, ctx.method)
    return gradient, None, None, None, None, None, None


_operator.register_autograd(_operator_backward, setup_context=_setup_context)
