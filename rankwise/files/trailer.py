"""A checksum at the end of a file, for formats whose readers ignore what follows."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

#: This marker and the SHA-256 of all bytes before it.
_MARK = b"rankwise sha256 "
_LENGTH = len(_MARK) + 64


def trailer(digest: str) -> bytes:
    """What to write after content with this SHA-256, in hexadecimal."""
    return _MARK + digest.encode("ascii")


def matches_trailer(path: Path) -> bool | None:
    """Whether the content of a file matches its trailer; None if it has none."""
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size - _LENGTH
        if length < 0:
            return None
        file.seek(length)
        found = file.read()
        if not found.startswith(_MARK):
            return None
        file.seek(0)
        digest, left = hashlib.sha256(), length
        while left and (piece := file.read(min(left, 2**20))):
            digest.update(piece)
            left -= len(piece)
    return not left and found == trailer(digest.hexdigest())
