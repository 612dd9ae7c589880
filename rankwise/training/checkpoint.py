"""Checkpoints: written atomically with a checksum, with the previous one kept, and loaded without running code."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from rankwise.errors import UserError
from rankwise.files.names import escaped
from rankwise.files.trailer import matches_trailer, trailer
from rankwise.files.writing import write_whole

LAST = "last.ckpt"
#: The checkpoint before the last one, in case the last one is damaged.
PREVIOUS = "previous.ckpt"

#: Checkpoints of this format have a checksum. The format is stored inside, so a damaged trailer is noticed.
_FORMAT = 2


class CheckpointError(UserError, RuntimeError):
    """A checkpoint could not be read; the message says what to do."""


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Saves tensors and plain data; an interrupted write does not affect the previous checkpoint.

    The old checkpoint is kept as ``previous.ckpt``.
    """

    def write(part: Path) -> None:
        with part.open("wb") as file:
            content = _Content(file)
            try:
                torch.save({**state, "format": _FORMAT}, content)  # type: ignore[arg-type]
            except RuntimeError:
                # torch hides the system error, such as a full disk.
                raise content.error or RuntimeError("torch could not write it") from None
            file.write(trailer(content.digest.hexdigest()))  # torch.load ignores it
        if path.is_file():
            _keep(path, path.with_name(PREVIOUS))

    write_whole(path, write)


def _keep(path: Path, previous: Path) -> None:
    """Hard-links a file to a second name, or renames it if the file system has no links."""
    link = previous.with_name(f".{previous.name}.{os.getpid()}.part")
    try:
        with suppress(FileNotFoundError):
            link.unlink()
        os.link(path, link)
        link.replace(previous)
    except OSError:
        path.replace(previous)


class _Content:
    """A file object that keeps a checksum and the error of a failed write."""

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
    """Loads a checkpoint of :func:`save_checkpoint`; only tensors and plain data are accepted.

    Raises:
        CheckpointError: If it is missing or damaged. The message suggests the previous checkpoint if that is intact.
    """
    try:
        return _load(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_instead(path)}") from error


def _instead(path: Path) -> str:
    """What to do without this checkpoint: use the previous one if it is intact."""
    previous = path.with_name(PREVIOUS)
    if path.name != PREVIOUS:
        with suppress(CheckpointError):
            step = _load(previous)["progress"]["step"]
            return f". The one before it, after step {step}, is intact; resume with: rankwise train --resume {previous}"
    return ". Start the run again with: rankwise train"


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{escaped(path)}: no such checkpoint")
    matches = matches_trailer(path)  # files of earlier versions have none
    if matches is False:
        raise _damaged(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling damaged data can raise any error
        reason = escaped(str(error).splitlines()[0].partition(". ")[0]) if str(error) else type(error).__name__
        raise CheckpointError(
            f"{escaped(path)}: not a rankwise checkpoint, or damaged; nothing was run from it ({reason})"
        ) from error
    if not isinstance(state, dict) or "progress" not in state:
        raise CheckpointError(f"{escaped(path)}: not a training state; pass the folder of a run to --resume")
    if matches is None and "format" in state:
        raise _damaged(path)
    return state


def _damaged(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{escaped(path)}: damaged: its checksum does not match its content; nothing was run from it"
    )
