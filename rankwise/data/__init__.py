"""Datasets, their checks, transforms and loaders."""

from rankwise.data.checks import CheckReport, check, print_report
from rankwise.data.coco import write_coco
from rankwise.data.dataset import DetectionDataset, ImageRecord
from rankwise.data.formats import open_dataset
from rankwise.data.loader import Loader, build_loader, collate
from rankwise.data.shapes import ShapesDataset
from rankwise.data.transforms import AugmentSettings, EvalTransform, TrainTransform
from rankwise.errors import DataError

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
