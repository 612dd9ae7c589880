"""One page of all tables that have been reproduced."""

from __future__ import annotations

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
    """Writes the tables found in folders as one page; figures and numbers go beside it, into a folder of its name.

    Text of the page between ``<!-- own words: NAME -->`` and ``<!-- end -->`` is kept: it is where a reader's
    remarks on a table go.

    Args:
        folders: Folders that `rankwise reproduce` has written to (``--out``), each a part of the page.
        page: The Markdown file.
    """
    kept = _own_words(page)
    lines = [
        "# Results",
        "",
        "Written by `rankwise reproduce summary` from the runs that the commands below made.",
        "",
    ]
    for folder in folders:
        done = [name for name in TABLES if (folder / name / f"{name}.json").is_file()]
        if not done:
            raise ReproduceError(f"{folder}: has no tables; rankwise reproduce TABLE --out {folder} makes them")
        heading = folder.resolve().name
        lines += [f"## On {heading}", "", *_words(kept, heading)]
        for name in done:
            file = folder / name / f"{name}.json"
            try:
                content = read_json(file)
                results = Results(name, content["rows"], content["command"], content["as_paper"])
            except (ParseError, KeyError, TypeError) as error:
                raise ReproduceError(
                    f"{shown(file)}: damaged ({error}); make it again with: rankwise reproduce {name} --train false"
                ) from error
            figures = []
            for file in sorted([*(folder / name).glob("*.png"), folder / name / f"{name}.json"]):
                beside = page.with_suffix("") / f"{heading}_{file.name}"
                make_folder(beside.parent)
                shutil.copyfile(file, beside)
                if file.suffix == ".png":
                    figures.append(beside.relative_to(page.parent))
            lines += [markdown(results, figures, level=3), *_words(kept, f"{heading}/{name}")]
    write_text(page, "\n".join(lines).rstrip() + "\n")
    return page


def _words(kept: dict[str, str], name: str) -> list[str]:
    return [f"<!-- own words: {name} -->", *([kept[name]] if kept.get(name) else []), "<!-- end -->", ""]


def _own_words(page: Path) -> dict[str, str]:
    if not page.is_file():
        return {}
    parts = page.read_text(encoding="utf-8").split("<!-- own words: ")[1:]
    names = [part.partition(" -->") for part in parts]
    return {name: rest.partition("<!-- end -->")[0].strip() for name, _, rest in names}
