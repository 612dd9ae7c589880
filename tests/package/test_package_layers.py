"""The contract of the layers fails when it is violated, and the table of imports in the docs is current."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import importlinter.cli as cli; cli.lint_imports_command()", "--no-cache"]
    environment = {"PATH": "", "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("evaluation/inference.py", "from rankwise.training.processes import launch"),
        ("data/transforms.py", "from rankwise.models import Detector"),
        ("losses/base.py", "def late() -> None:\n    import rankwise.assign.base\n"),
    ],
)
def test_an_import_against_the_layers_is_named(module: str, line: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "rankwise", tmp_path / "rankwise", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "rankwise" / module).open("a") as file:
        file.write(f"\n{line}\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1
    assert f"rankwise.{module.removesuffix('.py').replace('/', '.')} -> rankwise." in result.stdout


def test_the_table_of_imports_in_the_docs_is_current_and_a_new_import_would_show(tmp_path: Path) -> None:
    for name in ("rankwise", "docs", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    command = [sys.executable, "tools/import_graph.py", "--check"]
    environment = {"PATH": "", "PYTHONPATH": str(tmp_path)}
    current = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert current.returncode == 0, current.stderr
    with (tmp_path / "rankwise" / "types.py").open("a") as file:
        file.write("\nimport rankwise.errors\n")
    changed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert changed.returncode == 1
    assert "run python tools/import_graph.py" in changed.stderr
