"""The run folder and training command of each row, depending on the dataset."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
from argparse import ArgumentError
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.errors import UserError
from rankwise.files.writing import explained, make_folder
from rankwise.reproduce.rows import WITHOUT_PAA_STAR, Row
from rankwise.training.signals import stop_signals

if TYPE_CHECKING:
    from rankwise.config.recipe import Recipe

Say = Callable[[str], None]

#: On the built-in dataset, rows start from a trained backbone with frozen first stages, as in the paper. One epoch is
#: then enough to tell them apart.
SHAPES = ("--train.epochs=1", "--model.backbone.frozen_stages=2")


class ReproduceError(UserError, RuntimeError):
    """A row could not be trained; the message says why."""


@dataclass(frozen=True)
class Plan:
    """How the rows of tables are trained.

    Attributes:
        folder: Folder of the runs. Tables share them: a row of several tables is trained once.
        data: "shapes", or a folder.
        recipe: The base recipe for small data; None uses the paper's recipes for COCO.
        budget: Factor on the epochs of every run.
        flags: Extra flags for every run.
        from_backbone: Whether rows on the built-in dataset start from a trained backbone instead of random weights.
    """

    folder: Path
    data: str
    recipe: str | None
    budget: float = 1.0
    flags: tuple[str, ...] = ()
    from_backbone: bool = True

    def run_of(self, row: Row, seed: int) -> Path:
        """The run folder of a row: an existing one, for any spelling of the dataset path, or a new one."""
        recipe, flags = self._recipe_and_flags(row)
        own = (*(row.coco if self.recipe is None else row.small), *self.flags)
        words = [word.rpartition("=")[2].rpartition(".")[2] for word in own if word.startswith(("--loss", "--assign"))]
        name = "-".join(words[:4]) or "recipe"
        runs = []
        for data in _spellings(self.data):
            digest = hashlib.sha256(json.dumps([data, recipe, *flags]).encode()).hexdigest()[:8]
            runs.append(self.folder / "runs" / f"{name}-{digest}" / f"seed{seed}")
        return next((run for run in runs if run.is_dir()), runs[0])

    def command(self, row: Row, seed: int, run: Path) -> list[str]:
        """The arguments of `rankwise` that train a row."""
        recipe, flags = self._recipe_and_flags(row)
        given = self._built_in_data() if self._starts_from_backbone else [f"--data.path={self.data}"]
        return ["train", recipe, "--run", str(run), *given, *flags, f"--train.seed={seed}"]

    def prepare(self, say: Say) -> None:
        """Creates what all rows start from, if missing: on the built-in dataset, its images and a backbone."""
        if not self._starts_from_backbone:
            return
        images, backbone = self.folder / "shapes", self.folder / "backbone"
        if not (images / "annotations" / "instances_val.json").is_file():  # written last
            if images.exists() and (not images.is_dir() or any(images.iterdir())):
                raise ReproduceError(
                    f"{images}: already exists and is not a generated dataset; remove it, or choose another --out"
                )
            say(f"{images}: generating the training images of all rows …")
            sizes = ["--shapes.train_images=4000", "--shapes.val_images=500"]
            part = images.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            call(["data", "shapes", str(part), *sizes], images.with_suffix(".log"))
            part.replace(images)
        # All rows start from the same backbone, as in the paper. It is trained on other images, with focal loss.
        neutral = ["--loss=FocalLoss", "--assign=IoUThreshold", "--data.shapes.seed=1", "--train.seed=0"]
        train_once(["train", "shapes", "--run", str(backbone), *neutral], backbone, say)

    @property
    def _starts_from_backbone(self) -> bool:
        return self.from_backbone and self.data == "shapes" and self.recipe == "shapes"

    def _built_in_data(self) -> list[str]:
        weights = self.folder / "backbone" / "best.safetensors"
        return [f"--data.path={self.folder / 'shapes'}", f"--model.backbone.pretrained={weights}"]

    def _recipe_and_flags(self, row: Row) -> tuple[str, list[str]]:
        """The recipe and all flags that define a row."""
        if self.recipe is None:
            recipe, flags, length = row.recipe, [*row.coco, *self.flags], 1.0
        else:
            first = SHAPES if self._starts_from_backbone else WITHOUT_PAA_STAR
            recipe, flags, length = self.recipe, [*first, *row.small, *self.flags], row.length
        whole = _parsed(recipe, *flags)
        if self.recipe is not None and row.rate != 1:
            flags.append(f"--optimizer.lr={whole.optimizer.lr * row.rate:g}")
        if self.recipe is not None and row.size != 1:
            sides = whole.model.input
            flags += [f"--model.input.short_side={round(sides.short_side * row.size)}"]
            flags += [f"--model.input.max_side={round(sides.max_side * row.size)}"]
        budget = max(1, math.ceil(whole.train.epochs * self.budget * length))
        if budget != whole.train.epochs:
            flags += [f"--train.epochs={budget}"]
            share = budget / whole.train.epochs
            milestones = whole.schedule.milestones
            if whole.schedule.decay == "step" and max(milestones, default=0) >= 1:  # in epochs, not fractions
                flags += [f"--schedule.milestones={[round(at * share, 2) for at in milestones]}"]
        return recipe, flags


def _spellings(data: str) -> list[str]:
    """All spellings of a dataset path, that of new runs first; only "shapes" is the built-in dataset."""
    if data == "shapes":
        return [data]
    paths = [os.path.normpath(data), data, os.path.abspath(data)]  # noqa: PTH100 - keeps links as they are
    here = Path(paths[-1])
    if here.is_relative_to(Path.cwd()):
        paths.append(str(here.relative_to(Path.cwd())))
    return list(dict.fromkeys("./shapes" if path == "shapes" else path for path in paths))


@cache
def _parsed(recipe: str, *flags: str) -> Recipe:
    from rankwise.config.recipe import parse_recipe

    try:
        return parse_recipe(["--config", recipe, *flags])
    except (ArgumentError, TypeError, ValueError) as error:
        raise ReproduceError(f"{recipe} {' '.join(flags)}: {error}") from error


def train_once(arguments: list[str], run: Path, say: Say) -> None:
    """Trains a run in a separate process, unless it is finished; a stopped run is resumed."""
    if (run / "eval.json").is_file():
        say(f"{run}: done before")
        return
    if (run / "last.ckpt").is_file():
        arguments = ["train", "--resume", str(run)]
    elif (run / "recipe.yaml").is_file():
        arguments = [*arguments, "--overwrite"]  # it was stopped before its first checkpoint
    say(f"{run}: training …")
    call(arguments, run.with_suffix(".log"))


def call(arguments: list[str], log: Path) -> None:
    """Runs `rankwise` with these arguments in a separate process; its output goes to the log, its errors too.

    Stop signals are forwarded, and the process has time to save; a second Ctrl-C ends it at once.
    """
    make_folder(log.parent)
    errors = b""  # kept, because the disk of the log may be full
    with log.open("ab", buffering=0) as file:
        with explained(log):
            file.write(f"$ rankwise {shlex.join(arguments)}\n".encode())
        # -P: a module of this name in the current folder is not ours to run.
        command = [sys.executable, "-P", "-m", "rankwise", *arguments]
        ours = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        children: list[subprocess.Popen[bytes]] = []
        with stop_signals(children) as stop:
            environment = {**os.environ, "PYTHONPATH": ours}
            with subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE, env=environment) as process:
                children.append(process)
                if stop.number is not None:  # the signal came before the process existed
                    process.send_signal(stop.number)
                try:
                    for line in process.stderr or ():
                        errors += line
                        with suppress(OSError):
                            file.write(line)
                except BaseException:
                    process.kill()
                    raise
    if stop.number == signal.SIGINT:
        raise KeyboardInterrupt
    if stop.number is not None:
        sys.exit(128 + stop.number)
    if code := process.returncode:
        said, name = errors.decode(errors="replace").strip(), f"rankwise {arguments[0]}"
        # Its message, or the last line of a traceback.
        message = said.rpartition(f"{name}: " if f"{name}: " in said else "\n")[2] or "no message"
        raise ReproduceError(f"{name} failed with exit code {code}: {message} (see {log})")
