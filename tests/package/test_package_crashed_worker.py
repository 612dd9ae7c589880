"""`make test` with a test that kills its process."""

import os
import subprocess
import sys
from pathlib import Path

KILLS = """
import os, signal

def test_one():
    os.kill(os.getpid(), signal.SIGKILL)

def test_two():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_test_that_kills_its_worker_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_kills.py").write_text(KILLS)
    (tmp_path / "test_other.py").write_text("def test_other():\n    pass\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "crashed_worker", "-n", "2", "--dist", "loadfile", str(tmp_path)],
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stdout
    assert "crashed while running 'test_kills.py::test_one'" in done.stdout
    assert "1 failed" in done.stdout
