"""A Markdown page with all tables that have been reproduced."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from rankwise.files.names import shown
from rankwise.files.parsing import ParseError, read_json
from rankwise.files.writing import make_folder, write_text
from rankwise.reproduce.plans import ReproduceError
from rankwise.reproduce.tables import TABLES
from rankwise.reproduce.text import Results, markdown


def write_summary(folders: Sequence[Path], page: Path) -> Path:
    """Writes all tables in the folders to one page, with figures and JSON files in a folder of the same name.

    Notes on a table, between ``<!-- notes: NAME -->`` and ``<!-- end -->``, are kept.

    Args:
        folders: Output folders of `rankwise reproduce` (``--out``). Each becomes a section of the page.
        page: The Markdown file.
    """
    kept = _notes(page)
    lines = [
        "# Results",
        "",
        "`rankwise reproduce summary` generates this page from the runs of the commands below.",
        "",
    ]
    for folder in folders:
        done = [name for name in TABLES if (folder / name / f"{name}.json").is_file()]
        if not done:
            raise ReproduceError(
                f"{folder}: no tables found; create them with: rankwise reproduce TABLE --out {folder}"
            )
        heading = folder.resolve().name
        lines += [f"## On {heading}", "", *_note(kept, heading)]
        for name in done:
            file = folder / name / f"{name}.json"
            try:
                content = read_json(file)
                results = Results(name, content["rows"], content["command"], content["as_paper"])
            except (ParseError, KeyError, TypeError) as error:
                raise ReproduceError(
                    f"{shown(file)}: damaged ({error}); create it again with: rankwise reproduce {name} --train false"
                ) from error
            figures = []
            for file in sorted([*(folder / name).glob("*.png"), folder / name / f"{name}.json"]):
                beside = page.with_suffix("") / f"{heading}_{file.name}"
                make_folder(beside.parent)
                shutil.copyfile(file, beside)
                if file.suffix == ".png":
                    figures.append(beside.relative_to(page.parent))
            lines += [markdown(results, figures, level=3), *_note(kept, f"{heading}/{name}")]
    write_text(page, "\n".join(lines).rstrip() + "\n")
    return page


def _note(kept: dict[str, str], name: str) -> list[str]:
    return [f"<!-- notes: {name} -->", *([kept[name]] if kept.get(name) else []), "<!-- end -->", ""]


def _notes(page: Path) -> dict[str, str]:
    if not page.is_file():
        return {}
    # Pages of earlier versions call them "own words".
    found = re.findall(
        r"<!-- (?:notes|own words): (.+?) -->(.*?)<!-- end -->", page.read_text(encoding="utf-8"), re.DOTALL
    )
    return {name: text.strip() for name, text in found}
