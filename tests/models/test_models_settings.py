"""Settings: conversion to plain values and back, and validation."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from rankwise.models import (
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


@pytest.mark.parametrize("preset", [atss, fcos, retinanet])
def test_settings_survive_json(preset: Any) -> None:
    settings = preset("resnet18", pretrained="weights.pth")
    assert DetectorSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_missing_settings_have_their_defaults() -> None:
    assert DetectorSettings.from_dict({"head": {"depth": 2}}) == DetectorSettings(head=HeadSettings(depth=2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bakbone": {}}, "settings has no 'bakbone': did you mean 'backbone'?"),
        ({"head": {"deepness": 3}}, "settings.head has no 'deepness': it has channels, depth"),
        ({"head": {"norm": "ln"}}, "settings.head.norm is 'ln': expected one of none, gn, bn"),
        ({"head": {"depth": "four"}}, "settings.head.depth is 'four': expected an integer"),
        ({"head": {"depth": True}}, "settings.head.depth is True: expected an integer"),
        ({"head": {"prior": "low"}}, "settings.head.prior is 'low': expected a number"),
        ({"input": {"mean": [0.5]}}, "settings.input.mean is .0.5.: expected a list of 3 values, each a number"),
        ({"anchors": {"scales": [1, "x"]}}, r"settings.anchors.scales.1. is 'x': expected a number"),
        ({"backbone": {"pretrained": 1.5}}, "settings.backbone.pretrained is 1.5: expected true or false or a text"),
        ({"backbone": {"args": []}}, "settings.backbone.args is ..: expected a mapping"),
        ({"neck": 3}, "settings.neck is 3: expected a mapping"),
        ({"backbone": {"frozen_norm": "all"}}, "frozen_norm is 'all': expected true or false or statistics"),
        ({"test": {"max_side": "x"}}, "settings.test.max_side is 'x': expected an integer or none"),
    ],
)
def test_errors_in_names_and_values_say_what_is_valid(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        DetectorSettings.from_dict(values)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (InputSettings, {"short_side": 0}, "short_side is 0"),
        (InputSettings, {"short_side": 800, "max_side": 600}, "max_side is 600: it must be at least input.short_side"),
        (InputSettings, {"divisor": 0}, "divisor is 0"),
        (InputSettings, {"std": (1.0, 0.0, 1.0)}, "std is"),
        (BackboneSettings, {"strides": ()}, "strides"),
        (BackboneSettings, {"strides": (16, 8)}, "ascending"),
        (BackboneSettings, {"frozen_stages": -1}, "frozen_stages is -1"),
        (BackboneSettings, {"args": {"features_only": True}}, "sets features_only"),
        (NeckSettings, {"channels": 0}, "channels is 0"),
        (NeckSettings, {"extra_levels": -1}, "extra_levels is -1"),
        (HeadSettings, {"channels": 0}, "channels is 0"),
        (HeadSettings, {"depth": -1}, "depth is -1"),
        (HeadSettings, {"prior": 1.0}, "prior is 1.0"),
        (HeadSettings, {"bins": -1}, "bins is -1"),
        (HeadSettings, {"bins": 16}, "need coding ltrb"),
        (HeadSettings, {"delta_std": (0.1, 0.1, 0.0, 0.2)}, "delta_std is"),
        (AnchorSettings, {"base": 0.0}, "base is 0.0"),
        (AnchorSettings, {"ratios": ()}, "ratios is"),
        (AnchorSettings, {"scales": (1.0, -1.0)}, "scales is"),
        (PostprocessSettings, {"score_threshold": 1.5}, "score_threshold is 1.5"),
        (PostprocessSettings, {"topk": 0}, "topk is 0"),
        (PostprocessSettings, {"nms_threshold": 0.0}, "nms_threshold is 0.0"),
        (PostprocessSettings, {"max_detections": 0}, "max_detections is 0"),
        (PostprocessSettings, {"voting_sigma": 0.0}, "voting_sigma is 0.0"),
    ],
)
def test_impossible_values_are_refused(kind: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        kind(**values)


@pytest.mark.parametrize("part", [item.default_factory for item in fields(DetectorSettings)])
def test_every_setting_is_documented(part: Any) -> None:
    for item in fields(part):
        assert f"\n        {item.name}: " in (part.__doc__ or ""), item.name


def test_presets_have_the_anchors_of_their_papers() -> None:
    assert atss().anchors == fcos().anchors == AnchorSettings(base=8.0)
    assert retinanet().anchors.per_location == 6
    assert (fcos().head.coding, atss().head.coding, retinanet().head.coding) == ("ltrb", "delta", "delta")


def test_parts_of_a_preset_can_be_replaced() -> None:
    assert fcos(head=HeadSettings(depth=1)).head == HeadSettings(depth=1)
