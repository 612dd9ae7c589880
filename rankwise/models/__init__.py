"""Detectors: settings, the network, and what becomes of its output."""

from rankwise.models.detector import Detector
from rankwise.models.images import input_size, resize_for_input, stack_images
from rankwise.models.settings import (
    AnchorSettings,
    BackboneSettings,
    DetectorSettings,
    HeadSettings,
    InputSettings,
    ModelError,
    NeckSettings,
    PostprocessSettings,
    atss,
    fcos,
    retinanet,
)

__all__ = [
    "AnchorSettings",
    "BackboneSettings",
    "Detector",
    "DetectorSettings",
    "HeadSettings",
    "InputSettings",
    "ModelError",
    "NeckSettings",
    "PostprocessSettings",
    "atss",
    "fcos",
    "input_size",
    "resize_for_input",
    "retinanet",
    "stack_images",
]
