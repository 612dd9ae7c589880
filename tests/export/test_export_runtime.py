"""An exported detector predicts like the original, without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from rankwise.cli import main
from rankwise.export import OnnxDetector
from rankwise.export.nms import find_detections
from rankwise.export.runtime import prepare
from rankwise.models import InputSettings, ModelError, PostprocessSettings, resize_for_input, stack_images
from rankwise.models.postprocess import postprocess
from rankwise.types import Predictions

# Runs before anything else: imports of these packages fail as if they were not installed.
FORBID = """
import sys
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "torchvision", "timm", "lightning", "lightning_fabric", "safetensors"}:
            raise ModuleNotFoundError(f"{name} is forbidden here", name=name)
sys.meta_path.insert(0, Forbidden())
from rankwise.cli import main
main(sys.argv[1:])
"""


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("nms", ["outside", "inside"])
def test_detections_equal_those_of_the_original(exported: Any, nms: str) -> None:
    # Sizes that need no resizing, because resized pixels may differ by one.
    images = [picture(96, 160), picture(96, 128, seed=1), picture(160, 96, seed=2)]
    found = OnnxDetector(getattr(exported, nms), threads=1).predict(images)
    for image, here in zip(images, found, strict=True):
        there = exported.detector.predict(image)
        assert len(there["boxes"]) > 3
        assert here["labels"].tolist() == there["labels"].tolist()
        assert np.abs(here["boxes"] - there["boxes"].numpy()).max() <= 1e-3
        assert np.abs(here["scores"] - there["scores"].numpy()).max() <= 1e-4


@pytest.mark.parametrize("nms", ["outside", "inside"])
def test_predict_works_without_torch(exported: Any, nms: str, tmp_path: Path) -> None:
    for index, size in enumerate([(96, 160), (70, 100), (300, 210)]):
        Image.fromarray(picture(*size, seed=index)).save(tmp_path / f"image{index}.png")
    words = ["predict", str(getattr(exported, nms)), str(tmp_path), "--out", str(tmp_path / "out"), "--threshold=0.4"]
    done = subprocess.run(
        [sys.executable, "-c", FORBID, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    entries = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert [Path(entry["image"]).name for entry in entries] == ["image0.png", "image1.png", "image2.png"]
    assert all((tmp_path / "out" / entry["picture"]).is_file() for entry in entries)
    wanted = exported.detector.predict(tmp_path / "image0.png", threshold=0.4)
    assert len(entries[0]["objects"]) == len(wanted["boxes"]) > 0
    for one, box, score, label in zip(entries[0]["objects"], *wanted.values(), strict=True):
        assert one["class"] == exported.detector.classes[label]
        assert one["score"] == pytest.approx(score.item(), abs=1e-4)
        assert one["box"] == pytest.approx(box.tolist(), abs=0.011)  # rounded to hundredths


@pytest.mark.parametrize("voting", [False, True])
@pytest.mark.parametrize("per_class", [False, True])
def test_nms_in_numpy_equals_that_of_torch(voting: bool, per_class: bool) -> None:
    random = torch.Generator().manual_seed(3)
    corner = torch.rand(2000, 2, generator=random) * 200 - 20
    boxes = torch.cat([corner, corner + torch.rand(2000, 2, generator=random) * 60], dim=1)
    logits = torch.randn(2000, 3, generator=random) * 2
    settings = PostprocessSettings(
        topk=300, max_detections=50, per_class=per_class, score_voting=voting, score_threshold=0.2
    )
    predictions = Predictions(logits[None], boxes[None], boxes, (1500, 400, 100))
    (there,) = postprocess(predictions, [(150, 170)], [(300, 340)], settings)
    levels = np.repeat([0, 1, 2], [1500, 400, 100])
    here = find_detections(logits.sigmoid().numpy(), boxes.numpy(), levels, (150, 170), (300, 340), settings)
    assert here["labels"].tolist() == there["labels"].tolist()
    assert here["boxes"] == pytest.approx(there["boxes"].numpy(), abs=1e-3)
    assert here["scores"] == pytest.approx(there["scores"].numpy(), abs=1e-6)


def test_without_detections_the_arrays_are_empty() -> None:
    settings = PostprocessSettings(score_threshold=0.5)
    found = find_detections(np.zeros((4, 2)), np.ones((4, 4)), np.zeros(4, np.int64), (8, 8), (8, 8), settings)
    assert [len(values) for values in found.values()] == [0, 0, 0]
    assert found["boxes"].shape == (0, 4)


@pytest.mark.parametrize("size", [(96, 144), (80, 120), (300, 500), (500, 210), (30, 40)])
def test_images_are_resized_as_in_training(size: tuple[int, int]) -> None:
    settings = InputSettings(short_side=96, max_side=160)
    image = picture(*size)
    batch, (height, width) = prepare(image, settings)
    resized = resize_for_input(torch.from_numpy(image).permute(2, 0, 1), settings)
    assert (height, width) == tuple(resized.shape[1:])
    wanted = stack_images([resized], settings).numpy()
    assert batch.shape == wanted.shape
    assert np.abs(batch.astype(int) - wanted).max() <= 1


def test_a_threshold_below_that_of_nms_inside_is_refused(exported: Any) -> None:
    image = picture(96, 160)
    with pytest.raises(ModelError, match=r"drops scores below 0\.05; export the run with --nms outside"):
        OnnxDetector(exported.inside).predict([image], threshold=0.01)
    outside = OnnxDetector(exported.outside)
    many = replace(outside.manifest.postprocess, max_detections=10_000)
    outside.manifest = replace(outside.manifest, postprocess=many)
    assert outside.predict([image], threshold=0.01)[0]["scores"].min() < 0.05
    with pytest.raises(ModelError, match="threshold is 3"):
        OnnxDetector(exported.outside).predict([image], threshold=3)


def test_nms_inside_keeps_detections_above_the_lowest_threshold_of_the_run(exported: Any) -> None:
    from rankwise.export.onnx import _described, with_nms

    detector = exported.detector
    before = detector.thresholds
    try:
        detector.thresholds = {"ant": 0.02, "bee": 0.4, "cat": 0.3}
        model = _described(with_nms(exported.network, detector), detector, "inside")
    finally:
        detector.thresholds = before
    (node,) = [item for item in model.graph.node if list(item.output) == ["nms_score"]]
    assert onnx.helper.get_node_attr_value(node, "value_float") == pytest.approx(0.02)


def _foreign(path: Path, exported: Any) -> None:
    model = onnx.load(exported.outside)
    model.ClearField("metadata_props")
    onnx.save(model, path)


def _other_format(path: Path, exported: Any) -> None:
    model = onnx.load(exported.outside)
    onnx.helper.set_model_props(model, {"rankwise": json.dumps({"format": 99})})
    onnx.save(model, path)


def _noise(path: Path, exported: Any) -> None:
    path.write_bytes(b"not an ONNX model")


def _nothing(path: Path, exported: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_foreign, "is an ONNX model, but was not written by rankwise"),
        (_other_format, "it has format 99, this version reads 1"),
        (_noise, "is not an ONNX model, or damaged"),
        (_nothing, "no such file"),
    ],
)
def test_files_that_are_not_exported_detectors_are_refused_with_a_reason(
    make: Any, message: str, exported: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.onnx"
    make(path, exported)
    Image.fromarray(picture(20, 30)).save(tmp_path / "image.png")
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(path), str(tmp_path / "image.png"), "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_onnxruntime_is_a_message(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match=r"pip install onnx onnxscript onnxruntime"):
        OnnxDetector(exported.outside)


def test_an_unsupported_device_is_refused(exported: Any) -> None:
    with pytest.raises(ModelError, match="runs on auto, cpu or cuda"):
        OnnxDetector(exported.outside, device="mps")


def test_the_file_contains_the_settings(exported: Any) -> None:
    manifest = OnnxDetector(exported.inside).manifest
    assert manifest.input == exported.detector.settings.input
    assert manifest.postprocess == replace(exported.detector.settings.postprocess, score_voting=False)
    assert manifest.confidence.thresholds == exported.detector.thresholds
    assert manifest.nms == "inside"


WRONG = {
    "fewer classes": lambda values: values.update(classes=values["classes"][:1], thresholds=None),
    "nothing": lambda values: values.clear(),
    "a list": lambda values: values.update(input=[]),
    "a huge side": lambda values: values["input"].update(short_side=10**9, max_side=10**9),
    "a threshold above 1": lambda values: values.update(thresholds=dict.fromkeys(values["classes"], 5.0)),
}


@pytest.mark.parametrize("nms", ["outside", "inside"])
@pytest.mark.parametrize("change", WRONG)
def test_a_file_with_wrong_metadata_is_refused(exported: Any, tmp_path: Path, nms: str, change: str) -> None:
    model = onnx.load(getattr(exported, nms))
    (entry,) = [item for item in model.metadata_props if item.key == "rankwise"]
    values = json.loads(entry.value)
    WRONG[change](values)
    entry.value = json.dumps(values)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="Export the run"):
        OnnxDetector(tmp_path / "model.onnx", threads=1).predict([picture(96, 160)])


def test_predict_accepts_the_same_inputs_as_the_original(exported: Any, tmp_path: Path) -> None:
    image = picture(96, 160)
    Image.fromarray(image).save(tmp_path / "image.png")
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    detector = OnnxDetector(exported.outside, threads=1)
    (wanted,) = detector.predict([image])
    assert len(wanted["boxes"]) > 3
    for one in (
        image,
        tmp_path / "image.png",
        str(tmp_path / "image.png"),
        Image.fromarray(image),
        tensor,
        tensor / 255,
    ):
        assert detector.predict(one)["boxes"].tolist() == wanted["boxes"].tolist()
    (path, found), *others = detector.predict(tmp_path).items()
    assert (path, others) == (str(tmp_path / "image.png"), [])
    assert found["scores"].tolist() == wanted["scores"].tolist()
    assert exported.detector.predict(tmp_path)[path]["labels"].tolist() == wanted["labels"].tolist()
    with pytest.raises(ModelError, match=r"an image array must be uint8 of shape \[height, width, 3\] .* not float64"):
        detector.predict(image / 255)
