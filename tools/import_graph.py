"""Writes which package imports which into docs/architecture.md, from the layers in pyproject.toml and the code itself.

Run: python tools/import_graph.py [--check]
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- imports: begin, written by tools/import_graph.py -->", "<!-- imports: end -->"


def layers() -> list[list[str]]:
    """Packages of each layer, top first, as the contract of import-linter has them."""
    (contract,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def table() -> str:
    """A row per package, bottom layer first: what it imports, in the same order."""
    graph = grimp.build_graph("rankwise", cache_dir=None)
    order = [name for layer in reversed(layers()) for name in layer]
    for name in order:
        graph.squash_module(f"rankwise.{name}")
    lines = ["| layer | package | imports |", "|---|---|---|"]
    for number, layer in enumerate(reversed(layers())):
        for name in layer:
            direct = graph.find_modules_directly_imported_by(f"rankwise.{name}")
            imported = {other.removeprefix("rankwise.") for other in direct}
            known = [f"`{other}`" for other in order if other in imported and other != name]
            lines.append(f"| {number} | `{name}` | {' '.join(known) or '–'} |")
    return "\n".join(lines)


def page() -> str:
    """The page with its table as it should be now."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main(check: bool) -> None:
    text = page()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
    elif text != PAGE.read_text(encoding="utf-8"):
        sys.exit("docs/architecture.md is out of date: run python tools/import_graph.py")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date, and write nothing")
    main(**vars(parser.parse_args()))
