"""Untrusted names, escaped for printing."""

from __future__ import annotations

import re
from typing import Any

#: Control characters, line and paragraph separators, marks that reverse the direction of text, and lone surrogates,
#: which Python uses for bytes in file names that are not UTF-8.
_UNPRINTABLE = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)

#: Maximum length of a value in a message.
_LONGEST = 200


def shown(name: object) -> str:
    """A name for a message, on one line: unprintable characters are escaped, such as ``\\x1b`` or ``\\n``."""
    return _UNPRINTABLE.sub(_escape, str(name))


def shown_lines(text: object) -> str:
    """A whole message for printing: like :func:`shown`, but line breaks are kept."""
    return "\n".join(map(shown, str(text).split("\n")))


def message_of(error: BaseException) -> str:
    """The message of an error; for system errors, file and reason."""
    if isinstance(error, OSError) and error.strerror:
        return shown(f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror)
    return shown_lines(error)


def shortened(value: Any) -> str:
    """A value from a file, quoted for a message: escaped, and shortened if it is long."""
    if isinstance(value, list | tuple | dict) and len(value) > 20:
        return f"{type(value).__name__} of {len(value):,} values"
    text = shown(repr(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape", "surrogatepass").decode("ascii")
