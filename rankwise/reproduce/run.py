"""Trains the rows of a table that are missing, and writes the table."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from rankwise.reproduce.tables import TABLES, Row, Table

METRICS = {"AP": "ap", "AP50": "ap50", "AP75": "ap75", "APs": "aps", "APm": "apm", "APl": "apl"}


def reproduce_table(name: str, data: str, seeds: int, out: Path, flags: list[str]) -> Path:
    """Trains what is missing of a table, prints it, and writes it as Markdown and JSON; returns the Markdown's path.

    A run that is done is kept, one that was stopped goes on.

    Args:
        name: The table.
        data: "shapes" or a folder.
        seeds: Runs of each row, with seeds 0, 1, ….
        out: Folder for the runs and the table.
        flags: Further flags for every row.
    """
    table, console = TABLES[name], Console(highlight=False)
    folder = out / name
    measured: dict[str, list[dict[str, float | None]]] = {}
    for seed in range(seeds):
        for row in table.rows:
            run = folder / f"{row.name}-{seed}"
            train_row(table, row, seed, run, data, flags, console)
            measured.setdefault(row.name, []).append(read_run(run))
    command = f"rankwise reproduce {name} --data {data} --seeds {seeds}"
    if flags:
        command += f" --set '{json.dumps(flags)}'"
    path = folder / f"{name}.md"
    path.write_text(markdown(table, measured, command), encoding="utf-8")
    content = {"table": name, "command": command, "rows": measured}
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    console.print(on_screen(table, measured))
    console.print(f"written to {path}", soft_wrap=True)
    return path


def train_row(table: Table, row: Row, seed: int, run: Path, data: str, flags: list[str], console: Console) -> None:
    """Trains one row in a process of its own, unless it is done."""
    if (run / "eval.json").is_file():
        console.print(f"{run}: done before", soft_wrap=True)
        return
    command = [sys.executable, "-m", "rankwise", "train"]
    if (run / "last.ckpt").is_file():
        command += ["--resume", str(run)]
    else:
        # What there is, if anything, was stopped before its first checkpoint.
        command += [table.recipe, "--run", str(run), f"--data.path={data}", f"--train.seed={seed}"]
        command += ["--overwrite"] * (run / "recipe.yaml").is_file() + list(row.flags) + flags
    console.print(f"{run}: training …", soft_wrap=True)
    run.parent.mkdir(parents=True, exist_ok=True)
    log = run.with_suffix(".log")
    with log.open("a", encoding="utf-8") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise RuntimeError(f"{run}: training failed with exit code {code}: {' '.join(last)} (see {log})")


def read_run(run: Path) -> dict[str, float | None]:
    """A run's numbers by the names of the columns."""
    result: dict[str, Any] = json.loads((run / "eval.json").read_text(encoding="utf-8"))
    numbers: dict[str, float | None] = {column: result[key] for column, key in METRICS.items()}
    numbers |= {key.upper(): result["correlation"][key] for key in ("pcc", "scc", "kcc")}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    for part in ("loss", "assign"):
        numbers[f"{part} ms"] = 1000 * steps[-1]["seconds"][part]
    return numbers


def summary(values: list[float | None], column: str) -> str:
    """Mean and, of several runs, standard deviation."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    digits = 3 if column in ("PCC", "SCC", "KCC") else 1
    mean = f"{statistics.mean(known):.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ± {statistics.stdev(known):.{digits}f}"


def cells(table: Table, measured: dict[str, list[dict[str, float | None]]]) -> list[list[str]]:
    """The table as text, a list a row."""
    return [
        [row.name, *(summary([run[column] for run in measured[row.name]], column) for column in table.columns)]
        for row in table.rows
    ]


def markdown(table: Table, measured: dict[str, list[dict[str, float | None]]], command: str) -> str:
    """The table as Markdown, with the command that made it."""
    seeds = len(next(iter(measured.values())))
    spread = f"mean ± standard deviation of {seeds} seeds" if seeds > 1 else "one seed"
    lines = [f"# {table.title[0].upper()}{table.title[1:]}", "", f"`{command}`, {spread}.", ""]
    lines += ["| | " + " | ".join(table.columns) + " |", "|---|" + "---:|" * len(table.columns)]
    lines += ["| " + " | ".join(row) + " |" for row in cells(table, measured)]
    return "\n".join(lines) + "\n"


def on_screen(table: Table, measured: dict[str, list[dict[str, float | None]]]) -> RichTable:
    """The table for the terminal."""
    shown = RichTable(title=table.title)
    shown.add_column("")
    for column in table.columns:
        shown.add_column(column, justify="right")
    for row in cells(table, measured):
        shown.add_row(*row)
    return shown
