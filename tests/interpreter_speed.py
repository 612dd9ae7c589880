"""Triton's interpreter, a quarter quicker."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def patch_language_once() -> None:
    """Lets the functions of `triton.language` stay as the interpreter has replaced them.

    It replaces them when a kernel starts and in every call of another function, and restores them when the kernel ends,
    which takes a quarter of the time. The tests of the interpreter have a process of their own, so nothing else needs
    them.
    """
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    patch: Callable[[Any], Any] = interpreter._patch_lang
    language = interpreter.tl

    def patch_once(function: Any) -> Any:
        used = [part for part in function.__globals__.values() if inspect.ismodule(part)]
        if any(part in used and language.core.is_builtin(part.load) for part in (language, language.core)):
            patch(function)
        return interpreter._LangPatchScope()  # with nothing to restore

    interpreter._patch_lang = patch_once
