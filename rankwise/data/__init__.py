"""Datasets, their checks, transforms and loaders."""

from rankwise.data.dataset import DetectionDataset, ImageRecord
from rankwise.data.errors import DataError
from rankwise.data.shapes import ShapesDataset

__all__ = ["DataError", "DetectionDataset", "ImageRecord", "ShapesDataset"]
