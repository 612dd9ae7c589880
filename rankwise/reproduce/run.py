"""Trains the missing rows of a table and writes the table."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rankwise.files.names import escaped, shortened
from rankwise.files.parsing import ParseError, is_number, read_json
from rankwise.files.writing import make_folder, write_text
from rankwise.report.runs import read_metrics
from rankwise.reproduce.calibration import calibration_numbers
from rankwise.reproduce.figures import draw_figures, minutes
from rankwise.reproduce.plans import Plan, ReproduceError, train_once
from rankwise.reproduce.tables import TABLES
from rankwise.reproduce.text import Results, markdown, on_screen, verdicts_on_screen

METRICS = {"AP": "ap", "AP50": "ap50", "AP75": "ap75", "APs": "aps", "APm": "apm", "APl": "apl"}


def reproduce_table(
    name: str, plan: Plan, seeds: int, command: str, train: bool = True, only: Collection[str] = ()
) -> Path:
    """Trains the missing rows of a table, prints it, and writes it with its figures; returns the Markdown file.

    Finished runs are kept, stopped runs are resumed.

    Args:
        name: The table.
        plan: How and where its rows are trained.
        seeds: Number of runs per row, with seeds 0, 1, ….
        command: The command line, shown in the table.
        train: False shows the finished runs without training.
        only: Names of the rows; empty means all rows of the table.
    """
    table, console = TABLES[name], Console(highlight=False)

    def say(text: str) -> None:
        console.print(escaped(text), soft_wrap=True, markup=False)

    plan = replace(plan, from_backbone=table.from_backbone)
    if train:
        plan.prepare(say)
    rows = [row for row in table.rows if not only or row.name in only]
    runs: dict[str, list[Path | None]] = {row.name: [] for row in rows}
    for seed in range(seeds):
        for row in rows:
            run = plan.run_of(row, seed)
            if train:
                train_once(plan.command(row, seed, run), run, say)
            runs[row.name].append(run if (run / "eval.json").is_file() else None)
    measured = {row: [read_run(run) if run else {} for run in all_seeds] for row, all_seeds in runs.items()}
    folder = plan.folder / name
    make_folder(folder)
    if name == "calibration":
        for label, all_seeds in runs.items():
            for numbers, done in zip(measured[label], all_seeds, strict=True):
                if done is not None:
                    numbers |= calibration_numbers(done, plan.data == "shapes", folder, label)
    results = Results(name, measured, command, plan.recipe is None)
    figures = draw_figures(results, runs, folder)
    path = folder / f"{name}.md"
    write_text(path, markdown(results, [Path(figure.name) for figure in figures]))
    write_text(folder / f"{name}.json", json.dumps(results.to_dict(), indent=1) + "\n")
    console.print(on_screen(results, console))
    if table.note and not results.as_paper:
        console.print(table.note)
    if table.claims:
        console.print(verdicts_on_screen(results))
    say(f"written to {path}")
    return path


def read_run(run: Path) -> dict[str, float | None]:
    """The metrics of a run by column of the table."""
    try:
        result: dict[str, Any] = read_json(run / "eval.json")
        numbers: dict[str, float | None] = {column: result[key] for column, key in METRICS.items()}
        numbers |= {key.upper(): result["correlation"][key] for key in ("pcc", "scc", "kcc")}
        check = result.get("reliability") or {}
        numbers |= {name: check.get(part, {}).get("ece") for name, part in (("ECE raw", "before"), ("ECE", "after"))}
        for name, value in numbers.items():
            if value is not None and not is_number(value):
                raise TypeError(f"{name} is {shortened(value)}")
    except (ParseError, KeyError, TypeError, AttributeError) as error:
        raise ReproduceError(
            f"{escaped(run)}/eval.json: damaged ({error}); create it again with: rankwise eval {run}"
        ) from error
    metrics = run / "metrics.jsonl"
    steps = [line for line in read_metrics(metrics) if line.get("kind") == "train"]
    try:
        for part in ("loss", "assign"):
            numbers[f"{part} ms"] = _milliseconds(steps, part)
        numbers["minutes"] = minutes(steps[-1]) if steps else None
    except (KeyError, TypeError, AttributeError) as error:
        raise ReproduceError(
            f"{escaped(metrics)}: damaged: its last line of kind train has no seconds per part"
        ) from error
    return numbers


def _milliseconds(steps: list[dict[str, Any]], part: str) -> float | None:
    """The mean time of a part of a step since the run was started or resumed, from the last line of the log."""
    return 1000 * steps[-1]["seconds"][part] if len(steps) > 2 else None  # fewer lines include the compilation
