"""Run folders: choosing the folder of a new run, and checks before resuming one."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankwise.config.reading import flat, not_a_run, read_recipe
from rankwise.errors import SettingsError
from rankwise.files.names import escaped
from rankwise.files.parsing import parse_yaml
from rankwise.files.writing import explained, make_folder
from rankwise.training.lock import refuse_if_locked


def launcher_rank() -> int:
    """The rank given by a launcher; 0 without one."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def is_restart(run: str | None) -> bool:
    """Whether torchrun has restarted all processes after a failure and there is a run to resume."""
    if run is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        raise SettingsError("torchrun --max-restarts needs --folder FOLDER, so that a restart can find the run")
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return restarts > 0 and run is not None and (Path(run) / "recipe.yaml").is_file()


def run_folder(given: str | None, name: str, overwrite: bool) -> Path | None:
    """The folder of a new run. An earlier run is only deleted on request, anything else never."""
    if launcher_rank():
        return None  # rank 0 chooses and broadcasts
    if given is None:
        runs = Path("runs")
        make_folder(runs)
        return next(filter(_created, (runs / f"{name}-{number}" for number in itertools.count(1))))
    folder = Path(given)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not overwrite:
            raise SettingsError(
                f"{folder} exists: resume it with --resume {folder}, choose another --run, or delete it with "
                f"--overwrite"
            )
        if not (folder / "recipe.yaml").is_file():
            raise SettingsError(
                f"{folder}: --overwrite only deletes runs, but this is not a run: it has no recipe.yaml"
            )
        if folder.is_symlink():
            raise SettingsError(
                f"{escaped(folder)} is a link to {escaped(folder.resolve())}: --overwrite does not follow links; use "
                f"--run {escaped(folder.resolve())}"
            )
        refuse_if_locked(folder)
        with explained(folder, "deleted"):
            shutil.rmtree(folder)
    return folder


def _created(folder: Path) -> bool:
    """Creates a folder at once, so that two runs started together get different ones; false if it exists."""
    with explained(folder, "created"), suppress(FileExistsError):
        folder.mkdir()
        return True
    return False


def refuse_for_resume(run: str, recipe: str | None, words: Sequence[str]) -> None:
    """Refuses arguments that a resumed run would ignore: a recipe that the user named, and some of the normalized
    flags."""
    flags = {word.partition("=")[0] for word in words}
    for given, todo in (
        (recipe, "a resumed run uses its own recipe; start a new run for another one"),
        ("--config" in flags and "--config", "a resumed run uses its own recipe; start a new run for another one"),
        ("--overwrite" in flags and "--overwrite", "it would delete the run; remove one of the two flags"),
        ("--train.init" in flags and "--init", "a resumed run uses its own weights; start a new run for other ones"),
    ):
        if given:
            raise SettingsError(f"--resume {run} with {given}: {todo}")
    if not (Path(run) / "recipe.yaml").is_file():
        raise SettingsError(f"--resume {not_a_run(Path(run))}")


def changes(run: Path, recipe: str, done: bool) -> dict[str, tuple[Any, Any]]:
    """The settings that differ between the recipe of a run and a new one, as YAML: flag, old and new value.

    A changed setting that would have no effect, because no steps are left, is a SettingsError.
    """
    path = run / "recipe.yaml"
    before = flat(read_recipe(path)) if path.is_file() else {}
    after = flat(parse_yaml(recipe))
    changed = {
        name: (before.get(name), after.get(name))
        for name in {**before, **after}
        if before and before.get(name) != after.get(name)
    }
    # The location of the data also matters to evaluations.
    if done and (unused := [name for name in changed if not name.startswith("data.")]):
        raise SettingsError(
            f"{run} is finished: {', '.join(unused)} would have no effect. Train longer with more --epochs or "
            f"--minutes, or start a new run from its detector with --init {run}"
        )
    return changed
