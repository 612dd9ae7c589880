"""Lazy loading of public names, so that parts of a package can be imported without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def lazily(package: str, names: Sequence[str]) -> Callable[[str], Any]:
    """A ``__getattr__`` for a package that loads its names from its module ``public`` (PEP 562).

    Modules of the package that do not need torch can then be imported without it. No name may equal that of one of the
    modules, which would replace it on import.
    """

    def find(name: str) -> Any:
        # Other names must not load anything: Python looks up modules here before importing them.
        if name in names:
            return getattr(import_module(f"{package}.public"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
