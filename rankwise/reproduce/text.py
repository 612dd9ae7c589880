"""A table as Markdown, as JSON and for the terminal, with the values of the paper next to ours."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from rankwise.reproduce.claims import Verdict, digits_of
from rankwise.reproduce.rows import Row
from rankwise.reproduce.tables import TABLES, Table, paper_row


@dataclass(frozen=True)
class Results:
    """The results of the runs of a table.

    Attributes:
        name: The name of the table.
        measured: Per row of the table, or per row that was chosen with ``--rows``, one dict of metrics per seed, in
            order. A dict is empty if the seed has not been run.
        command: The command that produced them.
        as_paper: Whether the rows ran the paper's recipes instead of those for small data.
    """

    name: str
    measured: Mapping[str, Sequence[Mapping[str, float | None]]]
    command: str
    as_paper: bool = False

    @property
    def table(self) -> Table:
        """The table."""
        return TABLES[self.name]

    @property
    def rows(self) -> list[Row]:
        """The rows of the table, or those that were chosen."""
        return [row for row in self.table.rows if row.name in self.measured]

    def verdicts(self) -> list[Verdict]:
        """Whether each claim of the paper held, without those about rows that were not chosen."""
        found = [claim.verdict(self.measured) for claim in self.table.claims]
        complete = len(self.rows) == len(self.table.rows)
        return [verdict for verdict in found if complete or verdict.held != "not measured"]

    def to_dict(self) -> dict[str, Any]:
        """The results as plain values."""
        return {
            "table": self.name,
            "command": self.command,
            "as_paper": self.as_paper,
            "rows": {name: [dict(run) for run in runs] for name, runs in self.measured.items()},
            "paper": {row.name: paper_row(self.name, row) for row in self.rows},
            "claims": [vars(verdict) for verdict in self.verdicts()],
        }


def headline(results: Results) -> list[str]:
    """The column names: the row name, then ours and the paper's in turn."""
    names = []
    for column in results.table.columns:
        names += [column, f"{column} paper"] if _in_paper(results, column) else [column]
    return ["", *names]


def cells(results: Results) -> list[list[str]]:
    """The table as text, one list per row."""
    lines = []
    for row in results.rows:
        line, paper = [row.name], paper_row(results.name, row)
        for column in results.table.columns:
            line.append(summary([run.get(column) for run in results.measured[row.name]], column))
            if _in_paper(results, column):
                line.append(summary([paper.get(column)], column))
        lines.append(line)
    return lines


def summary(values: Sequence[float | None], column: str) -> str:
    """The mean, and for several runs the standard deviation."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    if column.startswith("AP change"):
        return f"{max(known):.1g}"
    digits = digits_of(column)
    mean = f"{statistics.mean(known):.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ± {statistics.stdev(known):.{digits}f}"


def seeds_of(results: Results) -> str:
    """The number of seeds, in words."""
    numbers = sorted({sum(map(bool, runs)) for runs in results.measured.values()})
    if numbers == [1]:
        return "one seed"
    if len(numbers) == 1:
        return f"mean ± standard deviation of {numbers[0]} seeds"
    return f"{numbers[0]} to {numbers[-1]} seeds per row, mean ± standard deviation"


def markdown(results: Results, figures: Sequence[Path] = (), level: int = 1) -> str:
    """The table as Markdown, with its command and the verdicts on the paper's claims."""
    table, names = results.table, headline(results)
    lines = [f"{'#' * level} {table.title[0].upper()}{table.title[1:]}", ""]
    lines += [f"`{results.command}`, {seeds_of(results)}.", ""]
    if table.note and not results.as_paper:
        lines += [table.note, ""]
    lines += ["| " + " | ".join(names) + " |", "|---|" + "---:|" * (len(names) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in cells(results)]
    if verdicts := results.verdicts():
        whose = "The paper's claim" if _compared(results) else "Claim"
        lines += ["", f"| {whose} | held here | found |", "|---|---|---|"]
        lines += [f"| {verdict.claim} | {verdict.held} | {verdict.found} |" for verdict in verdicts]
    for figure in figures:
        lines += ["", f"![{figure.stem.replace('_', ' ')}]({figure.as_posix()})"]
    return "\n".join(lines) + "\n"


def on_screen(results: Results, console: Console) -> RichTable:
    """The table for the terminal. If it is too narrow, the values of the paper are below ours in parentheses."""
    names, rows = headline(results), cells(results)
    wide = _screen_table(results, names, rows)
    if console.measure(wide, options=console.options.update(width=1000)).maximum <= console.width:
        return wide
    ours = [index for index, name in enumerate(names) if not name.endswith(" paper")]
    narrow = []
    for row in rows:
        below = [f"\n({row[index + 1]})" if index + 1 < len(row) and index + 1 not in ours else "" for index in ours]
        narrow.append([row[index].replace(" ± ", "\n± ") + paper for index, paper in zip(ours, below, strict=True)])
    table = _screen_table(results, [names[index] for index in ours], narrow)
    if len(ours) < len(names):
        table.caption = "in parentheses: values of the paper"
    return table


def _screen_table(results: Results, names: list[str], rows: list[list[str]]) -> RichTable:
    table = RichTable(title=results.table.title)
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index else "left", no_wrap=index > 0)
    for row in rows:
        table.add_row(*row)
    return table


def verdicts_on_screen(results: Results) -> RichTable:
    """The claims for the terminal."""
    table = RichTable(title="claims of the paper" if _compared(results) else "claims")
    for name in ("claim", "held here", "found"):
        table.add_column(name)
    for verdict in results.verdicts():
        table.add_row(verdict.claim, verdict.held, verdict.found)
    return table


def _compared(results: Results) -> bool:
    return any(row.paper is not None for row in results.table.rows)


def _in_paper(results: Results, column: str) -> bool:
    return any(column in paper_row(results.name, row) for row in results.table.rows)
