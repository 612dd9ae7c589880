"""The one place that asks ``torch.distributed``: how many processes there are, and what they exchange.

Everything here also works where there is a single process and no process group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, distributed, nn


class StoppedElsewhere(Exception):
    """Another process has stopped the run, and says why."""


#: Whether the others are to be left out for now: see :func:`single_process`.
_ALONE: ContextVar[bool] = ContextVar("alone", default=False)


def is_initialized() -> bool:
    """Whether there is a process group."""
    return distributed.is_available() and distributed.is_initialized() and not _ALONE.get()


@contextmanager
def single_process() -> Iterator[None]:
    """Inside, this process is the only one: nothing is exchanged, so that the others need not take part."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def world_size() -> int:
    """Number of processes; 1 where torch.distributed is not in use."""
    return distributed.get_world_size() if is_initialized() else 1


def rank() -> int:
    """Index of this process; 0 where torch.distributed is not in use."""
    return distributed.get_rank() if is_initialized() else 0


def all_reduce_mean(value: Tensor) -> Tensor:
    """The mean of a detached tensor over all processes; the detached tensor itself where there is only one.

    A sum divided by it, averaged over processes as DDP does with gradients, is the mean over all samples of the world.
    """
    if not is_initialized():
        return value.detach()
    value = value.detach().clone()
    distributed.all_reduce(value)
    return value / distributed.get_world_size()


def all_reduce_any(*flags: bool) -> list[bool]:
    """For each flag whether any process has set it, with one message; every process must call it."""
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
    """The tensors of all processes, all [n], one after the other, without waiting for the device."""
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
    """An error in one process raises in all, so that none waits for another in vain.

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
    """Gives all processes rank 0's buffers, such as the running statistics of batch norms."""
    if world_size() > 1:
        for buffer in module.buffers():
            distributed.broadcast(buffer, 0)


def barrier_and_close() -> None:
    """Waits for all processes, then closes the process group; does nothing where there is one process."""
    if world_size() > 1:
        distributed.barrier()
        distributed.destroy_process_group()


#: The default process group that the group for the host belongs to, and that group.
_host: tuple[Any, Any] | None = None


def _host_group() -> Any:
    """A group that takes tensors of the host, so that what processes tell each other does not wait for their GPUs.

    It is made at the first call, which all processes make alike.
    """
    global _host
    if distributed.get_backend() == "gloo":
        return None
    if _host is None or _host[0] is not distributed.group.WORLD:
        _host = distributed.group.WORLD, distributed.new_group(backend="gloo")
    return _host[1]
