"""The one way in which JSON, YAML and text of untrusted origin is read: regular files only, with limits."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from rankwise.files.names import shown

#: Bytes that a file of settings or results may have. Annotations of a dataset have a limit of their own.
LIMIT = 64 * 2**20
#: Bytes of a YAML file: it is read slowly, and a person writes it.
YAML_LIMIT = 2**20
#: Lists and mappings that may be inside each other.
DEPTH = 50


class ParseError(ValueError):
    """A file cannot be read; the message, without the file's name, says why."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading; a pipe or a device, which might never end or never answer, is refused.

    Raises:
        ParseError: If it is not a regular file.
        OSError: If it cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(21, "Is a directory", os.fspath(path))
        if not stat.S_ISREG(mode):
            raise ParseError("it is not a regular file but a pipe or a device")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_bytes(path: str | os.PathLike[str], limit: int = LIMIT) -> bytes:
    """The content of a regular file.

    Args:
        path: The file.
        limit: The most bytes it may have.

    Raises:
        ParseError: If it is not a regular file, or larger.
        OSError: If it cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ParseError(f"it has {size:,} bytes and the limit is {limit:,}")
        return file.read()


def read_text(path: str | os.PathLike[str], limit: int = LIMIT) -> str:
    """The text of a regular file in UTF-8, with or without a byte order mark; raises as :func:`read_bytes`."""
    return _decoded(read_bytes(path, limit))


def read_json(path: str | os.PathLike[str], limit: int = LIMIT) -> Any:
    """What a JSON file holds; raises as :func:`read_bytes`."""
    return parse_json(read_bytes(path, limit))


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds.

    Raises:
        ParseError: If it is not JSON, nested too deeply, or has a number of thousands of digits.
    """
    try:
        return json.loads(_decoded(text) if isinstance(text, bytes) else text)
    except json.JSONDecodeError as error:
        raise ParseError(f"not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise ParseError("not valid JSON: it is nested too deeply") from error
    except ParseError:
        raise
    except ValueError as error:  # an integer of more digits than Python converts
        raise ParseError("not valid JSON: it has a number of too many digits") from error


def read_yaml(path: str | os.PathLike[str], as_text: bool = False, limit: int = YAML_LIMIT) -> Any:
    """What a YAML file holds; raises as :func:`read_bytes`.

    Args:
        path: The file.
        as_text: Leave every value the text that is written there: ``no`` and ``1.0`` may be names.
        limit: The most bytes it may have.
    """
    return parse_yaml(read_bytes(path, limit), as_text)


def parse_yaml(text: str | bytes, as_text: bool = False) -> Any:
    """What a YAML text holds: plain values only.

    Args:
        text: The text.
        as_text: Leave every value the text that is written there.

    Raises:
        ParseError: If it is not YAML, nested too deeply, or has aliases, by which few bytes become gigabytes.
    """
    import yaml

    text = _decoded(text) if isinstance(text, bytes) else text
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                mark = event.start_mark
                raise ParseError(
                    f"it has an alias (*{shown(event.anchor)}) in line {mark.line + 1}: write the value out"
                )
            if getattr(event, "tag", None) and (as_text or "python" in event.tag):
                mark = event.start_mark
                raise ParseError(f"not valid YAML: it has a tag ({shown(event.tag)}) in line {mark.line + 1}")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                raise ParseError("not valid YAML: it is nested too deeply")
        loader = yaml.BaseLoader(text) if as_text else yaml.SafeLoader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ParseError(f"not valid YAML: {shown(problem)}{place}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ParseError):
            raise
        raise ParseError(f"not valid YAML: {shown(str(error).splitlines()[0])}") from error


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParseError(f"not text in UTF-8: {error.reason} at byte {error.start:,}") from error


def set_aside(path: Path) -> Path:
    """Renames a file that cannot be used, so that it can be made again and nothing is lost; returns its new name."""
    aside = path.with_name(f"{path.name}.aside")
    path.replace(aside)
    return aside
