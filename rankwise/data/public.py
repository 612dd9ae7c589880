"""The public names of the package, imported when one of them is first used."""

# ruff: noqa: F401 - re-exported by the package

from rankwise.data.checks import CheckReport, check, print_report
from rankwise.data.coco import write_coco
from rankwise.data.dataset import DetectionDataset, ImageRecord
from rankwise.data.formats import open_dataset
from rankwise.data.loader import Loader, build_loader, collate
from rankwise.data.shapes import ShapesDataset
from rankwise.data.transforms import AugmentSettings, EvalTransform, TrainTransform
from rankwise.errors import DataError
