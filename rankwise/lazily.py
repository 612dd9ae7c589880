"""Rooms that can be entered without torch: their public names are loaded when the first of them is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def lazily(package: str, names: Sequence[str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that takes its names from its module ``public`` (PEP 562).

    So modules of the package that need no torch can be imported where there is none.

    Args:
        package: The package's name.
        names: Its public names; none may be that of one of its modules, which would take its place when imported.
    """

    def find(name: str) -> Any:
        # Other names must not load anything: Python asks for modules here before it imports them.
        if name in names:
            return getattr(import_module(f"{package}.public"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
