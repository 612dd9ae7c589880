"""Prefetching to a GPU, and messages between the hosts of processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from rankwise import distributed
from rankwise.training.prefetch import Prefetcher
from rankwise.types import Batch

CUDA = torch.device("cuda")


class Images:
    """Stands for a batch's images; writes down what is done with them."""

    def __init__(self, number: int, log: list[str], streams: list[str]) -> None:
        self.number, self.log, self.streams = number, log, streams

    def pin_memory(self) -> Images:
        self.log.append(f"pin {self.number}")
        return self

    def to(self, device: torch.device, non_blocking: bool) -> Images:
        kind = "without waiting" if non_blocking else "waiting"
        self.log.append(f"copy {self.number} to {device} {kind} on {self.streams[-1]}")
        return self

    def record_stream(self, stream: SimpleNamespace) -> None:
        self.log.append(f"{self.number} is used on {stream.name}")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """A log of calls, and the stack of streams; the compute stream is the current one."""
    log, stack = [], ["compute"]

    def current(_: torch.device) -> SimpleNamespace:
        return SimpleNamespace(name=stack[-1], wait_stream=lambda other: log.append(f"{stack[-1]} waits for {other}"))

    @contextmanager
    def inside(stream: str | None) -> Iterator[None]:
        stack.append(stream or stack[-1])
        yield
        stack.pop()

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: "copies")
    monkeypatch.setattr(torch.cuda, "stream", inside)
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    return log, stack


def test_the_next_batch_is_copied_on_a_separate_stream(streams) -> None:
    log, stack = streams
    batches = Prefetcher(iter([Batch(Images(n, log, stack), []) for n in range(3)]), CUDA)
    first = batches.next()
    assert first.images.number == 0
    copied = "copy 0 to cuda without waiting on copies"
    assert log == [copied, "compute waits for copies", "0 is used on compute"]
    log.clear()
    batches.look_ahead()
    batches.look_ahead()  # one is enough
    assert log == ["copy 1 to cuda without waiting on copies"]
    log.clear()
    assert batches.next().images.number == 1
    assert log == ["compute waits for copies", "1 is used on compute"]
    assert batches.next().images.number == 2
    assert isinstance(batches.next(), StopIteration)


def test_errors_of_prefetching_are_returned_in_place_of_the_batch(streams) -> None:
    def broken() -> Iterator[Batch]:
        raise OSError("the disk is gone")
        yield

    batches = Prefetcher(broken(), CUDA)
    batches.look_ahead()
    assert str(batches.next()) == "the disk is gone"


def test_nothing_is_prefetched_on_a_cpu() -> None:
    source = iter([Batch(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), [])])
    batches = Prefetcher(source, torch.device("cpu"), channels_last=True)
    batches.look_ahead()
    assert batches._next is None
    assert batches.next().images.is_contiguous(memory_format=torch.channels_last)


def test_a_batch_is_pinned_as_a_whole() -> None:
    log: list[str] = []
    Batch(Images(4, log, []), []).pin_memory()
    assert log == ["pin 4"]


def test_host_messages_of_gpu_processes_use_a_gloo_group(monkeypatch) -> None:
    made, sent = [], []
    backend = SimpleNamespace(name="nccl")
    fake = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_world_size=lambda: 2,
        get_backend=lambda: backend.name,
        new_group=lambda backend: made.append(backend) or f"group {len(made)}",
        all_reduce=lambda tensor, operation, group: sent.append((tensor.device.type, tensor.tolist(), group)),
        ReduceOp=SimpleNamespace(MAX="max", MIN="min"),
        group=SimpleNamespace(WORLD="first"),
    )
    monkeypatch.setattr(distributed, "distributed", fake)
    monkeypatch.setattr(distributed, "_host", None)
    assert distributed.all_reduce_any(True, False) == [True, False]
    distributed.all_reduce_any(False, False)
    assert made == ["gloo"]
    assert sent == [("cpu", [1, 0], "group 1"), ("cpu", [0, 0], "group 1")]
    fake.group.WORLD = "second"  # another process group
    distributed.all_reduce_any(True)
    assert sent[-1] == ("cpu", [1], "group 2")
    backend.name = "gloo"  # the processes' own group takes tensors of the host
    distributed.all_reduce_any(True)
    assert sent[-1] == ("cpu", [1], None)
    assert made == ["gloo", "gloo"]
