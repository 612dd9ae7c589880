"""Reads untrusted JSON, YAML and text files: regular files only, with size limits."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

from rankwise.errors import UserError
from rankwise.files.names import escaped, shortened

#: Maximum size in bytes of a file with settings or results. Annotations have another limit.
LIMIT = 64 * 2**20
#: Maximum size in bytes of a YAML file, which is slow to parse and usually written by hand.
YAML_LIMIT = 2**20
#: Maximum nesting of lists and mappings.
DEPTH = 50


class ParseError(UserError, ValueError):
    """A file cannot be read; the message gives the reason, without the file name."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a regular file for reading. Pipes and devices are refused, because they might block forever.

    Raises:
        ParseError: If it is not a regular file, or no file can have this name.
        OSError: If it cannot be opened.
    """
    if "\0" in os.fspath(path):
        raise ParseError("its name has a null byte")
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(21, "Is a directory", os.fspath(path))
        if not stat.S_ISREG(mode):
            raise ParseError("it is a pipe or a device, not a regular file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_bytes(path: str | os.PathLike[str], limit: int = LIMIT) -> bytes:
    """The content of a regular file of at most ``limit`` bytes; raises as :func:`open_regular`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ParseError(f"it has {size:,} bytes; the limit is {limit:,}")
        return file.read()


def read_text(path: str | os.PathLike[str], limit: int = LIMIT) -> str:
    """The text of a regular file in UTF-8, with or without a byte order mark; raises as :func:`read_bytes`."""
    return _decoded(read_bytes(path, limit))


def read_json(path: str | os.PathLike[str], limit: int = LIMIT) -> Any:
    """Reads a JSON file; raises like :func:`read_bytes`."""
    return parse_json(read_bytes(path, limit))


def parse_json(text: str | bytes) -> Any:
    """Parses a JSON text.

    Raises:
        ParseError: If it is not JSON, nested too deeply, or has a key twice or a number of thousands of digits.
    """
    try:
        return json.loads(_decoded(text) if isinstance(text, bytes) else text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at").removesuffix(" starting")
        raise ParseError(f"not valid JSON: {what} in line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise ParseError("not valid JSON: it is nested too deeply") from error
    except ParseError:
        raise
    except ValueError as error:  # an integer with more digits than Python converts
        raise ParseError("not valid JSON: a number has too many digits") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; Python would keep the last value of a key that is there twice, and drop the others."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _twice(next(key for key in keys if keys.count(key) > 1))
    return values


def _twice(key: object, place: str = "") -> ParseError:
    return ParseError(f"it has {shortened(key)} twice{place}: keep one of them")


def read_yaml(path: str | os.PathLike[str], as_text: bool = False) -> Any:
    """Reads a YAML file; raises like :func:`read_bytes` and :func:`parse_yaml`."""
    return parse_yaml(read_bytes(path, YAML_LIMIT), as_text)


def parse_yaml(text: str | bytes, as_text: bool = False) -> Any:
    """Parses a YAML text with plain values only. With ``as_text``, every value stays text: ``no`` and ``1.0`` may be
    names.

    Raises:
        ParseError: If it is not YAML, is nested too deeply, or has a key twice, an ambiguous number such as 010, or
            aliases, which can expand to gigabytes.
    """
    import yaml

    text = _decoded(text) if isinstance(text, bytes) else text
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                mark = event.start_mark
                raise ParseError(
                    f"it has an alias (*{escaped(event.anchor)}) in line {mark.line + 1}: write the value out"
                )
            if getattr(event, "tag", None) and (as_text or "python" in event.tag):
                mark = event.start_mark
                raise ParseError(f"not valid YAML: it has a tag ({escaped(event.tag)}) in line {mark.line + 1}")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                raise ParseError("not valid YAML: it is nested too deeply")
        loader = yaml.BaseLoader(text) if as_text else yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            _refuse_ambiguous(node)
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ParseError(f"not valid YAML: {escaped(problem)}{place}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ParseError):
            raise
        raise ParseError(f"not valid YAML: {escaped(str(error).splitlines()[0])}") from error


def _refuse_ambiguous(node: Any) -> None:
    """Raises a ParseError if a mapping has a key twice, of which PyYAML would drop all but the last, or if a number is
    octal or sexagesimal, as only YAML 1.1 reads it: 010 would be 8, and 1:30 would be 90."""
    if node is None or isinstance(node.value, str):
        if node and node.tag.endswith((":int", ":float")) and re.match(r"[-+]?0_*\d|.*:", node.value):
            raise ParseError(
                f"{escaped(node.value)} in line {node.start_mark.line + 1} is ambiguous: write a number without "
                f"leading zeros and colons, or put it in quotes"
            )
        return
    keys = set()
    for part in node.value:
        key, value = part if isinstance(part, tuple) else (None, part)
        if key is not None and isinstance(key.value, str):
            if key.value in keys:
                raise _twice(key.value, f", the second time in line {key.start_mark.line + 1}")
            keys.add(key.value)
        _refuse_ambiguous(value)


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParseError(f"not text in UTF-8: {error.reason} at byte {error.start:,}") from error


def is_number(value: object) -> bool:
    """Whether a value from a file is a finite number: JSON may have NaN, and integers that no float holds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def set_aside(path: Path) -> Path:
    """Renames an unusable file, so that it can be created again without losing it; returns the new name."""
    aside = path.with_name(f"{path.name}.aside")
    path.replace(aside)
    return aside
