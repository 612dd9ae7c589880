"""Checkpoints: written whole, with a checksum, beside the one before; loaded without running code from them."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from rankwise.files.names import shown
from rankwise.files.writing import write_whole

LAST = "last.ckpt"
#: The checkpoint before the last one, for the day on which the last one is damaged.
PREVIOUS = "previous.ckpt"

#: What follows a checkpoint's own bytes: this and their SHA-256. torch.load does not mind.
_MARK = b"rankwise sha256 "
_TRAILER = len(_MARK) + 64
#: Checkpoints of this format have a checksum; they say so inside, where a damaged trailer cannot hide it.
_FORMAT = 2


class CheckpointError(RuntimeError):
    """A checkpoint could not be read; the message says what to do."""


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Saves tensors and plain data; an interrupted write leaves the previous checkpoint as it was.

    The checkpoint that was there is kept as ``previous.ckpt``.

    Raises:
        WriteError: If it cannot be written.
    """

    def write(part: Path) -> None:
        with part.open("wb") as file:
            content = _Content(file)
            try:
                torch.save({**state, "format": _FORMAT}, content)  # type: ignore[arg-type]
            except RuntimeError:
                # torch swallows the system's reason, such as a full disk.
                raise content.error or RuntimeError("torch could not write it") from None
            file.write(_MARK + content.digest.hexdigest().encode("ascii"))
        if path.is_file():
            _keep(path, path.with_name(PREVIOUS))

    write_whole(path, write)


def _keep(path: Path, previous: Path) -> None:
    """Gives a file a second name; where the file system has no links, the first is moved."""
    link = previous.with_name(f".{previous.name}.{os.getpid()}.part")
    try:
        with suppress(FileNotFoundError):
            link.unlink()
        os.link(path, link)
        link.replace(previous)
    except OSError:
        path.replace(previous)


class _Content:
    """A file that remembers its checksum, and why a write failed."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Loads what :func:`save_checkpoint` wrote, refusing anything but tensors and plain data.

    Raises:
        CheckpointError: If there is none, or it is damaged; with the way to go on from the one before, if that is good.
    """
    try:
        return _load(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_instead(path)}") from error


def _instead(path: Path) -> str:
    """What to do without a checkpoint: take the one before if it is whole."""
    previous = path.with_name(PREVIOUS)
    if path.name != PREVIOUS:
        with suppress(CheckpointError):
            step = _load(previous)["progress"]["step"]
            return f". The one before it, after step {step}, is intact; resume with: rankwise train --resume {previous}"
    return ". Start the run again with: rankwise train"


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{shown(path)}: there is no checkpoint here")
    checked = _checked(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling what is damaged raises anything
        reason = shown(str(error).splitlines()[0]) if str(error) else type(error).__name__
        raise CheckpointError(
            f"{shown(path)}: not a rankwise checkpoint, or damaged; nothing was run from it ({reason})"
        ) from error
    if not isinstance(state, dict) or "progress" not in state:
        raise CheckpointError(f"{shown(path)}: holds no training state; --resume takes the folder of a run")
    if not checked and "format" in state:
        raise _damaged(path)
    return state


def _checked(path: Path) -> bool:
    """Whether the file has a checksum, which then is right; files of earlier versions have none.

    Raises:
        CheckpointError: If the checksum is that of other bytes.
    """
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size - _TRAILER
        if length < 0:
            return False
        file.seek(length)
        trailer = file.read()
        if not trailer.startswith(_MARK):
            return False
        file.seek(0)
        digest, left = hashlib.sha256(), length
        while left and (piece := file.read(min(left, 2**20))):
            digest.update(piece)
            left -= len(piece)
    if left or trailer != _MARK + digest.hexdigest().encode("ascii"):
        raise _damaged(path)
    return True


def _damaged(path: Path) -> CheckpointError:
    return CheckpointError(f"{shown(path)}: damaged: its checksum does not fit its content; nothing was run from it")
