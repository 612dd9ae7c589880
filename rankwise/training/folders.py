"""Folders of runs: which one a new run gets, and whether one is to be gone on with."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rankwise.errors import SettingsError
from rankwise.files.names import shown
from rankwise.files.writing import WriteError, explained, make_folder
from rankwise.training.lock import refuse_if_locked


def launcher_rank() -> int:
    """Which of the processes of a launcher this is; 0 if there is none."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def is_restart(run: str | None) -> bool:
    """Whether torchrun has started all processes again because one of them died, and there is a run to go on with."""
    if run is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        raise SettingsError("torchrun --max-restarts needs --run FOLDER, so that a restart finds the run again")
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return restarts > 0 and run is not None and (Path(run) / "recipe.yaml").is_file()


def run_folder(given: str | None, name: str, overwrite: bool) -> Path | None:
    """The folder of a new run; an earlier run is only deleted when asked for, anything else never."""
    if launcher_rank():
        return None  # rank 0 chooses, and tells
    if given is None:
        for number in itertools.count(1):
            folder = Path(f"runs/{name}-{number}")
            make_folder(folder.parent)
            try:
                with explained(folder, "made"):
                    folder.mkdir()  # at once, so that of two runs started together each has its own
            except WriteError as error:
                if error.number == errno.EEXIST:
                    continue
                raise
            break
        return folder
    folder = Path(given)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not overwrite:
            raise SettingsError(
                f"{folder} exists: go on with it by --resume {folder}, choose another --run, or delete it by "
                "--overwrite"
            )
        if not (folder / "recipe.yaml").is_file():
            raise SettingsError(f"{folder}: --overwrite deletes runs only, and this is none: it has no recipe.yaml")
        if folder.is_symlink():
            raise SettingsError(
                f"{shown(folder)} is a link to {shown(folder.resolve())}: --overwrite deletes nothing behind a link; "
                f"give --run {shown(folder.resolve())}"
            )
        refuse_if_locked(folder)
        with explained(folder, "deleted"):
            shutil.rmtree(folder)
    return folder


def refuse_for_resume(run: str, recipe: str | None, words: Sequence[str]) -> None:
    """Refuses what a run that is resumed could only ignore.

    Args:
        run: Its folder.
        recipe: The recipe that was named, if one was.
        words: The normalized flags.

    Raises:
        SettingsError: If there is such a thing, or no run.
    """
    flags = {word.partition("=")[0] for word in words}
    for given, todo in (
        (recipe, "a run is resumed by its own recipe; start a new run for another one"),
        ("--config" in flags and "--config", "a run is resumed by its own recipe; start a new run for another one"),
        ("--overwrite" in flags and "--overwrite", "it would delete the run; leave out one of the two"),
        ("--train.init" in flags and "--init", "the run has its weights already; start a new run from others"),
    ):
        if given:
            raise SettingsError(f"--resume {run} with {given}: {todo}")
    if not (Path(run) / "recipe.yaml").is_file():
        raise SettingsError(f"--resume {run}: not a run of rankwise train: it has no recipe.yaml")


def changes(run: Path, recipe: str) -> dict[str, tuple[Any, Any]]:
    """Which settings of a run's recipe another one changes: by flag, what they were and what they become.

    Args:
        run: The run's folder.
        recipe: The new recipe, as YAML.
    """
    path = run / "recipe.yaml"
    before = _flat(yaml.safe_load(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    after = _flat(yaml.safe_load(recipe))
    return {
        name: (before.get(name), after.get(name))
        for name in {**before, **after}
        if before and before.get(name) != after.get(name)
    }


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {k: v for name, item in value.items() for k, v in _flat(item, f"{prefix}.{name}".lstrip(".")).items()}
