"""How code is compiled by numba: without the interpreter lock, and kept on disk for the next process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Any:
    """The function compiled when it is first called."""
    return _compile(function)


def compiled_sum(function: Callable[..., Any]) -> Any:
    """The same without NaN, with sums in an order that the processor is quick at; always in the same one."""
    return _compile(function, fastmath={"reassoc", "contract", "nnan", "nsz"})


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy", **options)(function)
    except RuntimeError:  # there is no folder to keep it in
        return numba.njit(nogil=True, error_model="numpy", **options)(function)
