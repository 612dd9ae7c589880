"""Trains the rows of a table that are missing, and writes the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from rankwise.reproduce.figures import draw_figures
from rankwise.reproduce.plans import Plan, train_once
from rankwise.reproduce.tables import TABLES
from rankwise.reproduce.text import Results, markdown, on_screen, verdicts_on_screen

METRICS = {"AP": "ap", "AP50": "ap50", "AP75": "ap75", "APs": "aps", "APm": "apm", "APl": "apl"}


def reproduce_table(name: str, plan: Plan, seeds: int, command: str, train: bool = True) -> Path:
    """Trains what is missing of a table, prints it, and writes it with its figures; returns the Markdown's path.

    A run that is done is kept, one that was stopped goes on.

    Args:
        name: The table.
        plan: How its rows are trained, and where.
        seeds: Runs of each row, with seeds 0, 1, ….
        command: What the user typed, for the reader of the table.
        train: False shows the runs that are done and trains nothing.
    """
    table, console = TABLES[name], Console(highlight=False)
    if train:
        plan.prepare(lambda text: console.print(text, soft_wrap=True))
    runs: dict[str, list[Path | None]] = {row.name: [] for row in table.rows}
    for seed in range(seeds):
        for row in table.rows:
            run = plan.run_of(row, seed)
            if train:
                train_once(plan.command(row, seed, run), run, lambda text: console.print(text, soft_wrap=True))
            runs[row.name].append(run if (run / "eval.json").is_file() else None)
    measured = {row: [read_run(run) if run else {} for run in all_seeds] for row, all_seeds in runs.items()}
    results = Results(name, measured, command, plan.recipe is None)
    folder = plan.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    figures = draw_figures(results, runs, folder)
    path = folder / f"{name}.md"
    path.write_text(markdown(results, [Path(figure.name) for figure in figures]), encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps(results.to_dict(), indent=1) + "\n", encoding="utf-8")
    console.print(on_screen(results, console))
    if table.note and not results.as_paper:
        console.print(table.note)
    if table.claims:
        console.print(verdicts_on_screen(results))
    console.print(f"written to {path}", soft_wrap=True)
    return path


def read_run(run: Path) -> dict[str, float | None]:
    """A run's numbers by the names of the columns."""
    result: dict[str, Any] = json.loads((run / "eval.json").read_text(encoding="utf-8"))
    numbers: dict[str, float | None] = {column: result[key] for column, key in METRICS.items()}
    numbers |= {key.upper(): result["correlation"][key] for key in ("pcc", "scc", "kcc")}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    for part in ("loss", "assign"):
        numbers[f"{part} ms"] = _milliseconds(steps, part)
    return numbers


def _milliseconds(steps: list[dict[str, Any]], part: str) -> float | None:
    """What a part takes a step, by the log's last line: it has the means since the run was started or resumed."""
    return 1000 * steps[-1]["seconds"][part] if len(steps) > 2 else None  # fewer have the compilation in them
