"""What the room offers, by the names under which it is to be had from the room itself."""

# ruff: noqa: F401 - used by those who import the room

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
    ModelError,
    NeckSettings,
    PostprocessSettings,
    TestSettings,
    atss,
    fcos,
    retinanet,
)
