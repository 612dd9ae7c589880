"""Datasets, their checks, transforms and loaders."""

# ruff: noqa: F403, F405 - a type checker finds the names there, and a program when it asks for one

from typing import TYPE_CHECKING

from rankwise.lazily import lazily

if TYPE_CHECKING:
    from rankwise.data.public import *

__all__ = [
    "AugmentSettings",
    "CheckReport",
    "DataError",
    "DetectionDataset",
    "EvalTransform",
    "ImageRecord",
    "Loader",
    "ShapesDataset",
    "TrainTransform",
    "build_loader",
    "check",
    "collate",
    "open_dataset",
    "print_report",
    "write_coco",
]

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, __all__)
