"""Compiled functions after an upgrade in place, with the cache of the version before."""

import os
import shutil
import subprocess
import sys

import pytest

OUTER = """
from rankwise.jit import compiled
from rankwise.upgraded_inner import double, start

@compiled
def outer(point):
    return double(point)

print(outer(start()))
"""
BEFORE = """
from typing import NamedTuple
from rankwise.jit import compiled

class Point(NamedTuple):
    x: int

def start():
    return Point(3)

@compiled
def double(point):
    return point.x + point.x
"""
AFTER = """
from rankwise.jit import compiled
from rankwise.upgraded_types import Point

def start():
    return Point(3)

@compiled
def double(point):
    return 200 * point.x
"""
RUN = "import sys, rankwise; rankwise.__path__.append(sys.argv[1]); import rankwise.upgraded_outer"


def called(folder):
    command = [sys.executable, "-c", RUN, str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    (folder / "upgraded_outer.py").write_text(OUTER)
    (folder / "upgraded_inner.py").write_text(BEFORE)
    assert called(folder) == "6\n"
    return folder


@pytest.fixture
def folder(first, tmp_path):
    return shutil.copytree(first, tmp_path / "second")


def test_an_unchanged_function_uses_the_new_code_and_types_that_it_imports(folder):
    assert list((folder / "__pycache__").glob("upgraded_outer.outer-*.nbi"))
    (folder / "upgraded_types.py").write_text("from typing import NamedTuple\n\nclass Point(NamedTuple):\n    x: int\n")
    (folder / "upgraded_inner.py").write_text(AFTER)
    assert called(folder) == "600\n"


def test_a_damaged_cache_is_compiled_again(folder):
    for number, file in enumerate(sorted((folder / "__pycache__").glob("*.nb?"))):
        file.write_bytes(file.read_bytes()[: 100 * (number % 3)])
    assert called(folder) == "6\n"
