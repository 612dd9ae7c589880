"""A lock on the run folder: only one training at a time."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from rankwise.distributed import all_raise, rank
from rankwise.errors import SettingsError
from rankwise.files.names import escaped
from rankwise.files.parsing import ParseError, parse_json
from rankwise.files.writing import explained, make_folder

NAME = ".lock"


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Context manager that locks the run folder, in rank 0 for all processes, and creates it if it does not exist.

    A second holder is refused; the message names the first. The system releases the lock of a process that dies in any
    way, and the next process takes it over.
    """
    handle, made = -1, not folder.exists()
    with all_raise():
        if rank() == 0:
            make_folder(folder)
            handle = _acquire(folder)
    try:
        yield
    finally:
        if handle >= 0:
            (folder / NAME).unlink(missing_ok=True)
            os.close(handle)
            if made:
                with suppress(OSError):  # it contains a run now
                    folder.rmdir()


def refuse_if_locked(folder: Path) -> None:
    """Raises a SettingsError if a process is training in this folder."""
    if (folder / NAME).is_file():
        os.close(_acquire(folder))


def _acquire(folder: Path) -> int:
    path = folder / NAME
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise SettingsError(f"{escaped(path)}: not a lock of rankwise, which is a regular file: delete it")
    # A link is not followed: the folder may be untrusted, and the lock is also written to.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    while True:
        with explained(path):
            handle = os.open(path, flags, 0o666)
        if not _lock(handle):
            holder = _holder(handle)
            os.close(handle)
            raise SettingsError(f"{escaped(folder)}: {holder} is training here; wait for it or stop it first")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                break
        os.close(handle)  # its holder has just removed it
    me = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": " ".join(sys.argv)[:200],
        "since": datetime.now().isoformat(" ", "seconds"),
    }
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(me).encode(), 0)
    return handle


def _lock(handle: int) -> bool:
    """Tries to lock the file; returns whether it succeeded. Unlike flock, forked workers do not hold a POSIX lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # the file system has no locks
        return True
    return True


def _holder(handle: int) -> str:
    try:
        held = parse_json(os.pread(handle, 10_000, 0))
        host, command, since = (escaped(held[key]) for key in ("host", "command", "since"))
        return f"process {held['pid']} on {host} ({command}, since {since})"
    except (ParseError, KeyError, TypeError):
        return "another process"
