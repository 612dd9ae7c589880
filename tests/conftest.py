"""Datasets as files, for tests of all rooms."""

from pathlib import Path

import pytest
from data_folders import write_coco_folder, write_voc_folder, write_yolo_folder


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
