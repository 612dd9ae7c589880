"""A thread pool for compiled code that releases the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")

#: The process that owns the pool (threads do not survive a fork), its number of threads, and the pool.
_pool: tuple[int, int, ThreadPoolExecutor] | None = None


def in_parts(work: Callable[[int, int], Result], size: int, smallest: int) -> list[Result]:
    """Runs ``work(begin, end)`` over equal parts of ``range(size)``, one per torch thread; returns the results in
    order.

    We use our own threads, because numba's default pool must not be entered by two threads at once, and autograd calls
    from its own threads.

    Args:
        work: Processes one part; should release the GIL.
        size: The total size.
        smallest: Minimum size of a part, because starting a thread has a cost.
    """
    parts = max(1, min(torch.get_num_threads(), size // smallest))
    bounds = [size * part // parts for part in range(parts + 1)]
    if parts == 1:
        return [work(0, size)]
    pool = _helpers(parts - 1)
    others = [pool.submit(work, bounds[part], bounds[part + 1]) for part in range(1, parts)]
    return [work(0, bounds[1]), *(other.result() for other in others)]


def _helpers(number: int) -> ThreadPoolExecutor:
    """A pool with at least this many threads."""
    global _pool
    if _pool is None or _pool[0] != os.getpid() or _pool[1] < number:
        _pool = os.getpid(), number, ThreadPoolExecutor(number, thread_name_prefix="rankwise")
    return _pool[2]
