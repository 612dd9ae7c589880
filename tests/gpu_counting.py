"""Count what code would ask of a GPU, on a machine that has none: kernel launches, bytes and host syncs, by line.

    with CountGPUWork() as work:
        logits = on_gpu(torch.randn(1000, 80)).requires_grad_()
        loss(logits, on_gpu(labels), on_gpu(quality)).backward()
    assert work.launches <= 12 and not work.syncs, work.report()

`on_gpu` wraps a CPU tensor in one whose ``device`` is cuda:0, so Python code takes its GPU branch, with real numbers.
Each operator that reaches the dispatcher counts as one launch, views and allocations as none, a Triton kernel as one.
An operator may be several kernels on a real device (a large sort, a scan), so the count is a lower bound. Kernels of
Triton run in its interpreter if that is on (TRITON_INTERPRET=1); otherwise they are only counted, and what they would
write is undefined. Under `FakeTensorMode`, where tensors have no data, the same mode counts Triton's launches only.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

import rankwise

CUDA = torch.device("cuda", 0)
ROOT = Path(rankwise.__file__).parent

VIEWS = {
    *("view", "_unsafe_view", "expand", "select", "slice", "t", "transpose", "permute", "unsqueeze", "squeeze"),
    *("as_strided", "alias", "detach", "split", "split_with_sizes", "unbind", "_reshape_alias", "diagonal", "unfold"),
    *("view_as_real", "view_as_complex", "lift_fresh", "movedim", "_conj", "unsafe_split", "unsafe_chunk"),
}
#: Operators that launch nothing by themselves.
FREE = VIEWS | {
    *("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "is_same_size", "set_"),
    *("sym_size", "_local_scalar_dense", "record_stream", "resize_"),
}
#: Operators that make the host wait for the device, because their result's shape or value is needed there.
WAITING = {
    *("nonzero", "_local_scalar_dense", "masked_select", "unique_consecutive", "_unique2", "unique_dim", "bincount"),
    *("equal", "is_nonzero", "histc", "nms", "_linalg_check_errors"),
}
#: They read what they pick, not the whole of their first argument.
PICKING = {"index", "index_select", "gather", "embedding"}


class PretendGPUTensor(Tensor):
    """A CPU tensor that says it is on cuda:0. The dispatcher still takes it for a CPU tensor, so backward runs here."""

    elem: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, elem: Tensor) -> PretendGPUTensor:
        wrapper = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, elem.size(), strides=elem.stride(), storage_offset=elem.storage_offset(), dtype=elem.dtype
        )
        wrapper.elem = elem
        return wrapper

    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def __repr__(self, **_: Any) -> str:
        return f"PretendGPUTensor({list(self.shape)}, {self.dtype})"

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return _to_host(self, "cpu")

    def tolist(self) -> Any:
        return _to_host(self, "tolist").tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        return _to_host(self, "numpy").numpy()

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None, **_: Any) -> Tensor:  # type: ignore[override]
        return torch.tensor(data, dtype=dtype or self.dtype, device=CUDA)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on a pretended GPU tensor outside of CountGPUWork()")


def on_gpu(tensor: Tensor) -> Tensor:
    """The tensor as if it were on cuda:0, detached, sharing its memory."""
    return PretendGPUTensor(tensor.detach())


def on_host(tensor: Tensor) -> Tensor:
    """The CPU tensor within one from `on_gpu` or computed from it, without counting a sync."""
    return tensor.elem if isinstance(tensor, PretendGPUTensor) else tensor


class CountGPUWork(TorchDispatchMode):
    """Counts launches, bytes and host syncs of everything on tensors from `on_gpu`, backward included.

    Attributes:
        kernels: Launches by operator or Triton kernel.
        lines: Launches by line of the package.
        syncs: Host syncs by line and cause, copies between host and device included.
        bytes: Read and written by the operators; a Triton kernel's are not known.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()
        self.syncs: Counter[tuple[str, str]] = Counter()
        self.bytes = 0
        self._patches = ExitStack()

    @property
    def launches(self) -> int:
        """Kernel launches in all."""
        return self.kernels.total()

    def report(self) -> str:
        """Syncs and launches with the lines that ask for them, most first."""
        syncs = [f"  sync {number} x {what} at {line}" for (line, what), number in self.syncs.most_common()]
        lines = [f"  {number} at {line}" for line, number in self.lines.most_common()]
        head = f"{self.launches} launches, {self.syncs.total()} host syncs, {self.bytes / 1e6:.1f} MB"
        return "\n".join([head, *syncs, *lines])

    def __enter__(self) -> CountGPUWork:
        _active.append(self)
        self._patches.enter_context(patch.object(torch.cuda, "_lazy_init", lambda: None))
        for name in ("tensor", "as_tensor", "from_numpy"):
            self._patches.enter_context(patch.object(torch, name, _with_upload(getattr(torch, name))))
        self._patches.enter_context(patch.object(torch.cuda, "synchronize", lambda *_: self.sync("synchronize")))
        self._patches.enter_context(patch.object(Tensor, "to", _to_device(Tensor.to)))
        self._patches.enter_context(patch.object(Tensor, "cuda", lambda tensor, *_, **k: tensor.to(CUDA, **k)))
        for kind in _triton_kernels():
            self._patches.enter_context(patch.object(kind, "run", _counted_kernel(kind.run)))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patches.close()
        _active.remove(self)

    def launch(self, name: str) -> None:
        """Count a launch."""
        self.kernels[name] += 1
        self.lines[_line()] += 1

    def sync(self, cause: str) -> None:
        """Count a host sync."""
        self.syncs[_line(), cause] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.split("::")[1]
        inputs = [a for a in tree_leaves((args, kwargs)) if isinstance(a, Tensor)]
        on_device = any(isinstance(a, PretendGPUTensor) for a in inputs)
        target = torch.device(kwargs["device"]).type if kwargs.get("device") is not None else None
        if target == "cuda":
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        out = func(*tree_map(_unwrapped, args), **tree_map(_unwrapped, kwargs))
        if not on_device and target != "cuda":
            return out
        outputs = [o for o in tree_leaves(out) if isinstance(o, Tensor)]
        self._count(func, name, args, kwargs, inputs, outputs, target)
        if target == "cpu":
            return out
        out = tree_map(lambda o: PretendGPUTensor(o) if type(o) is Tensor else o, out)
        if not on_device or name == "set_":
            return out
        return return_and_correct_aliasing(func, args, kwargs, out)

    def _count(
        self, func: Any, name: str, args: Any, kwargs: Any, inputs: list[Tensor], outputs: list[Tensor], target: Any
    ) -> None:
        between = target == "cpu" or (
            name in ("copy_", "_to_copy") and len({isinstance(i, PretendGPUTensor) for i in inputs}) == 2
        )
        if target == "cuda" and inputs and not any(isinstance(i, PretendGPUTensor) for i in inputs):
            between = True
        if between and not kwargs.get("non_blocking"):
            self.sync("copy to host" if target == "cpu" else "copy to device")
        if name in WAITING or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            self.sync(name)
        if name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        ):
            self.sync(f"{name} by a mask")
        if name in FREE:
            return
        self.launch(name)
        read = inputs[1:] + outputs if name in PICKING else inputs
        written = outputs if name not in ("fill_", "zero_", "copy_") else []
        self.bytes += sum(t.numel() * t.element_size() for t in [*read, *written])


