"""The results of an ONNX file equal those of the detector."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from rich.console import Console

from rankwise import interrupts
from rankwise.export import OnnxDetector
from rankwise.export import onnx as exporting
from rankwise.export.comparison import Differences, compare, compare_detections
from rankwise.export.manifest import OPSET
from rankwise.export.nms import find_detections
from rankwise.export.nms_graph import nms_graph
from rankwise.export.runtime import open_session
from rankwise.models import BackboneSettings, Detector, DetectorSettings, ModelError
from rankwise.models.settings import PostprocessSettings, TestSettings

# Landscape, portrait, odd, larger and smaller than the traced size; with one and several images per batch.
SIZES = [
    (1, 96, 160),
    (1, 160, 96),
    (2, 128, 192),
    (1, 65, 65),
    (3, 97, 131),
    (1, 200, 301),
    (1, 256, 320),
    (2, 66, 257),
    (1, 333, 95),
    (1, 448, 640),
]


def test_scores_and_boxes_equal_those_of_torch_at_ten_sizes(exported: Any) -> None:
    session = open_session(exported.outside, threads=1)
    for shape in SIZES:
        found = compare(exported.detector, session, [shape], seed=sum(shape))
        assert found.images == shape[0]
        assert found.boxes <= 1e-3, shape
        assert found.scores <= 1e-4, shape


def test_nms_inside_equals_that_outside(exported: Any) -> None:
    session, inside = open_session(exported.outside, threads=1), open_session(exported.inside, threads=1)
    found = compare_detections(exported.detector, session, inside, SIZES[:5], seed=7)
    assert found.matched >= 0.99
    assert found.boxes <= 1e-3
    assert found.scores <= 1e-4


@pytest.mark.parametrize("per_class", [True, False])
def test_of_equal_scores_nms_inside_and_outside_keep_the_same(per_class: bool, tmp_path: Path) -> None:
    """A run that has hardly been trained has hundreds of equal scores: also where a level is cut to its best."""
    random = np.random.default_rng(5)
    scores = random.integers(1, 5, (1, 700, 3)).astype(np.float32) / 8
    corners = random.uniform(0, 100, (1, 700, 2))
    boxes = np.concatenate([corners, corners + random.uniform(5, 40, (1, 700, 2))], axis=-1).astype(np.float32)
    levels = np.repeat([0, 1], [500, 200])
    settings = PostprocessSettings(topk=90, max_detections=60, score_threshold=0.2, per_class=per_class)
    graph = onnx.helper.make_model(nms_graph(settings, 3, 2), opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    graph.ir_version = 8
    onnx.save(graph, tmp_path / "nms.onnx")
    inputs = {"scores": scores, "boxes": boxes, "levels": levels, "sizes": np.array([[120, 130]])}
    inside = open_session(tmp_path / "nms.onnx", threads=1).run(None, inputs)
    outside = find_detections(scores[0], boxes[0], levels, (120, 130), (120, 130), settings)
    for values, name in zip(inside, ("boxes", "scores", "labels"), strict=False):
        assert values[0, : inside[3][0]].tolist() == outside[name].tolist()


@pytest.mark.parametrize("per_class", [True, False])
def test_nms_inside_uses_the_post_processing_settings(exported: Any, per_class: bool, tmp_path: Path) -> None:
    """With lower limits per level and in total, another threshold, and per class or over all classes."""
    few = replace(
        exported.detector.settings.postprocess,
        topk=40,
        max_detections=7,
        nms_threshold=0.3,
        score_threshold=0.1,
        per_class=per_class,
    )
    detector = Detector(replace(exported.detector.settings, postprocess=few), exported.detector.classes).eval()
    path = tmp_path / "few.onnx"
    onnx.save(exporting.with_nms(exported.network, detector), path)
    session, inside = open_session(exported.outside, threads=1), open_session(path, threads=1)
    found = compare_detections(detector, session, inside, [(2, 128, 192)])
    assert found.matched == 1.0
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 128, 192), dtype=np.uint8)
    sizes = np.array([[128, 192], [100, 150]])
    boxes, scores, labels, count = inside.run(None, {"images": images, "sizes": sizes})
    assert count.tolist() == [7, 7]
    assert boxes.shape == (2, 7, 4)
    assert (np.diff(scores, axis=1) <= 0).all()
    assert set(labels.flatten()) <= {0, 1, 2}
    assert (boxes[1] <= [150, 100, 150, 100]).all()


def test_an_image_without_detections_has_empty_rows(exported: Any, tmp_path: Path) -> None:
    settings = replace(exported.detector.settings.postprocess, score_threshold=0.999999)
    detector = Detector(replace(exported.detector.settings, postprocess=settings), exported.detector.classes)
    path = tmp_path / "none.onnx"
    onnx.save(exporting.with_nms(exported.network, detector), path)
    images = np.zeros((2, 3, 96, 128), dtype=np.uint8)
    _, scores, labels, count = open_session(path, threads=1).run(None, {"images": images, "sizes": [[96, 128]] * 2})
    assert count.tolist() == [0, 0]
    assert not scores.any()
    assert (labels == -1).all()


def test_a_failed_check_leaves_no_file(exported: Any, tmp_path: Path) -> None:
    wrong = Detector(exported.detector.settings, exported.detector.classes).eval()
    with pytest.raises(ModelError, match=r"differ from those of the detector.*No file was written"):
        exporting.write_checked(wrong, exported.network, tmp_path / "model.onnx", "outside", Console(quiet=True))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "differences",
    [
        Differences(2e-3, 0, 5, 2),
        Differences(0, 2e-4, 5, 0),
        Differences(float("nan"), 0, 5, float("nan")),
        Differences(0, float("nan"), 5, 0),
        Differences(0, 0, 5, 0, matched=0.9),
        Differences(0, 0, 0, 0),
    ],
)
def test_differences_that_are_too_large_or_nan_are_refused(differences: Differences) -> None:
    with pytest.raises(ModelError, match="differ from those of the detector"):
        differences.check()


def test_export_prints_the_differences_from_torch(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exported.detector.save(tmp_path / "best.safetensors")
    monkeypatch.setattr(exporting, "trace", lambda detector, opset: exported.network)
    made = exporting.export_run(tmp_path, nms="inside")
    assert made == tmp_path / "model.onnx"
    said = capsys.readouterr().out
    numbers = re.findall(r"random images: boxes differ by at most (\S+) pixels, scores by (\S+)$", said, re.MULTILINE)
    assert len(numbers) == 2  # of the network, and of NMS
    assert all(float(box) <= 1e-3 and float(score) <= 1e-4 for box, score in numbers)
    assert "NMS verified on" in said
    assert "no test-time augmentation" not in said
    assert OnnxDetector(made).classes == exported.detector.classes


def test_export_warns_that_test_time_augmentation_is_left_out(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mirrored = replace(exported.detector.settings, test=TestSettings(flip=True))
    monkeypatch.setattr(exported.detector, "settings", mirrored)
    write = exporting.write_checked
    write(exported.detector, exported.network, tmp_path / "model.onnx", "outside", Console(width=200))
    assert "no test-time augmentation" in capsys.readouterr().out


def test_the_file_has_named_dimensions_and_no_paths(exported: Any) -> None:
    model = onnx.load(exported.outside)
    shape = [item.dim_param or item.dim_value for item in model.graph.input[0].type.tensor_type.shape.dim]
    assert shape == ["batch", 3, "height", "width"]
    assert b"site-packages" not in exported.outside.read_bytes()
    assert str(Path(exporting.__file__).parent).encode() not in exported.outside.read_bytes()


def test_a_detector_that_cannot_be_exported_is_refused_with_a_reason(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="contains no detector"):
        exporting.export_run(tmp_path)
    with pytest.raises(ModelError, match="opset is 11: choose 18 or later"):
        exporting.export_detector(exported.detector, tmp_path / "model.onnx", opset=11)
    torch.manual_seed(0)
    backbone = BackboneSettings("resnet10t", args={"channels": [8, 16, 24, 32]}, deformable_stages=(5,))
    with pytest.raises(ModelError, match="deformable"):
        exporting.export_detector(Detector(DetectorSettings(backbone=backbone), ["ant"]), tmp_path / "model.onnx")
    broken = Detector(DetectorSettings(backbone=replace(backbone, deformable_stages=())), ["ant"])
    next(broken.parameters()).data[0] = torch.nan
    with pytest.raises(ModelError, match=r"the weights of the detector are not finite .* first in backbone"):
        exporting.export_detector(broken, tmp_path / "model.onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install onnx onnxscript onnxruntime"):
        exporting.export_detector(exported.detector, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_torch_traces_ends_the_process_because_torch_would_abort(
    exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def traced(*_: Any, **__: Any) -> None:
        handlers.append(signal.getsignal(signal.SIGINT))
        raise ModelError

    handlers: list[Any] = []
    monkeypatch.setattr(torch.onnx, "export", traced)
    before = signal.signal(signal.SIGINT, interrupts._interrupt)
    try:
        with pytest.raises(ModelError):
            exporting.trace(exported.detector)
        assert handlers == [interrupts._exit]
        assert signal.getsignal(signal.SIGINT) is interrupts._interrupt
    finally:
        signal.signal(signal.SIGINT, before)
