"""A small detector, exported once for all tests, because tracing takes longer than the tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from rankwise.models import (
    BackboneSettings,
    Detector,
    DetectorSettings,
    HeadSettings,
    InputSettings,
    NeckSettings,
    PostprocessSettings,
)

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@dataclass(frozen=True)
class Exported:
    """A detector and its files."""

    detector: Detector
    network: Any
    outside: Path
    inside: Path


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A detector with scores and boxes as varied as those of a trained one, exported with NMS outside and inside."""
    from rankwise.export.onnx import trace, write_checked

    settings = DetectorSettings(
        input=InputSettings(short_side=96, max_side=160),
        backbone=BackboneSettings("resnet10t", args={"channels": [8, 16, 24, 32], "stem_width": 8}),
        neck=NeckSettings(16, extra_levels=1),
        head=HeadSettings(16, depth=1),
        postprocess=PostprocessSettings(score_threshold=0.05),
    )
    torch.manual_seed(0)
    detector = Detector(settings, ["ant", "bee", "cat"]).eval()
    with torch.no_grad():
        detector.head.class_output.weight.normal_(std=0.5)
        detector.head.class_output.bias.fill_(-1.0)
        detector.head.box_output.weight.normal_(std=0.2)
    detector.thresholds = {"ant": 0.5, "bee": 0.4, "cat": 0.3}
    network = trace(detector)
    folder = tmp_path_factory.mktemp("exported")
    files = {}
    for nms in ("outside", "inside"):
        files[nms] = write_checked(detector, network, folder / f"{nms}.onnx", nms, Console(quiet=True))
    return Exported(detector, network, files["outside"], files["inside"])
