"""Reads recipes as plain values, without importing what they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankwise.errors import SettingsError
from rankwise.files.names import escaped
from rankwise.files.parsing import ParseError, read_yaml


def read_recipe(path: Path) -> dict[str, Any]:
    """Reads a recipe file; raises SettingsError if it is not plain YAML with sections."""
    try:
        content = read_yaml(path)
    except ParseError as error:
        raise SettingsError(f"{escaped(path)}: not a recipe: it cannot be read as plain YAML ({error})") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{escaped(path)}: not a recipe: it has no sections such as data, model and train")
    return content


def read_section(run: Path, section: str) -> dict[str, Any]:
    """Reads one section of the recipe of a run."""
    path = run / "recipe.yaml"
    if run.is_file():
        near = (run.parent / "recipe.yaml").is_file()
        which = (
            f", {run.parent}" if near else ", which has its recipe.yaml; predict and export take a weights file alone"
        )
        raise FileNotFoundError(f"{run}: a file; give the folder of the run{which}")
    if not path.is_file():
        raise FileNotFoundError(not_a_run(run))
    values = read_recipe(path).get(section)
    if not isinstance(values, dict):
        raise SettingsError(f"{escaped(path)}: incomplete: the section {section!r} is missing. Restore the file")
    return values


def not_a_run(run: Path) -> str:
    """Why a folder without recipe.yaml is not a run."""
    return f"{escaped(run)}: {'not a run: it has no recipe.yaml' if run.exists() else 'no such folder'}"


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """A recipe's values by their names, such as ``train.epochs``."""
    if not isinstance(value, dict):
        return {prefix: value}
    return {k: v for name, item in value.items() for k, v in flat(item, f"{prefix}.{name}".lstrip(".")).items()}
