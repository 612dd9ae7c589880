"""Pages of all reproduced tables: a summary, and one page per dataset."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rankwise.evaluation.figures import save_figure
from rankwise.files.names import escaped
from rankwise.files.parsing import ParseError, read_json, read_text
from rankwise.files.writing import make_folder, write_text
from rankwise.reproduce.figures import numbers
from rankwise.reproduce.plans import ReproduceError
from rankwise.reproduce.tables import TABLES
from rankwise.reproduce.text import Results, markdown, seeds_of

#: Name of the page with the longer runs on all datasets.
LONG = "long"


@dataclass(frozen=True)
class _Reproduced:
    """A reproduced table: the name of its output folder, its results, and the file names of its figures."""

    heading: str
    results: Results
    figures: list[str]


def write_summary(folders: Sequence[Path], page: Path) -> Path:
    """Writes a summary of all tables, and one page per dataset with the tables themselves.

    Pages, figures and JSON files go into a folder with the name of the summary. Tables of earlier calls stay there and
    are written again; seeds that were run elsewhere by the same command are kept. So are notes on a table, between
    ``<!-- notes: NAME -->`` and ``<!-- end -->``.

    ``NAME_…`` holds more runs on the dataset of ``NAME`` and shares its page, except for ``NAME_long``: the longer runs
    on all datasets have a page of their own.

    Args:
        folders: Output folders of `rankwise reproduce` (``--out``); empty rewrites the pages from the JSON files.
        page: The Markdown file of the summary.
    """
    pages_folder = page.with_suffix("")
    make_folder(pages_folder)
    for folder in folders:
        _copy_tables(folder, pages_folder)
    tables = [_read(file) for file in sorted(pages_folder.glob("*.json"))]
    order = list(TABLES)
    tables.sort(key=lambda done: (done.heading, order.index(done.results.name)))
    kept: dict[str, str] = {}
    for file in (page, *sorted(pages_folder.glob("*.md"))):
        kept |= _notes(file)
    headings = list(dict.fromkeys(done.heading for done in tables))
    pages: dict[str, list[str]] = {}
    for heading in headings:
        pages.setdefault(_page_of(heading, headings), []).append(heading)
    if LONG in pages:
        pages[LONG] = pages.pop(LONG)  # last
    lines = [
        "# Results",
        "",
        "`rankwise reproduce summary` generates these pages from the runs of the commands on them.",
        "",
        *_note(kept, "summary"),
    ]
    for name, parts in pages.items():
        own = [done for done in tables if done.heading in parts]
        write_text(pages_folder / f"{name}.md", _page(name, parts, own, kept))
        lines += [f"## [{_title(name)}]({pages_folder.name}/{name}.md)", "", *_overview(own)]
    write_text(page, "\n".join(lines).rstrip() + "\n")
    return page


def _copy_tables(folder: Path, pages_folder: Path) -> None:
    """Copies the tables of an output folder, with their figures, next to the pages."""
    done = [name for name in TABLES if (folder / name / f"{name}.json").is_file()]
    if not done:
        raise ReproduceError(f"{folder}: no tables found; create them with: rankwise reproduce TABLE --out {folder}")
    heading = folder.resolve().name
    for name in done:
        content = _content(folder / name / f"{name}.json", name)
        results = _results(content)
        figures = sorted((folder / name).glob("*.png"))
        for figure in figures:
            shutil.copyfile(figure, pages_folder / f"{heading}_{figure.name}")
        page = pages_folder / f"{heading}_{name}.json"
        if page.is_file():
            complete = _with_earlier_seeds(results, _results(_content(page, name)))
            if complete.to_dict() != results.to_dict():
                content = complete.to_dict()
                save_figure(numbers(complete), pages_folder / f"{heading}_{name}.png")
        content["figures"] = [f"{heading}_{figure.name}" for figure in figures]
        write_text(page, json.dumps(content, indent=1) + "\n")


def _with_earlier_seeds(new: Results, earlier: Results) -> Results:
    """The results, with the seeds that only an earlier call of the same command has, as from another machine."""

    def without_seeds(command: str) -> str:
        return re.sub(r" --seeds \d+", "", command)

    if without_seeds(new.command) != without_seeds(earlier.command):
        return new
    not_run: Mapping[str, float | None] = {}
    rows = {
        row: [now or before for now, before in zip_longest(runs, earlier.measured.get(row, []), fillvalue=not_run)]
        for row, runs in new.measured.items()
    }
    most = max([new, earlier], key=lambda results: max(map(len, results.measured.values())))
    return replace(new, measured=rows, command=most.command)


def _content(file: Path, name: str) -> dict[str, Any]:
    try:
        content = read_json(file)
        _results(content).verdicts()
    except (ParseError, KeyError, TypeError, AttributeError) as error:
        raise ReproduceError(
            f"{escaped(file)}: damaged ({error}); create it again with: rankwise reproduce {name} --train false"
        ) from error
    return dict(content)


def _results(content: Mapping[str, Any]) -> Results:
    return Results(content["table"], content["rows"], content["command"], content["as_paper"])


def _read(file: Path) -> _Reproduced:
    content = _content(file, "TABLE")
    heading = file.stem.removesuffix(f"_{content['table']}")
    return _Reproduced(heading, _results(content), list(content.get("figures", [])))


def _page_of(heading: str, headings: Sequence[str]) -> str:
    base = next((other for other in headings if heading.startswith(f"{other}_")), heading)
    return LONG if base != heading and heading.endswith("_long") else base


def _title(name: str) -> str:
    return {LONG: "Longer runs", "shapes": "The built-in dataset"}.get(name, f"On {name}")


def _page(name: str, headings: Sequence[str], tables: Sequence[_Reproduced], kept: dict[str, str]) -> str:
    lines = [
        f"# {_title(name)}",
        "",
        "`rankwise reproduce summary` generates this page from the runs of the commands below.",
        "",
    ]
    for heading in headings:
        lines += [f"## On {heading}", "", *_note(kept, heading)]
        for done in tables:
            if done.heading == heading:
                figures = [Path(figure) for figure in done.figures]
                lines += [markdown(done.results, figures, level=3), *_note(kept, f"{heading}/{done.results.name}")]
    return "\n".join(lines).rstrip() + "\n"


def _overview(tables: Sequence[_Reproduced]) -> list[str]:
    """The tables of a page, one per line, with the number of claims that held."""
    lines = ["| table | runs | claims: held | unclear | not held | not measured |", "|---|---|---:|---:|---:|---:|"]
    for done in tables:
        held = Counter(verdict.held for verdict in done.results.verdicts())
        title = done.results.table.title
        cells = [f"`{done.heading}`: {title}", seeds_of(done.results)]
        cells += [str(held[answer]) for answer in ("yes", "unclear", "no", "not measured")]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _note(kept: dict[str, str], name: str) -> list[str]:
    return [f"<!-- notes: {name} -->", *([kept[name]] if kept.get(name) else []), "<!-- end -->", ""]


def _notes(page: Path) -> dict[str, str]:
    if not page.is_file():
        return {}
    try:
        text = read_text(page)
    except ParseError as error:
        raise ReproduceError(f"{escaped(page)}: its notes cannot be kept: {error}") from error
    # Pages of earlier versions call them "own words".
    found = re.findall(r"<!-- (?:notes|own words): (.+?) -->(.*?)<!-- end -->", text, re.DOTALL)
    return {name: text.strip() for name, text in found}