_active: list[CountGPUWork] = []


def _unwrapped(value: Any) -> Any:
    return value.elem if isinstance(value, PretendGPUTensor) else value


def _to_host(tensor: PretendGPUTensor, cause: str) -> Tensor:
    if _active:
        _active[-1].sync(cause)
    return tensor.elem


def _with_upload(real: Callable) -> Callable:
    """torch.tensor and the like: data from the host to the device is a copy that the host waits for."""

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device).type != "cuda" or isinstance(data, PretendGPUTensor):
            return real(data, *args, **kwargs) if device is None else real(data, *args, device=device, **kwargs)
        _active[-1].sync("copy to device")
        _active[-1].launch("copy to device")
        return on_gpu(real(data, *args, **kwargs))

    return made


def _to_device(real: Callable) -> Callable:
    """``Tensor.to``, which would not notice that a tensor is to move: to the dispatcher all are on the CPU."""

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        devices = [
            a for a in [*args, *kwargs.values()] if isinstance(a, (str, int, torch.device)) and type(a) is not bool
        ]
        target = torch.device(devices[0]).type if devices else None
        if target == "cpu" and isinstance(tensor, PretendGPUTensor):
            return _to_host(tensor, "copy to host").to(*args, **kwargs)
        if target == "cuda":
            waits = not (kwargs.get("non_blocking") or True in args)
            args = tuple(a for a in args if isinstance(a, torch.dtype))
            kwargs = {name: value for name, value in kwargs.items() if name in ("dtype", "copy", "memory_format")}
            if not isinstance(tensor, PretendGPUTensor):
                if waits:
                    _active[-1].sync("copy to device")
                _active[-1].launch("copy to device")
                tensor = on_gpu(tensor)
        return real(tensor, *args, **kwargs) if args or kwargs else tensor

    return to


def _triton_kernels() -> list[type]:
    """The classes whose ``run`` launches a Triton kernel: none where Triton is not installed."""
    try:
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction
    except ImportError:
        return []
    return [JITFunction, InterpretedFunction]


def _counted_kernel(real: Callable) -> Callable:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        _active[-1].launch(self.fn.__name__)
        interpreted = type(self).__name__ == "InterpretedFunction"
        if interpreted and any(isinstance(a, PretendGPUTensor) for a in tree_leaves(args)):
            with torch.utils._python_dispatch._disable_current_modes():
                return real(self, *tree_map(_unwrapped, args), **tree_map(_unwrapped, kwargs))
        return None

    return run


def _line() -> str:
    """The innermost line of the package that is being executed, as "rankwise/file.py:12"."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            return f"rankwise/{path.relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside of the package, or autograd's own backward"
