"""Number of processes and collective operations: the only module that uses ``torch.distributed`` once a run has begun.

Everything here also works with a single process and without a process group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, distributed, nn


class StoppedElsewhere(Exception):
    """Another process has stopped the run and reports why."""


#: Whether other processes are ignored for now; see :func:`single_process`.
_ALONE: ContextVar[bool] = ContextVar("alone", default=False)


def is_initialized() -> bool:
    """Whether there is a process group."""
    return distributed.is_available() and distributed.is_initialized() and not _ALONE.get()


@contextmanager
def single_process() -> Iterator[None]:
    """Context manager in which this process acts alone: nothing is exchanged, and the others need not take part."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def world_size() -> int:
    """Number of processes; 1 without torch.distributed."""
    return distributed.get_world_size() if is_initialized() else 1


def rank() -> int:
    """Index of this process; 0 without torch.distributed."""
    return distributed.get_rank() if is_initialized() else 0


def all_reduce_mean(value: Tensor) -> Tensor:
    """The mean of a tensor over all processes, detached.

    A sum divided by this mean, then averaged over processes as DDP does, is the mean over the samples of all processes.
    """
    if not is_initialized():
        return value.detach()
    value = value.detach().clone()
    distributed.all_reduce(value)
    return value / distributed.get_world_size()


def all_reduce_any(*flags: bool) -> list[bool]:
    """For each flag, whether any process has set it, in one message; every process must call it."""
    if world_size() == 1:
        return list(flags)
    tensor = torch.tensor(flags, dtype=torch.int32)
    distributed.all_reduce(tensor, distributed.ReduceOp.MAX, group=_host_group())
    return [bool(flag) for flag in tensor.tolist()]


def all_reduce_sum_(value: Tensor) -> None:
    """Sums a tensor over all processes, in place, without waiting for the device."""
    if is_initialized():
        distributed.all_reduce(value)


def all_gather_equal(value: Tensor) -> Tensor:
    """Concatenates the tensors [n] of all processes, without waiting for the device."""
    if world_size() == 1:
        return value
    gathered = value.new_empty(world_size() * value.numel())
    distributed.all_gather_into_tensor(gathered, value)
    return gathered


def all_gather_rows(rows: Tensor) -> list[Tensor]:
    """The rows of all processes, [n_r, k] each, sorted by rank; a process may have none."""
    if world_size() == 1:
        return [rows]
    number = torch.tensor([len(rows)], device=rows.device)
    numbers = [torch.empty_like(number) for _ in range(world_size())]
    distributed.all_gather(numbers, number)
    lengths = torch.cat(numbers).tolist()
    padded = rows.new_zeros(max(lengths), rows.shape[1])
    padded[: len(rows)] = rows
    everyone = [torch.empty_like(padded) for _ in lengths]
    if max(lengths):
        distributed.all_gather(everyone, padded)
    return [part[:length] for part, length in zip(everyone, lengths, strict=True)]


def all_gather_objects(value: Any) -> list[Any]:
    """The value of every process, sorted by rank, on all of them."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    distributed.all_gather_object(values, value)
    return values


@contextmanager
def all_raise() -> Iterator[None]:
    """Context manager: an error in one process raises in all, so that none waits forever.

    The first of the processes that failed raises its own error, the others :class:`StoppedElsewhere`. Processes must
    not wait for each other inside.
    """
    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    if world_size() > 1:
        first = torch.tensor(world_size() if error is None else rank())
        distributed.all_reduce(first, distributed.ReduceOp.MIN, group=_host_group())
        if int(first) < world_size() and int(first) != rank():
            raise StoppedElsewhere from error
    if error is not None:
        raise error


def broadcast_buffers(module: nn.Module) -> None:
    """Broadcasts the buffers of rank 0, such as the running statistics of batch norms."""
    if world_size() > 1:
        for buffer in module.buffers():
            distributed.broadcast(buffer, 0)


def barrier_and_close() -> None:
    """Waits for all processes, then closes the process group; does nothing with a single process."""
    if world_size() > 1:
        distributed.barrier()
        distributed.destroy_process_group()


#: The default process group and its group for host tensors.
_host: tuple[Any, Any] | None = None


def _host_group() -> Any:
    """A process group for host tensors, so that messages do not wait for the GPUs.

    It is created at the first call, which all processes make.
    """
    global _host
    if distributed.get_backend() == "gloo":
        return None
    if _host is None or _host[0] is not distributed.group.WORLD:
        _host = distributed.group.WORLD, distributed.new_group(backend="gloo")
    return _host[1]
