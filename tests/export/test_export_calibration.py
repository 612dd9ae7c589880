"""Calibrated scores of an ONNX file equal those of torch, with NMS outside and inside."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from rich.console import Console

from rankwise.cli import main
from rankwise.export import OnnxDetector
from rankwise.export.onnx import write_checked
from rankwise.models import ModelError
from rankwise.models.confidence import Confidence
from rankwise.models.score_map import Curve, ScoreMap

#: One class with several knots, one steeper than the raw scores, one flatter. A much flatter curve would amplify the
#: rounding of raw scores near 1.
MAP = ScoreMap(
    (
        Curve("isotonic", (-6.0, -2.0, -1.0, 0.5), (-4.0, -2.0, 0.0, 0.5), 0.7),
        Curve("logistic", (-1.0,), (0.5,), 2.0),
        Curve("logistic", (0.0,), (-1.0,), 0.8),
    )
)
LOGISTIC = ScoreMap((MAP.curves[1], MAP.curves[2], MAP.curves[1]))
THRESHOLDS = {"ant": 0.4, "bee": 0.3, "cat": 0.2}


@pytest.fixture(scope="module", params=["isotonic", "logistic"])
def files(exported: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A copy of the exported detector with a calibration, and its files."""
    detector, folder = copy.deepcopy(exported.detector), tmp_path_factory.mktemp("calibrated")
    score_map = MAP if request.param == "isotonic" else LOGISTIC
    detector.confidence = Confidence(score_map, THRESHOLDS, ((0.9, 0.6, 0.5, 0.7),))
    written = {
        nms: write_checked(detector, exported.network, folder / f"{nms}.onnx", nms, Console(quiet=True))
        for nms in ("outside", "inside")
    }
    return {"detector": detector, **written}


def test_onnx_and_torch_return_the_same_calibrated_scores(files: dict[str, Any]) -> None:
    image = np.random.default_rng(1).integers(0, 256, (96, 160, 3), dtype=np.uint8)
    for arguments in ({}, {"precision": 0.9}, {"threshold": 0.25}, {"calibrated": False}):
        wanted = files["detector"].predict(image, **arguments)
        assert len(wanted["scores"]) > 3
        assert wanted["scores"].dtype == torch.float32
        assert (wanted["scores"].diff() <= 0).all()
        for nms in ("outside", "inside"):
            (found,) = OnnxDetector(files[nms], threads=1).predict([image], **arguments)
            assert found["scores"].dtype == np.float32
            np.testing.assert_array_equal(found["labels"], wanted["labels"].numpy())
            np.testing.assert_allclose(found["scores"], wanted["scores"].numpy(), atol=1e-4)
            np.testing.assert_allclose(found["boxes"], wanted["boxes"].numpy(), atol=1e-2)


def test_the_outputs_of_the_file_are_probabilities_without_rankwise(files: dict[str, Any]) -> None:
    import onnxruntime

    images = np.random.default_rng(2).integers(0, 256, (2, 3, 96, 160), dtype=np.uint8)
    session = onnxruntime.InferenceSession(files["outside"])
    scores, raw = session.run(["scores", "raw_scores"], {"images": images})
    labels = np.broadcast_to(np.arange(3), raw.shape)
    np.testing.assert_allclose(scores, files["detector"].confidence.calibration(raw, labels), atol=1e-4)
    assert np.abs(scores - raw).max() > 0.1
    inside = onnxruntime.InferenceSession(files["inside"])
    sizes = np.array([[96, 160], [90, 150]])
    _, scores, labels, count, _ = inside.run(None, {"images": images, "sizes": sizes})
    for index in range(2):
        kept = scores[index, : count[index]]
        assert (np.diff(kept) <= 0).all()
        assert (labels[index, : count[index]] >= 0).all()
        assert not scores[index, count[index] :].any()


def test_raw_scores_near_0_and_1_are_calibrated_as_in_numpy() -> None:
    """Sigmoids underflow and saturate; the graph takes logarithms of them."""
    from rankwise.export.calibration_graph import Nodes, calibrate

    extreme = np.array([[0, 1e-45, 1e-38, 1e-20, 0.5, 1 - 6e-8, 1]], dtype=np.float32).T
    raw = np.broadcast_to(extreme, (7, 3)).copy()
    nodes = Nodes("calibration")
    calibrate(nodes, MAP, "raw", output="scores")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes.nodes, "g", [value("raw", 1, [7, 3])], [value("scores", 1, [7, 3])], nodes.constants
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    import onnxruntime

    (scores,) = onnxruntime.InferenceSession(model.SerializeToString()).run(["scores"], {"raw": raw})
    wanted = MAP(raw, np.broadcast_to(np.arange(3), raw.shape))
    np.testing.assert_allclose(scores, wanted, atol=1e-4)


