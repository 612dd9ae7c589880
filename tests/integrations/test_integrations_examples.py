"""The examples run as they are, shortened."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import integration_models  # noqa: F401  keeps transformers off the network
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["torchvision_retinanet.py", "transformers_rtdetr.py"])
def test_an_example_trains_and_measures(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--steps", "2", "--images", "16"])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"^before: AP \d+\.\d$", printed, re.MULTILINE)
    assert re.search(r"^after: AP \d+\.\d, AP50 \d+\.\d$", printed, re.MULTILINE)


def test_the_loop_of_forty_lines_learns(capsys: pytest.CaptureFixture[str]) -> None:
    source = (EXAMPLES / "your_own_loop.py").read_text()
    assert len(source.splitlines()) <= 40
    assert "range(301)" in source
    exec(compile(source.replace("range(301)", "range(51)"), "your_own_loop.py", "exec"), {"__name__": "__main__"})
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", capsys.readouterr().out)]
    assert len(losses) == 2
    assert losses[1] < 0.75 * losses[0]


@pytest.fixture(scope="module")
def losses_of() -> dict[str, list[float]]:
    """The losses that the example of several processes prints, started in every way."""
    paths = os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, str(Path(__file__).parent / "several_processes_runs.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.rpartition("RESULT")[2])


@pytest.mark.parametrize("by", ["ddp", "fabric", "accelerate"])
@pytest.mark.slow
def test_two_processes_rank_as_one(losses_of: dict[str, list[float]], by: str) -> None:
    precise, rough = losses_of["alone"], losses_of["alone --bf16"]
    assert len(precise) == 5
    assert losses_of[f"--by {by}"] == pytest.approx(precise, rel=1e-6)
    assert losses_of[f"--by {by} --bf16"] == pytest.approx(rough, rel=0.02)
    assert rough != pytest.approx(precise, rel=1e-6)


def test_the_multi_label_example_learns_by_both_losses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["multi_label.py", "--steps", "150"])
    runpy.run_path(str(EXAMPLES / "multi_label.py"), run_name="__main__")
    found = re.findall(r"^(.*): mAP (\d+\.\d), frequent half .*, rare half", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in found] == ["cross entropy", "PE loss"]
    assert all(float(value) > 20 for _, value in found)  # by chance it is the share of positives, 9


def test_the_comparison_in_the_docs_is_the_one_that_was_run() -> None:
    root = EXAMPLES.parent
    table = runpy.run_path(str(root / "benchmarks" / "trainers.py"))["table"]
    rows = json.loads((root / "benchmarks" / "results" / "trainers.json").read_text())
    assert f"<!-- trainers -->\n{table(rows)}<!-- /trainers -->" in (root / "docs" / "integrations.md").read_text()
