"""What packages load, and that the contract of layers is one that can break."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LOADED = """
import sys
import rankwise.losses, rankwise.assign, rankwise.integrations.torchvision, rankwise.integrations.transformers
print(*sorted({name.split(".")[1] for name in sys.modules if name.startswith("rankwise.")}))
"""


def test_losses_assigners_and_integrations_load_neither_training_nor_data() -> None:
    result = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert set(result.stdout.split()) <= {
        *("losses", "assign", "integrations", "criterion", "pairsums", "boxes", "distributed", "types", "errors")
    }


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
