"""Wheel and sdist as built for a release, and the wheel installed in a separate environment."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import rankwise

pytest.importorskip("build")
ROOT = Path(__file__).parents[2]
OTHER = ("docs", "examples", "tests", "benchmarks", "rankwise")
FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "zensical.toml")


@dataclass(frozen=True)
class Built:
    """The files of a release."""

    sdist: Path
    wheel: Path


def run(*command: str | Path, cwd: Path) -> str:
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }  # else this tree is tested
    result = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"  # builds leave files behind
    for name in OTHER:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "release", source)
    run(*build, cwd=folder)  # the wheel is made from the sdist
    (sdist,) = (folder / "release").glob("*.tar.gz")
    (wheel,) = (folder / "release").glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel in it; what it depends on is lent by this one."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", built.wheel),
        cwd=folder,
    )
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=folder).strip())
    # Only a path: no other .pth is read there, so that this environment's rankwise stays out of sight.
    (packages / "lent.pth").write_text(sysconfig.get_paths()["purelib"])
    return folder / "bin"


def contents(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as file:
        return {name: hashlib.sha256(file.read(name)).hexdigest() for name in file.namelist()}


def test_the_wheel_from_the_sdist_contains_every_file_of_the_package_as_it_is_and_nothing_else(built: Built) -> None:
    assert built.wheel.name == f"rankwise-{rankwise.__version__}-py3-none-any.whl"
    source = built.sdist.parents[1] / "source"
    files = [path for path in (source / "rankwise").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {path.relative_to(source).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert {name: sha for name, sha in contents(built.wheel).items() if ".dist-info/" not in name} == wanted
    assert {"rankwise/recipes/shapes.yaml", "rankwise/report/template/page.html", "rankwise/py.typed"} <= wanted.keys()


def test_the_sdist_contains_tests_docs_and_changelog(built: Built) -> None:
    with tarfile.open(built.sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    for name in ("CHANGELOG.md", "LICENSE", "docs/tutorial.md", "examples/your_own_loop.py", "tests/conftest.py"):
        assert name in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_the_version_is_the_same_everywhere() -> None:
    version = rankwise.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert re.search(rf"^## {re.escape(version)}$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert "version" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"]


@pytest.mark.slow
def test_the_installed_wheel_trains_and_reports(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "rankwise", "--version", cwd=tmp_path) == f"rankwise {rankwise.__version__}\n"
    where = run(installed / "python", "-c", "import rankwise; print(rankwise.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(installed.parent)
    run(
        *(installed / "rankwise", "train", "shapes", "--run", "tiny", "--epochs", "1", "--data.shapes.size", "64"),
        *("--data.shapes.train_images", "4", "--data.shapes.val_images", "2", "--train.threads", "1"),
        "--loss=FocalLoss",  # which compiles least: a new environment has no compiled functions yet
        *("--model.input.short_side", "64", "--model.input.max_side", "64"),
        cwd=tmp_path,
    )
    assert "<title>" in (tmp_path / "tiny" / "report.html").read_text()  # whose template is in the wheel
    assert (tmp_path / "tiny" / "best.safetensors").is_file()
