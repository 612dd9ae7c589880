"""Detectors: settings, the network, and post-processing."""

# ruff: noqa: F403, F405 - a type checker finds the names there, and a program when it asks for one

from typing import TYPE_CHECKING

from rankwise.lazily import lazily

if TYPE_CHECKING:
    from rankwise.models.public import *

__all__ = [
    "AnchorSettings",
    "BackboneSettings",
    "Confidence",
    "Detector",
    "DetectorSettings",
    "HeadSettings",
    "InputSettings",
    "ModelError",
    "NeckSettings",
    "PostprocessSettings",
    "ScoreMap",
    "TestSettings",
    "atss",
    "fcos",
    "input_size",
    "resize_for_input",
    "retinanet",
    "stack_images",
]

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, __all__)
