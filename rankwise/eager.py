"""Functions that `torch.compile` does not trace, and handles of objects for custom operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def eager(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorator that causes a graph break at the function if a caller is compiled.

    ``torch.compiler.disable`` does the same, but as a decorator it always imports the compiler, which takes a second.
    """

    @wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return called


#: Objects by handle. Custom operators take tensors, numbers and strings only.
_KNOWN: WeakValueDictionary[str, Any] = WeakValueDictionary()
_NUMBERS = count()


def handle(known: object) -> str:
    """A new string that identifies the object in arguments of a custom operator while the object exists."""
    name = f"{type(known).__name__} {next(_NUMBERS)}"
    _KNOWN[name] = known
    return name


def of_handle(name: str) -> Any:
    """The object with this handle."""
    return _KNOWN[name]
