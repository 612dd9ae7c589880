"""Compile what the Triton engine launches for GPUs that are not there, and read what it takes of them.

The engine runs on fake tensors whose device is "cuda": nothing is executed, and any operation that needs a value on the
host raises. Its launches are recorded with their arguments, and each kernel is compiled ahead of time for them.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
import triton.backends.nvidia
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from rankwise import distributed
from rankwise.pairsums.engines.triton import TritonEngine
from rankwise.pairsums.spec import RankingSpec, Samples

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
TOOLS = Path(triton.backends.nvidia.__file__).parent / "bin"
POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


class Launch(NamedTuple):
    """A launch of a kernel."""

    kernel: JITFunction
    args: tuple[Any, ...]
    constants: dict[str, Any]
    grid: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.kernel.fn.__module__.rpartition('.')[2]}.{self.kernel.fn.__name__}"


class Usage(NamedTuple):
    """What a compiled kernel takes: registers per thread, spilled ones or bytes, shared memory, kinds of atomics."""

    registers: int
    spills: int
    shared: int
    atomics: frozenset[str]


@contextmanager
def recorded_launches() -> Iterator[list[Launch]]:
    """Launches inside are recorded instead of executed."""
    launches: list[Launch] = []

    def run(self: JITFunction, *args: Any, grid: Any, warmup: bool, **constants: Any) -> None:
        launches.append(Launch(self, args, constants, grid))

    with patch.object(JITFunction, "run", run):
        yield launches


@contextmanager
def two_processes() -> Iterator[None]:
    """As if there were another process, which sends nothing in particular."""
    with (
        patch.object(distributed, "world_size", lambda: 2),
        patch.object(distributed, "all_gather_equal", lambda value: torch.cat([value, value])),
        patch.object(distributed, "all_reduce_sum_", lambda value: None),
    ):
        yield


def launches_of(
    spec: RankingSpec, dtype: torch.dtype = torch.float32, rows: int = 20_000, classes: int = 80
) -> list[Launch]:
    """What forward and backward launch, on fake tensors: an operation that makes the host wait raises.

    The scope "world" is that of two processes.
    """
    engine = TritonEngine()
    with recorded_launches() as launches, two_processes(), FakeTensorMode():
        samples = Samples(
            torch.empty(rows, classes, dtype=dtype, device="cuda"),
            torch.empty(rows, dtype=torch.int64, device="cuda"),
            torch.empty(rows, device="cuda") if spec.needs_quality else None,
            torch.empty(rows, dtype=torch.int64, device="cuda") if spec.scope == "image" else None,
        )
        assert engine.unsupported(spec, samples) is None
        forward = engine.forward(samples, spec)
        gradient = engine.backward(torch.empty((), device="cuda"), samples, forward.saved, spec)
    assert gradient.shape == (rows, classes)
    assert gradient.dtype == dtype
    return launches


def signature(launch: Launch) -> tuple[Any, ...]:
    """What tells compiled versions of a kernel apart."""
    constants = tuple(sorted(launch.constants.items()))
    return (launch.name, tuple(_type(a) for a in launch.args), constants)


def usage(launch: Launch, target: str) -> Usage:
    """Compile a kernel as it was launched for a GPU."""
    names = launch.kernel.arg_names
    types = dict(zip(names, map(_type, launch.args), strict=False)) | dict.fromkeys(launch.constants, "constexpr")
    constants: dict[Any, Any] = {(names.index(name),): value for name, value in launch.constants.items()}
    aligned = {}
    for path, arg in _leaves(launch.args):
        if isinstance(arg, torch.Tensor):
            aligned[path] = [["tt.divisibility", 16]]
        elif _type(arg) == "constexpr":
            constants[path] = arg
    source = ASTSource(launch.kernel, types, constexprs=constants, attrs=aligned)
    compiled = compile(source, target=TARGETS[target])
    if TARGETS[target].backend == "hip":
        text = compiled.asm["amdgcn"]
        found = {key: int(re.search(rf"\.{key}:\s*(\d+)", text)[1]) for key in KEYS}
        atomics = frozenset(re.findall(r"\b(?:global|buffer|flat)_atomic\w+", text))
        return Usage(found["vgpr_count"], found["vgpr_spill_count"], compiled.metadata.shared, atomics)
    atomics = frozenset(re.findall(r"\b(?:red|atom)\.[\w.:]+", compiled.asm["ptx"]))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(compiled.asm["cubin"])
        dump = subprocess.run([TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True).stdout
    registers, stack, _, local = map(int, re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", dump).groups())
    return Usage(registers, stack + local, compiled.metadata.shared, atomics)


KEYS = ("vgpr_count", "vgpr_spill_count")


def _type(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return POINTERS[arg.dtype]
    if isinstance(arg, tuple):
        return type(arg)(*map(_type, arg))
    if arg is None or arg == 1:  # Triton makes a constant of it
        return "constexpr"
    return "fp32" if isinstance(arg, float) else "i32"


def _leaves(args: tuple[Any, ...], path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    for index, arg in enumerate(args):
        if isinstance(arg, tuple):
            yield from _leaves(arg, (*path, index))
        else:
            yield (*path, index), arg
