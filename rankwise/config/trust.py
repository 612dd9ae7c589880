"""Untrusted recipes: a YAML file may name classes of rankwise, but no other code to be imported."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from rankwise import __version__
from rankwise.config.reading import read_recipe
from rankwise.config.settings import DataSettings, OptimizerSettings, ScheduleSettings, TrainSettings
from rankwise.config.suggest import nearest
from rankwise.criterion import BoxSettings
from rankwise.errors import SettingsError
from rankwise.files.names import escaped
from rankwise.models.settings import DetectorSettings

#: Sections of plain values, with their schema.
PLAIN_SECTIONS: dict[str, Any] = {
    "data": DataSettings,
    "model": DetectorSettings,
    "box": BoxSettings,
    "optimizer": OptimizerSettings,
    "schedule": ScheduleSettings,
    "train": TrainSettings,
}
#: Sections that name a class.
CLASS_SECTIONS = ("loss", "assign")
#: What ``--print_config`` writes in addition to the sections; only the command line can set it.
_COMMAND = ("run", "resume", "overwrite")

_CLASS_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def check_recipe(path: Path, words: Sequence[str] = ()) -> None:
    """Refuses a recipe that would import code other than rankwise or read other files.

    Your own class is imported if the command line, ``words``, names it.
    """
    content = read_recipe(path)
    for section, value in content.items():
        if section in PLAIN_SECTIONS:
            _check_plain(PLAIN_SECTIONS[section], value, f"{path}: {section}")
        elif section in _COMMAND and not value:
            continue
        elif section not in CLASS_SECTIONS:
            raise SettingsError(
                f"{path}: there is no section {section!r}; {nearest(str(section), [*PLAIN_SECTIONS, *CLASS_SECTIONS])}"
            )
    given = {word.partition("=")[2] or word for word in words}
    for section in CLASS_SECTIONS:
        for text in _strings(content.get(section)):
            if ("." in text or "/" in text) and not text.startswith("rankwise.") and text not in given:
                raise SettingsError(
                    f"{path}: {section} names {text!r}, which is not part of rankwise: nothing was imported. If it is "
                    f"yours, name it on the command line: --{section} {text}"
                )


def _check_plain(schema: Any, value: Any, where: str) -> None:
    """Nested sections must be written out: a string would be read as a file name."""
    if not isinstance(value, dict):
        raise SettingsError(f"{where} must be a mapping of names to values, not {value!r}")
    if "class_path" in value:
        raise SettingsError(f"{where} names a class, {value['class_path']!r}, but this section has no class")
    types = get_type_hints(schema)
    for name in map(str, value):
        if "." in name:
            raise SettingsError(f"{where}: write {name} as nested sections")
        if name not in types:
            raise SettingsError(f"{where} has no setting {name!r} in rankwise {__version__}; {nearest(name, types)}")
    for item in fields(schema):
        if item.name in value and is_dataclass(types[item.name]):
            _check_plain(types[item.name], value[item.name], f"{where}.{item.name}")


def _strings(value: Any) -> Iterator[str]:
    """All strings in nested lists and mappings, without keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def import_named(words: Sequence[str]) -> None:
    """Imports the modules of classes named by expanded flags, also from the current folder.

    The current folder is on the path only during the import, and last, so that it cannot shadow other modules.

    Raises:
        SettingsError: If a module fails while it is imported.
    """
    named = {word.partition("=")[2] for word in words if word.startswith(("--loss", "--assign"))}
    modules = {value.rpartition(".")[0] for value in named if _CLASS_PATH.fullmatch(value)}
    here = str(Path.cwd())
    for module in sorted(module for module in modules if module.partition(".")[0] != "rankwise"):
        before = list(sys.path)
        sys.path.append(here)
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise SettingsError(f"{module}: cannot be imported ({escaped(error)})") from error
        except Exception as error:
            raise SettingsError(f"{module}: cannot be imported ({type(error).__name__}: {escaped(error)})") from error
        finally:
            sys.path[:] = before
