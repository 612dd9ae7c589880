"""What the room offers, by the names under which it is to be had from the room itself."""

# ruff: noqa: F401 - used by those who import the room

from rankwise.data.checks import CheckReport, check, print_report
from rankwise.data.coco import write_coco
from rankwise.data.dataset import DetectionDataset, ImageRecord
from rankwise.data.formats import open_dataset
from rankwise.data.loader import Loader, build_loader, collate
from rankwise.data.shapes import ShapesDataset
from rankwise.data.transforms import AugmentSettings, EvalTransform, TrainTransform
from rankwise.errors import DataError
