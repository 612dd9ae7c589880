"""Triton's interpreter, a quarter quicker."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def patch_language_once() -> None:
    """Lets a function that a kernel calls use the language as the kernel has patched it.

    The interpreter replaces the functions of `triton.language` when a kernel starts and restores them when it ends. It
    replaces them again in every call of another function in between, which changes nothing and takes a quarter of the
    time.
    """
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    patch: Callable[[Any], Any] = interpreter._patch_lang
    language = interpreter.tl

    def patch_once(function: Any) -> Any:
        used = [part for part in function.__globals__.values() if inspect.ismodule(part)]
        used = [part for part in (language, language.core) if part in used]
        if used and not any(language.core.is_builtin(part.load) for part in used):
            return None  # the scope, which only kernels restore
        return patch(function)

    interpreter._patch_lang = patch_once
