"""Untrusted names, escaped for printing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from textwrap import fill
from typing import Any

#: Control characters, line and paragraph separators, marks that reverse the direction of text, invisible spaces, byte
#: order marks, and lone surrogates, which Python uses for bytes in file names that are not UTF-8.
_UNPRINTABLE = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200b\\u200e\\u200f\\u2028\\u2029\\u202a-\\u202e\\u2060\\u2066-\\u2069\\ufeff\\ud800-\\udfff]"
)

#: Maximum length of a class name, of another value in a message, and of a line of a message.
_NAME, _VALUE, _LINE = 60, 200, 2000


def escaped(name: object) -> str:
    """A name for a message, on one line: unprintable characters are escaped, such as ``\\x1b`` or ``\\n``."""
    return _UNPRINTABLE.sub(_escape, str(name))


def escaped_lines(text: object) -> str:
    """A whole message for printing: like :func:`escaped`, but line breaks are kept and long lines are shortened."""
    return "\n".join(_bounded(escaped(line), _LINE) for line in str(text).split("\n"))


def wrapped(line: str, indent: int = 10) -> str:
    """A line of a label and a text, broken at 80 columns with the text below the text."""
    return fill(line, 80, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def short_name(name: str) -> str:
    """The name of a class for a message or a table: escaped, and shortened if it is long."""
    return _bounded(escaped(name), _NAME)


def message_of(error: BaseException) -> str:
    """The message of an error; for system errors, file and reason."""
    if isinstance(error, OSError) and error.strerror:
        return escaped(f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror)
    return escaped_lines(error)


def shortened(value: Any) -> str:
    """A value from a file, quoted for a message: escaped, and shortened if it is long."""
    if isinstance(value, list | tuple | dict) and len(value) > 20:
        return f"{type(value).__name__} of {len(value):,} values"
    return _bounded(escaped(repr(value)), _VALUE)


def join_names(names: Sequence[str], most: int | None = None) -> str:
    """Names of classes, those with commas in quotes; of more than ``most``, the number of the others."""
    rest = len(names) - most if most else 0
    first = (f"'{short_name(name)}'" if "," in name else short_name(name) for name in names[:most])
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")


def _bounded(text: str, most: int) -> str:
    """A text with its beginning and end if it is too long."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} … ({len(text):,} characters) … {text[-(most // 4) :]}"


def counted(count: int, word: str, plural: str = "") -> str:
    """A number with its noun, such as "1 box" or "2,000 boxes"; the plural is the word with an s by default."""
    return f"{count:,} {word if count == 1 else plural or f'{word}s'}"


def did_you_mean(word: str, known: Iterable[str], otherwise: str, most: int = 1, cutoff: float = 0.6) -> str:
    """A phrase with up to ``most`` known names that are closest to a mistyped one, or ``otherwise`` if none is close.

    ``cutoff`` is the required similarity, from 0 to 1.
    """
    names = {name.lower(): name for name in known}
    last = word.lower().rpartition(".")[2].lstrip("-")
    close = [name for name in names if name.rpartition(".")[2].lstrip("-") == last]  # a flag without its section
    close += [name for name in get_close_matches(word.lower(), names, most, cutoff) if name not in close]
    quoted = [names[name] if name.startswith("--") else repr(names[name]) for name in close[:most]]
    return f"did you mean {' or '.join(quoted)}?" if quoted else otherwise


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape", "surrogatepass").decode("ascii")
