"""Atomic writing of files: completely or not at all."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.errors import UserError
from rankwise.files.names import escaped

if TYPE_CHECKING:
    from PIL.Image import Image

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class WriteError(UserError, RuntimeError):
    """A file could not be written; the message says why and what to do. ``number`` is the errno of the system, if
    known."""

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.number = number


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file atomically: at any moment, either the old or the new file exists, complete.

    ``write`` gets the path of a temporary file in the same folder. If it fails, a WriteError is raised and the old file
    is intact.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        with explained(path):  # a pipe or a device must not be replaced by a file
            write(path)
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with explained(path):
            part.touch()
            mode = part.stat().st_mode
            write(part)
            part.chmod(mode)  # apply the umask: safetensors creates files that only the owner can read
            _flush(part)
            part.replace(path)
            _flush(path.parent)
    finally:
        _remove(part)


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Writes a UTF-8 text file atomically; ``errors`` says what to do with lone surrogates, as in ``str.encode``."""
    write_bytes(path, text.encode("utf-8", errors))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes bytes to a file atomically."""
    write_whole(path, lambda part: part.write_bytes(content))


def write_picture(path: Path, picture: Image, kind: str, **options: int) -> None:
    """Writes a picture in a format such as "JPEG" atomically. Pillow may not notice that a disk is full, so it encodes
    to memory."""
    content = io.BytesIO()
    picture.save(content, kind, **options)
    write_bytes(path, content.getvalue())


def make_folder(path: Path) -> None:
    """Creates a folder and its parents, if they do not exist; raises a WriteError if that is impossible."""
    with explained(path, "created"):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def explained(path: Path, done: str = "written") -> Iterator[None]:
    """Turns errors of libraries while a file or folder is "written", "created" or "deleted" into a WriteError with the
    reason."""
    try:
        yield
    except WriteError:
        raise
    except Exception as error:
        known = isinstance(error, OSError | RuntimeError) or type(error).__name__ == "SafetensorError"
        if not known and "null byte" not in str(error):  # in the name
            raise
        raise not_written(path, error, done) from error


def not_written(path: Path, error: BaseException, done: str = "written") -> WriteError:
    """The message about a file or folder that could not be "written", "created" or "deleted"."""
    number = _number(error)
    kept = " The previous one is intact." if done == "written" and os.path.lexists(path) and not path.is_dir() else ""
    if number in _FULL:
        todo = " Free some disk space, then try again."
    elif number in _FORBIDDEN:
        place = path if path.exists() and done == "written" and path.is_dir() else path.parent
        place = next((folder for folder in (place, *place.parents) if folder.exists()), place)
        todo = f" Check the permissions of {escaped(place)}, or choose another location."
    elif number in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        todo = " Another file or folder has this name: choose another name."
    else:
        todo = ""
    return WriteError(f"{escaped(path)}: could not be {done} ({_reason(error, number)}).{kept}{todo}", number)


def remove_parts(folder: Path) -> None:
    """Removes temporary files of killed writes."""
    for part in folder.glob(".*.part"):
        _remove(part)


def _remove(part: Path) -> None:
    """Removes a temporary file. Errors are ignored, because they would hide the original one."""
    with suppress(OSError):
        part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to disk."""
    if path.is_dir() and os.name == "nt":
        return  # systems on which folders cannot be opened
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _number(error: BaseException) -> int | None:
    """The errno of an error; torch and safetensors only quote it in the message."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    text = str(error)
    return next((number for number in (*_FULL, *_FORBIDDEN) if os.strerror(number) in text), None)


def _reason(error: BaseException, number: int | None) -> str:
    if number is not None:
        return os.strerror(number)
    return escaped(str(error).splitlines()[0]) if str(error) else type(error).__name__
