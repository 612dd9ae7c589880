"""Functions that `torch.compile` does not trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

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
