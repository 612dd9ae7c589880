"""Builds settings from plain dicts, with helpful error messages."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rankwise.errors import ModelError
from rankwise.files.names import did_you_mean, shortened

T = TypeVar("T")

#: Maximum length of a list; those in settings have a few values.
MOST_VALUES = 1000


def from_dict(kind: type[T], values: Any, where: str) -> T:
    """Builds a dataclass from a plain dict, nested ones from nested dicts; missing fields have their defaults.

    ``where`` names it in error messages.
    """
    if not isinstance(values, dict):
        raise ModelError(f"{where} is {shortened(values)}: expected a mapping of names to values")
    hints = get_type_hints(kind)
    known = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            hint = did_you_mean(str(name), known, f"it has {', '.join(known)}")
            raise ModelError(f"{where} has no {shortened(name)}: {hint}")
    return kind(**{name: _convert(hints[name], value, f"{where}.{name}") for name, value in values.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return from_dict(hint, value, where)  # type: ignore[arg-type]
    if origin is Literal:
        if value in arguments:
            return value
        raise ModelError(f"{where} is {shortened(value)}: expected one of {', '.join(map(str, arguments))}")
    if origin in (Union, types.UnionType):
        for argument in arguments:
            try:
                return _convert(argument, value, where)
            except ModelError:
                continue
    elif origin is tuple:
        if isinstance(value, list | tuple) and len(value) > MOST_VALUES:
            raise ModelError(f"{where} has {len(value):,} values: the limit is {MOST_VALUES}")
        if isinstance(value, list | tuple) and (arguments[-1] is Ellipsis or len(value) == len(arguments)):
            return tuple(_convert(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    elif origin is dict:
        if isinstance(value, dict):
            return dict(value)
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                raise ModelError(f"{where} is a number of {len(str(value))} digits: expected a smaller one") from None
    elif isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise ModelError(f"{where} is {shortened(value)}: expected {_described(hint)}")


def _described(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        number = "any number of values" if arguments[-1] is Ellipsis else f"{len(arguments)} values"
        return f"a list of {number}, each {_described(arguments[0])}"
    if origin is dict:
        return "a mapping"
    if origin in (Union, types.UnionType):
        return " or ".join(map(_described, arguments))
    if origin is Literal:
        return " or ".join(map(str, arguments))
    return {int: "an integer", float: "a number", bool: "true or false", str: "a text", type(None): "none"}[hint]