def test_with_nms_inside_detections_are_calibrated_and_sorted_again() -> None:
    """Three boxes far from each other, whose order the calibration reverses."""
    from rankwise.export.calibration_graph import calibrate_detections
    from rankwise.export.nms_graph import nms_graph
    from rankwise.models import PostprocessSettings

    steep = ScoreMap((Curve("logistic", (0.0,), (-3.0,), 1.0), Curve("logistic", (0.0,), (3.0,), 1.0)))
    graph = nms_graph(PostprocessSettings(score_threshold=0.05), 2, 1)
    calibrate_detections(graph, steep)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    import onnxruntime

    corners = np.arange(4) * 20.0
    values = {
        "scores": np.array([[[0.9, 0.0], [0.0, 0.3], [0.5, 0.0], [0.01, 0.01]]], dtype=np.float32),
        "boxes": np.stack([corners, corners, corners + 10, corners + 10], axis=1)[None].astype(np.float32),
        "levels": np.zeros(4, dtype=np.int64),
        "sizes": np.array([[100, 100]]),
    }
    boxes, scores, labels, count, raw = onnxruntime.InferenceSession(model.SerializeToString()).run(None, values)
    assert count.tolist() == [3]
    assert raw[0, :3].tolist() == pytest.approx([0.3, 0.9, 0.5])
    assert labels[0, :4].tolist() == [1, 0, 0, -1]
    assert boxes[0, :3, 0].tolist() == [20, 0, 40]
    np.testing.assert_allclose(scores[0, :3], steep(raw[0, :3], labels[0, :3]), atol=1e-6)
    assert not scores[0, 3:].any()


def test_the_command_line_predicts_with_a_calibrated_file(files: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    from PIL import Image

    pixels = np.random.default_rng(3).integers(0, 256, (96, 160, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    results = {}
    for name, flags in {"calibrated": [], "raw": ["--calibrated", "false"], "sure": ["--precision", "0.9"]}.items():
        out = tmp_path / name
        main(["predict", str(files["outside"]), str(tmp_path / "image.png"), "--out", str(out), *flags])
        results[name] = json.loads((out / "predictions.json").read_text())[0]["objects"]
    assert "precision 0.9 is reached at threshold 0.600 (95 % interval 0.50 to 0.70" in capsys.readouterr().out
    assert len(results["calibrated"]) == len(results["raw"])
    assert results["sure"] == [entry for entry in results["calibrated"] if entry["score"] >= 0.6] != []
    assert {entry["score"] for entry in results["calibrated"]} != {entry["score"] for entry in results["raw"]}


def test_an_invalid_calibration_in_a_file_is_refused(files: dict[str, Any], tmp_path: Path) -> None:
    model = onnx.load(files["outside"])
    values = json.loads(model.metadata_props[0].value)
    values["calibration"]["curves"][1]["slope"] = -1
    model.metadata_props[0].value = json.dumps(values)
    onnx.save(model, tmp_path / "bad.onnx")
    with pytest.raises(ModelError, match=r"bad\.onnx.*not strictly increasing"):
        OnnxDetector(tmp_path / "bad.onnx")


def test_a_file_of_an_earlier_version_has_raw_scores(exported: Any) -> None:
    detector = OnnxDetector(exported.outside)
    plain = json.loads(detector.manifest.to_json())
    for name in ("calibration", "precisions"):
        del plain[name]
    manifest = type(detector.manifest).from_metadata({"rankwise": json.dumps(plain)}, "old.onnx")
    assert manifest == detector.manifest
    with pytest.raises(ModelError, match="rankwise eval"):
        detector.predict([np.zeros((96, 160, 3), dtype=np.uint8)], precision=0.9)


@pytest.mark.parametrize("nms", ["outside", "inside"])
def test_a_steep_calibration_of_a_hardly_trained_detector_is_exported(exported: Any, tmp_path: Path, nms: str) -> None:
    """It amplifies the rounding of raw scores, which is not a difference between the file and the detector."""
    detector = copy.deepcopy(exported.detector)
    detector.confidence = Confidence(ScoreMap((Curve("logistic", (-1.0,), (0.0,), 1e5),) * 3))
    file = write_checked(detector, exported.network, tmp_path / "steep.onnx", nms, Console(quiet=True))
    assert OnnxDetector(file, threads=1).manifest.confidence == detector.confidence
