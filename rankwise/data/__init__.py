"""Datasets, their checks, transforms and loaders."""

from rankwise.data.dataset import DetectionDataset, ImageRecord
from rankwise.data.errors import DataError
from rankwise.data.loader import Loader, build_loader, collate
from rankwise.data.shapes import ShapesDataset
from rankwise.data.transforms import AugmentSettings, EvalTransform, TrainTransform

__all__ = [
    "AugmentSettings",
    "DataError",
    "DetectionDataset",
    "EvalTransform",
    "ImageRecord",
    "Loader",
    "ShapesDataset",
    "TrainTransform",
    "build_loader",
    "collate",
]
