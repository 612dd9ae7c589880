"""Assigners on an emulated GPU: the same results, no host sync, kernels that compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(script: str, **environment: str) -> str:
    paths = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, str(HERE / script)],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_gpu_assignment_equals_cpu_without_a_sync() -> None:
    pytest.importorskip("triton")
    assert run("gpu_assigners.py", TRITON_INTERPRET="1") == "equal\n"
