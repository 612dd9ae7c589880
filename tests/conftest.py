"""What all tests share: datasets as files, bfloat16 that runs, and an end of the run when a test process dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from crashed_worker import pytest_handlecrashitem  # noqa: F401  pytest finds the hook here
from data_folders import write_coco_folder, write_voc_folder, write_yolo_folder

from rankwise.bf16 import enable_bf16

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit the variable
    enable_bf16()  # before torch is loaded
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job; commands under test would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


if os.environ.get("TRITON_INTERPRET") == "1":
    from interpreter_speed import patch_language_once

    patch_language_once()


#: Folders of which no file takes ten seconds.
QUICK = {"assign", "boxes", "data", "evaluation", "models"}

#: Tests that export detectors: the first export of a process takes half a minute longer than the next.
EXPORTING = ("tests/export/", "tests/docs/test_docs_blocks.py", "tests/models/test_models_detector.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first and quick ones last, so that no process of several has a long one at the end.

    Files for Triton's interpreter, which must be chosen before Triton is imported, are run by ``test_triton.py`` in a
    separate process.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        for item in items:
            if item.path.stem.endswith("_interpreted"):
                item.add_marker(pytest.mark.skip(reason="needs TRITON_INTERPRET=1"))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, item.path.parent.name in QUICK))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: while a test waits for processes that it has started, another one runs."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files of tests to the processes as they are free; those that export go to one."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "exporting" if nodeid.startswith(EXPORTING) else super()._split_scope(nodeid)

    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture
def coco_folder(tmp_path: Path) -> Path:
    """A COCO folder of 16 training and 4 validation images."""
    return write_coco_folder(tmp_path / "coco")


@pytest.fixture
def voc_folder(tmp_path: Path) -> Path:
    """A Pascal VOC folder of 16 training and 4 validation images."""
    return write_voc_folder(tmp_path / "voc")


@pytest.fixture
def yolo_folder(tmp_path: Path) -> Path:
    """A YOLO folder of 16 training and 4 validation images."""
    return write_yolo_folder(tmp_path / "yolo")
