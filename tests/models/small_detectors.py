"""Small detectors that are fast to build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from rankwise.models import (
    BackboneSettings,
    Detector,
    DetectorSettings,
    HeadSettings,
    InputSettings,
    NeckSettings,
    atss,
    fcos,
    retinanet,
)

CLASSES = ["ant", "bee", "cat"]
SLIM = BackboneSettings("resnet10t", args={"channels": [8, 16, 24, 32], "stem_width": 8})


def small(preset: DetectorSettings, **parts: Any) -> DetectorSettings:
    """A preset with few channels and a tiny backbone."""
    slim = {
        "input": InputSettings(short_side=96, max_side=160),
        "backbone": SLIM,
        "neck": replace(preset.neck, channels=16),
        "head": replace(preset.head, channels=16, depth=2),
    }
    return replace(preset, **{**slim, **parts})


KINDS: dict[str, Callable[[], DetectorSettings]] = {
    "atss": lambda: small(atss()),
    "fcos": lambda: small(fcos()),
    "retinanet": lambda: small(retinanet()),
    "distribution": lambda: small(fcos(), head=HeadSettings(16, 1, coding="ltrb", bins=8, norm="bn")),
    "three levels": lambda: small(atss(), neck=NeckSettings(16, extra_levels=0, norm="gn")),
}


def lively(settings: DetectorSettings) -> Detector:
    """A detector whose scores and boxes spread, as if it were trained."""
    torch.manual_seed(0)
    made = Detector(settings, CLASSES).eval()
    with torch.no_grad():
        made.head.class_output.weight.normal_(std=0.5)
        made.head.class_output.bias.fill_(-1.0)
        made.head.box_output.weight.normal_(std=0.2)
    return made
