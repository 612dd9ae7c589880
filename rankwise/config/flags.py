"""Normalizes command lines before they are parsed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from jsonargparse import ArgumentParser

from rankwise.errors import SettingsError

#: Short flags and their long forms.
SHORT_FLAGS = {
    "--data": "--data.path",
    "--epochs": "--train.epochs",
    "--minutes": "--train.minutes",
    "--patience": "--train.patience",
    "--init": "--train.init",
    "--batch_size": "--train.batch_size",
    "--lr": "--optimizer.lr",
    "--seed": "--train.seed",
    "--backbone": "--model.backbone.name",
    "--device": "--train.accelerator",
    "--devices": "--train.devices",
    "--precision": "--train.precision",
    "--workers": "--data.workers",
    "--folder": "--run",  # torchrun takes --run as an abbreviation of its own --run-path
}

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def normalize(
    parser: ArgumentParser, words: list[str], short_flags: Mapping[str, str] | None = None
) -> tuple[list[str], list[str]]:
    """Splits a command line into its flags, each as ``--flag=value`` or ``--flag``, and its other words.

    Flag names may use hyphens or underscores, boolean flags need no value, and flags may come before, between and after
    the other words. ``short_flags`` are short flags and their long forms.
    """
    actions = {flag: action for action in parser._actions for flag in action.option_strings}
    flags: list[str] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return flags, others + rest
        if not _is_flag(word):
            others.append(word)
            continue
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = "--" + name[2:].replace("-", "_")
        name = (short_flags or {}).get(name, name)
        boolean, alone = _is_boolean(name, actions), _takes_no_value(name, actions)
        value_follows = rest and not alone and not _is_flag(rest[0])
        if not equals and value_follows and (boolean != "always" or rest[0].lower() in (*_TRUE, *_FALSE)):
            equals, value = "=", rest.pop(0)
        if not equals and boolean != "never":
            equals, value = "=", "true"
        if boolean == "always" and value.lower() in (*_TRUE, *_FALSE):
            value = str(value.lower() in _TRUE).lower()
        if not equals and not alone and name in actions and actions[name].nargs is None:
            raise SettingsError(f"{word}: expected a value")
        flags.append(name + equals + value)
    return flags, others


def value_of(flags: Sequence[str], flag: str) -> str | None:
    """The value of a flag in normalized flags; the last one wins."""
    values = [word.partition("=")[2] for word in flags if word.partition("=")[0] == flag]
    return values[-1] if values else None


def as_typed(message: str, words: Sequence[str]) -> str:
    """A message with the short flags of a command line instead of their long forms."""
    typed = {"--" + word.partition("=")[0].lstrip("-").replace("-", "_") for word in words if _is_flag(word)}
    for short, long in SHORT_FLAGS.items():
        if short in typed and long not in typed:
            message = re.sub(rf"{re.escape(long)}(?![\w.-]*\w)", short, message)
    return message


def subclasses(base: type) -> list[type]:
    """A class and all its concrete public subclasses, without the placeholder classes of the parser."""
    if base.__name__.startswith(("LazyInstance_", "_")):
        return []
    found = [] if inspect.isabstract(base) else [base]
    for cls in list[type](base.__subclasses__()):
        found += [one for one in subclasses(cls) if one not in found]
    return found


def _is_flag(word: str) -> bool:
    return re.match(r"--?[A-Za-z]", word) is not None


def _takes_no_value(name: str, actions: Mapping[str, Any]) -> bool:
    return name == "--print_config" or (name in actions and actions[name].nargs == 0)


def _is_boolean(name: str, actions: Mapping[str, Any]) -> str:
    """Whether a flag is boolean: "always", "also" (among other types), or "never"."""
    if name in actions:
        hint = getattr(actions[name], "_typehint", None)
        return "always" if hint is bool else "also" if bool in get_args(hint) else "never"
    section, _, option = name.partition(".")
    base = getattr(actions.get(section), "_typehint", None)
    if not option or not isinstance(base, type):
        return "never"
    parameters = [inspect.signature(cls).parameters.get(option) for cls in subclasses(base)]
    return "always" if any(p is not None and p.annotation in (bool, "bool") for p in parameters) else "never"
