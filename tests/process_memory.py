"""The memory of this process, as Linux tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

FORGET = Path("/proc/self/clear_refs")
needs_proc = pytest.mark.skipif(not FORGET.exists(), reason="reads memory from /proc")


def memory(field: str) -> int:
    """Bytes in use now ("VmRSS") or at most since the peak was last forgotten ("VmHWM")."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def forget_peak() -> int:
    """Lets the peak begin anew; returns the bytes in use."""
    FORGET.write_text("5")
    return memory("VmRSS")
