"""Untrusted weights: a flipped bit is detected, and excessive settings are refused quickly."""

import json
import random
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from rankwise.errors import ModelError
from rankwise.models import BackboneSettings, Detector, DetectorSettings, HeadSettings, NeckSettings
from rankwise.models.integrity import no_larger_than


@pytest.fixture(scope="module")
def detector():
    torch.manual_seed(0)
    backbone = BackboneSettings("resnet18", args={"channels": [8, 8, 8, 8]})
    settings = DetectorSettings(backbone=backbone, neck=NeckSettings(8), head=HeadSettings(8, depth=1))
    return Detector(settings, ["one", "two"]).eval()


def test_a_flipped_bit_of_the_weights_is_refused(detector, tmp_path):
    path = tmp_path / "best.safetensors"
    detector.save(path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    dice = random.Random(0)
    bits = [dice.randrange(8 * header) for _ in range(25)] + [dice.randrange(8 * len(whole)) for _ in range(15)]
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match=r"damaged|weights but no detector settings"):
            Detector.load(path)
    path.write_bytes(whole)
    assert Detector.load(path).classes == ["one", "two"]


def test_weights_of_an_earlier_version_still_load(detector, tmp_path):
    path = tmp_path / "best.safetensors"
    _write(path, detector, {})
    assert Detector.load(path).classes == ["one", "two"]


BOMBS = {
    "layers": {"head": {"depth": 10**9}},
    "layers within the limit": {"head": {"depth": 999}},
    "channels": {"neck": {"channels": 10**9}},
    "channels within the limit": {"neck": {"channels": 100_000}},
    "levels": {"neck": {"extra_levels": 10**6}},
    "scales": {"anchors": {"scales": [1.0] * 10**6}},
    "blocks": {"backbone": {"name": "resnet18", "args": {"layers": [10**9, 2, 2, 2]}}},
    "blocks within the limit": {"backbone": {"name": "resnet18", "args": {"layers": [99_999, 2, 2, 2]}}},
    "width": {"backbone": {"name": "resnet18", "args": {"channels": [99_999] * 4}}},
    "side": {"input": {"short_side": 10**9, "max_side": 10**9}},
    "views": {"test": {"short_sides": list(range(1, 10**6))}},
    "a large number": {"input": {"std": [10**400, 1, 1]}},
}


def test_excessive_settings_are_refused_before_the_detector_is_built(detector, tmp_path):
    path = tmp_path / "best.safetensors"
    for bomb, changes in BOMBS.items():
        _write(path, detector, changes)
        with pytest.raises(ModelError) as caught:
            Detector.load(path)
        assert str(caught.value).startswith(str(path)), bomb
        assert len(str(caught.value)) < 600, bomb


def test_deeply_nested_settings_are_refused(detector, tmp_path):
    path = tmp_path / "best.safetensors"
    state = {name: tensor.contiguous() for name, tensor in detector.state_dict().items()}
    safetensors.torch.save_file(state, path, {"format": "pt", "rankwise": "[" * 100_000})
    with pytest.raises(ModelError, match="weights but no detector settings"):
        Detector.load(path)


def test_valid_weights_files_are_never_refused(detector, tmp_path):
    for name, strides in (("resnet18", (8, 16, 32)), ("mobilenetv2_050", (16, 32))):
        backbone = BackboneSettings(name, strides=strides)
        settings = replace(detector.settings, backbone=backbone)
        made = Detector(settings, ["one"])
        with no_larger_than(made.state_dict(), tmp_path):
            again = Detector(settings, ["one"])
        assert again.state_dict().keys() == made.state_dict().keys()


def _whole(detector, folder):
    path = folder / "whole.safetensors"
    detector.save(path)
    return path


def _write(path, detector, changes):
    """A file with other settings, and no checksum: a stranger can compute a right one."""
    with safe_open(_whole(detector, path.parent), framework="pt") as file:
        description = json.loads(file.metadata()["rankwise"])
    description.pop("checksum")
    for section, values in changes.items():
        description["settings"][section] |= values
    state = {name: tensor.contiguous() for name, tensor in detector.state_dict().items()}
    safetensors.torch.save_file(state, path, {"format": "pt", "rankwise": json.dumps(description)})
