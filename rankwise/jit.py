"""Functions compiled by numba and kept on disk for the next process.

Numba's cache of a function depends only on its own source file. But its machine code contains functions and constants
of other files, and the index is unpickled before its age is checked. After an upgrade, old code could run, or a class
that has moved could be missing. Here, the cache depends on all sources that are imported from rankwise, and whatever
cannot be read is compiled again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

import rankwise

_IMPORTS = re.compile(r"^from (rankwise[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """The function, compiled when it is first called, without the interpreter lock; division by 0 gives infinity."""
    dispatcher = numba.njit(nogil=True, error_model="numpy", **options)(function)
    with suppress(RuntimeError):  # there is no folder for the cache
        dispatcher._cache = _Cache(function)
    return dispatcher


def compiled_sum(function: Callable[..., Any]) -> Any:
    """Like `compiled`, without NaN, with sums in an order that the processor is quick at; always in the same one."""
    return compiled(function, fastmath={"reassoc", "contract", "nnan", "nsz"})


class _Index(IndexDataCacheFile):
    def _load_index(self) -> Any:
        try:
            return super()._load_index()
        except Exception:  # pickle raises anything
            return {}

    def _load_data(self, name: str) -> Any:
        try:
            return super()._load_data(name)
        except Exception as error:
            raise OSError("damaged") from error  # which numba takes for a missing file


class _Cache(FunctionCache):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _Index(self.cache_path, self._impl.filename_base, _stamp(function.__module__))


@cache
def _stamp(module: str) -> bytes:
    """A hash of the sources of a module and of all modules of rankwise that it imports, directly or not.

    The sources are found by name: which of the modules are imported already may differ between processes.
    """
    sources: dict[str, str] = {}
    names = [module]
    while names:
        name = names.pop()
        file = _file(name)
        if file is not None and name not in sources:
            sources[name] = file.read_text(encoding="utf-8")
            for package, imported in _IMPORTS.findall(sources[name]):
                names += [package, *(f"{package}.{part}" for part in re.findall(r"\w+", imported))]
    return hashlib.sha256(repr(sorted(sources.items())).encode()).digest()


def _file(module: str) -> Path | None:
    """The source of a module of rankwise; None if there is no such module."""
    _, *parts = module.split(".")
    paths = [Path(folder, *parts) for folder in rankwise.__path__]
    files = [file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py")]
    return next((file for file in files if file.is_file()), None)
