"""The public names of the package, imported when one of them is first used."""

# ruff: noqa: F401 - re-exported by the package

from rankwise.errors import ModelError
from rankwise.images.tensors import input_size, resize_for_input, stack_images
from rankwise.models.confidence import Confidence
from rankwise.models.detector import Detector
from rankwise.models.score_map import ScoreMap
from rankwise.models.settings import (
    AnchorSettings,
    BackboneSettings,
    DetectorSettings,
    HeadSettings,
    InputSettings,
    NeckSettings,
    PostprocessSettings,
    TestSettings,
    atss,
    fcos,
    retinanet,
)
