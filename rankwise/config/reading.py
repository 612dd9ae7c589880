"""Recipes as plain values: nothing that a file names is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankwise.errors import SettingsError
from rankwise.files.names import shown
from rankwise.files.parsing import ParseError, read_yaml


def read_recipe(path: Path) -> dict[str, Any]:
    """The content of a recipe's file; raises SettingsError if it is not plain YAML with sections."""
    try:
        content = read_yaml(path)
    except ParseError as error:
        raise SettingsError(f"{shown(path)}: not a recipe: it cannot be read as plain YAML ({error})") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{shown(path)}: not a recipe: it has no sections such as data, model and train")
    return content


def read_section(run: Path, section: str) -> dict[str, Any]:
    """One section of a run's recipe."""
    path = run / "recipe.yaml"
    if not path.is_file():
        raise FileNotFoundError(f"{run}: not a run of rankwise train: it has no recipe.yaml")
    values = read_recipe(path).get(section)
    if not isinstance(values, dict):
        raise SettingsError(f"{shown(path)}: incomplete: it has no section {section!r}. Restore the file")
    return values
