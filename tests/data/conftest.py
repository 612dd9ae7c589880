"""Fixtures of datasets with faults."""

import struct
import zlib
from pathlib import Path

import pytest


@pytest.fixture
def huge_png(tmp_path: Path) -> Path:
    """A file of a few bytes that claims to be an image of 50,000 × 50,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    path = tmp_path / "huge.png"
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )
    return path
