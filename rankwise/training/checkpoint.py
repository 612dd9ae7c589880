"""Files that are written whole or not at all, and loaded without running code from them."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message says what to do."""


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Writes a file so that at any moment either the old or the new one is there, complete.

    Args:
        path: Where the file goes.
        write: Writes the content to the path it is given, a temporary file in the same folder.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        write(part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except (OSError, RuntimeError) as error:
        # torch reports a full disk as a RuntimeError of its zip writer.
        kept = " The previous one is intact." if path.exists() else ""
        raise CheckpointError(
            f"{path}: could not be written ({_reason(error)}).{kept} Make room on the disk or choose another folder with --run, "
            f"then go on with: rankwise train --resume {path.parent}"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Saves tensors and plain data; an interrupted write leaves the previous checkpoint as it was."""
    write_whole(path, lambda part: torch.save(state, part))


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
