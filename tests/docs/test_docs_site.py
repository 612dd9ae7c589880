"""The documentation site builds strictly, is complete, and works without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import ROOT

pytest.importorskip("zensical")
pytest.importorskip("mkdocstrings")


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """`make docs` with what is installed here."""
    make = ["make", "--old-file", ".venv/.installed", "docs", f"BIN={Path(sys.executable).parent}"]
    return subprocess.run(make, cwd=folder, capture_output=True, text=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all that the site is made of."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("docs", "benchmarks", "rankwise"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "CHANGELOG.md", "CONTRIBUTING.md", "zensical.toml", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def site(source: Path) -> Path:
    result = build(source)
    assert result.returncode == 0, result.stdout + result.stderr
    return source / "site"


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text())
        loaded = [tag for tag in tags if re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag)]
        assert not [tag for tag in loaded if 'rel="canonical"' not in tag], page


def test_every_page_is_in_the_navigation_or_linked(site: Path) -> None:
    def entries(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from entries(item)

    named = set(entries(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    linked = "\n".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    linked += (ROOT / "README.md").read_text().replace("](docs/", "](")
    pages = [page for folder in ("docs", "docs/api") for page in (ROOT / folder).glob("*.md")]
    for page in pages:
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name in named or f"]({name}" in linked, f"{name}: nobody finds it"


@pytest.mark.parametrize("room", ["losses", "assign", "models", "data", "evaluation"])
def test_api_pages_show_every_public_name(room: str, site: Path) -> None:
    page = (site / "api" / f"{room}.html").read_text()
    for name in import_module(f"rankwise.{room}").__all__:
        assert re.search(rf'id="rankwise\.[\w.]*\b{name}"', page), name


@pytest.fixture(scope="module")
def small_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a few pages of a line each, which are built in a second."""
    folder = tmp_path_factory.mktemp("small_source")
    shutil.copytree(ROOT / "rankwise", folder / "rankwise", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    settings = (ROOT / "zensical.toml").read_text()
    (folder / "zensical.toml").write_text(re.sub(r"^nav = \[$.*?^\]$", "", settings, flags=re.MULTILINE | re.DOTALL))
    pages = ("docs/index.md", "docs/losses.md", "docs/recipes.md", "benchmarks/results/loss_cost.md")
    for page in (*pages, "CHANGELOG.md", "CONTRIBUTING.md"):
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text("# A page\n")
    return folder


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("[there](losses.md)\n\n[there](losses.md#a-page)\n\n::: rankwise.losses.APLoss", None),
        ("[gone](no_such_page.md)\n\n[gone](losses.md#no-such-heading)", "2 issues found"),
        ("::: rankwise.losses.NoLoss", "Could not collect 'rankwise.losses.NoLoss'"),
    ],
)
def test_a_broken_link_fails_the_build(lines: str, said: str | None, small_source: Path) -> None:
    (small_source / "docs" / "recipes.md").write_text(f"# Recipes\n\n{lines}\n")
    result = build(small_source)
    printed = result.stdout + result.stderr
    assert (result.returncode == 0) == (said is None), printed
    assert said is None or said in printed
