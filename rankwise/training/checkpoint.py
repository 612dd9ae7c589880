"""Files that are written whole or not at all, and loaded without running code from them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message says what to do."""


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Writes a file so that at any moment either the old or the new one is there, complete.

    Args:
        path: Where the file goes.
        write: Writes the content to the path it is given, a temporary file in the same folder.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(part)
        _flush(part)
        part.replace(path)
        _flush(path.parent)
    except (OSError, RuntimeError, SafetensorError) as error:
        # torch and safetensors report a full disk by errors of their own.
        raise not_written(path, error) from error
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text whole or not at all."""

    def write(part: Path) -> None:
        part.write_text(text, encoding="utf-8")

    write_whole(path, write)


def not_written(path: Path, error: BaseException) -> CheckpointError:
    """What to tell about a file of a run that could not be written."""
    kept = " The previous one is intact." if path.exists() else ""
    return CheckpointError(
        f"{path}: could not be written ({_reason(error)}).{kept} Make room on the disk, then go on with: "
        f"rankwise train --resume {path.parent}"
    )


def _flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk and not only in memory."""
    if path.is_dir() and os.name == "nt":
        return  # where folders cannot be opened
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Saves tensors and plain data; an interrupted write leaves the previous checkpoint as it was."""

    def write(part: Path) -> None:
        with part.open("wb") as file:
            content = _Content(file)
            try:
                torch.save(state, content)  # type: ignore[arg-type]
            except RuntimeError:
                # torch swallows the system's reason, such as a full disk.
                raise content.error or RuntimeError("torch could not write it") from None

    write_whole(path, write)


class _Content:
    """A file that remembers why a write failed."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Loads what :func:`save_checkpoint` wrote, refusing anything but tensors and plain data."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no checkpoint here. Start the run anew with: rankwise train")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path}: not a rankwise checkpoint, or damaged; nothing was run from it ({_reason(error)})"
        ) from error
    if not isinstance(state, dict) or "progress" not in state:
        raise CheckpointError(f"{path}: holds no training state; --resume takes the folder of a run of rankwise train")
    return state


def remove_parts(folder: Path) -> None:
    """Clears what a write that was killed has left."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)
