"""The code in README and docs: fenced blocks, and inline code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A piece of code and where it stands.

    Attributes:
        file: From the project's folder on.
        line: The first line of the code, counted from 1.
        language: What the fence names; empty for code within a sentence.
        text: The code.
    """

    file: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def fenced(text: str, file: str) -> list[Block]:
    """The fenced blocks of a page."""
    return [
        Block(file, text.count("\n", 0, match.start(2)) + 1, match[1], match[2])
        for match in re.finditer(r"^```(\S*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def inline(text: str, file: str) -> Iterator[Block]:
    """Code within sentences and tables."""
    without = re.sub(r"^```.*?^```$", lambda match: "\n" * match[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    for match in re.finditer(r"`([^`]+)`", without):
        yield Block(file, without.count("\n", 0, match.start()) + 1, "", " ".join(match[1].split()))


def indented_commands(text: str) -> list[str]:
    """Commands in blocks that are made by indenting, which no test would see."""
    return re.findall(r"^ {4}((?:rankwise|pip|python|make|torchrun|import|from) .*)$", text, re.MULTILINE)


def of_all_pages(language: str) -> list[Block]:
    """All fenced blocks of one language."""
    return [
        block
        for page in PAGES
        for block in fenced(page.read_text(), str(page.relative_to(ROOT)))
        if block.language == language
    ]
