"""Engines compute ranking losses and their gradients behind one interface. One is chosen per call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, TypeAlias

from torch import Tensor

from rankwise.pairsums.spec import Forward, RankingSpec, Samples

Method: TypeAlias = Literal["fast", "triton", "numba", "torch", "dense"]


class Engine(Protocol):
    """The interface of an engine.

    With the scope "world", positives and sums are those of all processes. Gradients are then multiplied by the number
    of processes, because DDP averages them.
    """

    name: str

    def unsupported(self, spec: RankingSpec, samples: Samples) -> str | None:
        """Why this engine cannot compute it ("it needs a CUDA device, got cpu"), or None if it can.

        Only checks shapes, dtypes and devices: the samples may be fake tensors.
        """

    def forward(self, samples: Samples, spec: RankingSpec) -> Forward:
        """The loss, numbers for the log, and what the backward pass needs."""

    def backward(self, upstream: Tensor, samples: Samples, saved: tuple[Tensor, ...], spec: RankingSpec) -> Tensor:
        """The gradient of the logits, in their shape and dtype.

        Args:
            upstream: The gradient of what follows by the loss, scalar on the samples' device.
            samples: As in the forward pass.
            saved: From the forward pass.
            spec: As in the forward pass.
        """

    def fake(self, samples: Samples, spec: RankingSpec) -> Forward:
        """Empty tensors in the shapes and dtypes that ``forward`` would return, for ``torch.compile``.

        A size that depends on the data is ``torch.library.get_ctx().new_dynamic_size()``.
        """


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


def _torch() -> Engine:
    from rankwise.pairsums.engines.torch import TorchEngine

    return TorchEngine()


def _dense() -> Engine:
    from rankwise.pairsums.engines.dense import DenseEngine

    return DenseEngine()


#: What each engine runs on, and how to get it: its libraries are imported when it is first asked for.
_ENGINES: dict[str, tuple[str, Callable[[], Engine]]] = {
    "triton": ("cuda, rocm", _triton),
    "numba": ("cpu", _numba),
    "torch": ("any", _torch),
    "dense": ("any", _dense),
}
