"""Logging: metrics.jsonl, TensorBoard if installed, and the progress display."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from torch import Tensor

from rankwise.distributed import all_reduce_sum_
from rankwise.errors import SettingsError
from rankwise.evaluation.tabulate import decimals
from rankwise.files.names import escaped, escaped_lines
from rankwise.files.parsing import ParseError, parse_json, read_bytes
from rankwise.files.writing import not_written, write_text
from rankwise.training.plan import Clock, Plan, format_duration

STAGES = ("wait", "forward", "assign", "loss", "backward", "optimizer")

#: Width of a log line, and of the text next to a bar of at least ten columns.
LINE, BAR_TEXT = 80, 69

#: Number of first steps that the stopwatch drops.
WARM_UP = 10


class Stopwatch:
    """Time of each stage of a training step.

    On a GPU, parts can only be timed by waiting for the device, so only requested steps are measured. The first steps,
    which include compilation, are dropped once there are more.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.totals = dict.fromkeys(STAGES, 0.0)
        self.steps = 0
        self._begun = 0
        self._measuring = False

    def start_step(self, wanted: bool) -> None:
        """Starts a step; on a GPU it is only timed if ``wanted``."""
        if self._begun == WARM_UP:
            self.totals, self.steps = dict.fromkeys(STAGES, 0.0), 0
        self._begun += 1
        self._measuring = wanted or self.device.type != "cuda"
        self.steps += self._measuring

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Context manager that adds the time inside to a stage."""
        start = time.perf_counter()
        yield
        if self._measuring:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.totals[name] += time.perf_counter() - start

    def seconds(self) -> dict[str, float]:
        """Mean seconds per step of each stage."""
        return {name: round(total / max(1, self.steps), 6) for name, total in self.totals.items()}

    def sentence(self) -> str:
        """The fraction of time of each stage, for the end of the training."""
        whole = sum(self.totals.values()) or 1.0
        shares = ", ".join(f"{name} {100 * total / whole:.1f} %" for name, total in self.totals.items())
        return f"a step took {whole / max(1, self.steps):.3f} s: {shares}"


#: Logged values that are summed over processes; the others are averaged.
COUNTS = ("positives", "unmatched")
#: Means over the positives of a step, weighted by their number.
OF_POSITIVES = ("iou",)


class Tracker:
    """Collects and shows the metrics of a run.

    Only rank 0 writes and prints, with the values of all processes combined. ``step`` and ``evaluated`` are those of a
    resumed run: log lines of later steps, from before a kill, are dropped.
    """

    def __init__(
        self,
        folder: Path,
        fabric: Fabric,
        plan: Plan,
        clock: Clock,
        log_every: int,
        step: int = 0,
        evaluated: int = 0,
    ) -> None:
        self.active = fabric.is_global_zero
        self.console = Console(quiet=not self.active, highlight=False)
        self.folder = folder
        self.fabric = fabric
        self.plan, self.clock, self.log_every = plan, clock, log_every
        self.ap: float | None = None
        self._sums: dict[str, Tensor] = {}
        self._shown: dict[str, float | None] = {"ranking": None, "box": None}
        self._extras: list[str] = []
        self._steps = self._images = 0
        self._since = time.perf_counter()
        self._first_step = step
        self._file = None
        self._board = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        if not self.active:
            return
        path = folder / "metrics.jsonl"
        write_text(path, "".join(_lines_before(path, step, evaluated)))
        self._file = path.open("a", encoding="utf-8")
        if find_spec("tensorboard"):
            from torch.utils.tensorboard.writer import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    @contextmanager
    def display(self, step: int) -> Iterator[None]:
        """Shows a progress bar on a terminal; otherwise, plain lines are printed."""
        if not (self.active and self.console.is_terminal):
            yield
            return
        # The bar fills the rest of the line.
        columns = (BarColumn(bar_width=None), TextColumn("{task.fields[text]}", markup=False))
        with Progress(*columns, console=self.console, refresh_per_second=4, expand=True) as progress:
            self._progress = progress
            text = self._line(step, step // self.plan.steps_per_epoch, BAR_TEXT)
            self._task = progress.add_task("train", total=self.plan.steps, completed=step, text=text)
            try:
                yield
            finally:
                self._progress = None

    def step(self, step: int, epoch: int, values: dict[str, Tensor], images: int) -> bool:
        """Records the values of a step without waiting for the device; True if a log line is due."""
        for name, value in values.items():
            value = value.detach().float()
            if name in OF_POSITIVES:
                value = value * values["positives"]
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._steps += bool(values)  # a skipped step has none
        self._images += images
        if self._progress and self._task is not None:
            text = self._line(step, epoch, BAR_TEXT)
            self._progress.update(self._task, completed=step, total=self.plan.steps, text=text)
        due = step % self.log_every == 0 or step == self._first_step + 1
        return due or step % self.plan.steps_per_epoch == 0 or step == self.plan.steps

    def log(self, step: int, epoch: int, lr: float, extra: dict[str, Any]) -> None:
        """Writes a log line with the means since the last one, over all processes. All processes must call it."""
        now = time.perf_counter()
        means = self._means()
        speed = self._images / max(1e-9, now - self._since)
        self._sums, self._steps, self._images, self._since = {}, 0, 0, now
        start = {"kind": "train", "step": step, "epoch": epoch}
        self.write({**start, **means, "lr": lr, "images_per_second": round(speed, 2), **extra})
        self._shown = {name: means.get(name) for name in ("ranking", "box")}
        self._extras = [f"{speed:.1f} img/s", f"positives {means.get('positives') or 0:.0f}"]
        if (unmatched := means.get("unmatched") or 0) >= 0.05:  # objects without positives
            self._extras.insert(0, f"unmatched {unmatched:.1f}")
        if not self._progress:
            self.console.print(self._line(step, epoch, LINE), soft_wrap=True, markup=False)

    def _line(self, step: int, epoch: int, width: int) -> str:
        """Epoch, remaining time, losses and AP, and as much of the rest as fits."""
        parts = [
            f"epoch {epoch + 1}" + ("" if self.plan.provisional else f"/{self.plan.epochs}"),
            f"{format_duration(self.clock.left(self.plan, step))} left",
            *(f"{name} {decimals(value, 3)}" for name, value in self._shown.items()),
            f"AP {decimals(self.ap)}",
        ]
        for extra in self._extras:
            if sum(map(len, parts)) + 2 * len(parts) + len(extra) <= width:
                parts.append(extra)
        return "  ".join(parts)

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line to metrics.jsonl and writes its values to TensorBoard."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            if self._board is not None:
                for name, value in line.items():
                    if isinstance(value, (int, float)) and name not in ("step", "epoch"):
                        self._board.add_scalar(f"{line['kind']}/{name}", value, line["step"])
        except OSError as error:
            raise not_written(self.folder / "metrics.jsonl", error) from error

    def print(self, text: str) -> None:
        """Prints a line above the progress bar."""
        self.console.print(escaped_lines(text), soft_wrap=True, markup=False)

    def summarize(self, watch: Stopwatch, skipped: int, faults: int) -> None:
        """Prints at the end how the time was spent and what was skipped."""
        if watch.steps:
            self.print(watch.sentence())
        if skipped:
            self.print(f"{skipped} steps were skipped because values were not finite; metrics.jsonl lists their images")
        if faults:
            self.print(f"unreadable images were skipped {faults} times; metrics.jsonl lists them")

    def close(self) -> None:
        """Closes the files."""
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()

    def _means(self) -> dict[str, float | None]:
        """The mean of each value over steps and processes; counts are summed over processes."""
        names = sorted(self._sums)
        if not names:
            return {}
        sums = torch.stack([self._sums[name] for name in names])
        all_reduce_sum_(sums)
        totals = dict(zip(names, sums.tolist(), strict=True))
        positives = max(1.0, totals.get("positives", 0.0))
        counts = dict.fromkeys(COUNTS, self._steps) | dict.fromkeys(OF_POSITIVES, positives)
        mean_of = self._steps * self.fabric.world_size
        return {name: _plain(total / counts.get(name, mean_of)) for name, total in totals.items()}


def _plain(value: float) -> float | None:
    """JSON has no NaN."""
    return round(value, 6) if math.isfinite(value) else None


def _lines_before(path: Path, step: int, evaluated: int) -> list[str]:
    """The lines of the old log that remain when a run is resumed after this step and evaluation."""
    if not step or not path.exists():
        return []
    try:
        text = read_bytes(path, limit=2**32).decode(errors="replace")
    except ParseError as error:
        raise SettingsError(f"{escaped(path)}: {error}: delete it to resume without the log so far") from error
    kept = []
    for line in text.splitlines(keepends=True):
        try:
            content = parse_json(line)
            # An evaluation that was not saved is repeated.
            repeated = content["kind"] == "eval" and content["step"] > evaluated
            if content["step"] <= step and not repeated and line.endswith("\n"):
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue  # a line truncated by a kill
    return kept
