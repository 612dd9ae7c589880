"""The one way in which a file is written: whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rankwise.files.names import shown

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class WriteError(RuntimeError):
    """A file could not be written; the message says why and what to do.

    Args:
        message: The message.
        number: The system's number of the reason, if it gave one.
    """

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.number = number


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file so that at any moment either the old or the new one is there, complete.

    Args:
        path: Where the file goes.
        write: Writes the content to the path it is given, a temporary file in the same folder.

    Raises:
        WriteError: If it cannot be written; what was there before is intact.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        with explained(path):  # a pipe or a device, which a file must not take the name of
            write(path)
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with explained(path):
            part.touch()
            mode = part.stat().st_mode
            write(part)
            part.chmod(mode)  # what the umask says: safetensors lets the owner alone read its files
            _flush(part)
            part.replace(path)
            _flush(path.parent)
    finally:
        _remove(part)


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Writes a text in UTF-8, whole or not at all.

    Args:
        path: Where the file goes.
        text: Its content.
        errors: What becomes of lone surrogates, which UTF-8 has not: as in ``str.encode``.
    """
    write_bytes(path, text.encode("utf-8", errors))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes bytes, whole or not at all."""
    write_whole(path, lambda part: part.write_bytes(content))


def make_folder(path: Path) -> None:
    """Makes a folder, with those above it, if it is not there.

    Raises:
        WriteError: If it cannot be made.
    """
    with explained(path, "made"):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def explained(path: Path, done: str = "written") -> Iterator[None]:
    """Turns what libraries raise when a file cannot be written into a WriteError with the reason.

    Args:
        path: The file or folder.
        done: What could not be done with it.
    """
    try:
        yield
    except WriteError:
        raise
    except Exception as error:
        if not isinstance(error, OSError | RuntimeError) and type(error).__name__ != "SafetensorError":
            raise
        raise not_written(path, error, done) from error


def not_written(path: Path, error: BaseException, done: str = "written") -> WriteError:
    """What to say about a file that could not be written.

    Args:
        path: The file or folder.
        error: What was raised.
        done: What could not be done with it.
    """
    number = _number(error)
    kept = " The previous one is intact." if done == "written" and os.path.lexists(path) and not path.is_dir() else ""
    if number in _FULL:
        todo = " Make room on the disk, then try again."
    elif number in _FORBIDDEN:
        place = path if path.exists() and done == "written" and path.is_dir() else path.parent
        todo = f" Check who may write to {shown(place)}, or choose another place."
    elif number in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        todo = " Something else has this name: choose another."
    else:
        todo = ""
    return WriteError(f"{shown(path)}: could not be {done} ({_reason(error, number)}).{kept}{todo}", number)


def remove_parts(folder: Path) -> None:
    """Clears what writes that were killed have left."""
    for part in folder.glob(".*.part"):
        _remove(part)


def _remove(part: Path) -> None:
    """Takes a temporary file away; where that cannot be done, an error about it would hide the one that counts."""
    with suppress(OSError):
        part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk and not only in memory."""
    if path.is_dir() and os.name == "nt":
        return  # where folders cannot be opened
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _number(error: BaseException) -> int | None:
    """The system's number of an error; torch and safetensors only quote it."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    text = str(error)
    return next((number for number in (*_FULL, *_FORBIDDEN) if os.strerror(number) in text), None)


def _reason(error: BaseException, number: int | None) -> str:
    if number is not None:
        return os.strerror(number)
    return shown(str(error).splitlines()[0]) if str(error) else type(error).__name__
