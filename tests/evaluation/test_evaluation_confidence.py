"""The calibration of a run: fitted by its evaluation, stored in its weights, used for all scores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from rankwise.cli import main
from rankwise.config.recipe import parse_recipe
from rankwise.data import ShapesDataset
from rankwise.errors import ModelError
from rankwise.evaluation.coco import calibrated, evaluate
from rankwise.evaluation.inference import evaluate_run
from rankwise.evaluation.results import read_results
from rankwise.models import Detector, weights
from rankwise.numpy_boxes import nms

FLAGS = [
    "--data.shapes.size=64",
    "--data.shapes.train_images=8",
    "--data.shapes.val_images=12",
    "--model.input.short_side=64",
    "--model.input.max_side=64",
]
WRITTEN = {"detections.jpg", "detections.json", "eval.json", "report.html"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluated run with an untrained detector whose scores differ."""
    run = tmp_path_factory.mktemp("runs") / "run"
    run.mkdir()
    recipe = parse_recipe(["--config", "shapes", *FLAGS])
    (run / "recipe.yaml").write_text(recipe.text)
    torch.manual_seed(0)
    detector = Detector(recipe.model, ShapesDataset("val", size=64, images=1).classes)
    with torch.no_grad():
        detector.head.class_output.weight.normal_(std=0.3)
    detector.save(run / "best.safetensors")
    shutil.copytree(run, run.with_name("before"))
    evaluate_run(run, device="cpu", console=Console(quiet=True))
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the evaluated run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def check_ap(run: Path) -> None:
    """Checks that calibrated and raw scores have the same AP."""
    dataset = ShapesDataset("val", size=64, images=12)
    parts = dataset.ground_truth(), dataset.category_ids, dataset.classes
    raw, mapped = (
        evaluate(parts[0], read_results(run / f"{name}.json", parts[1]), *parts[1:])
        for name in ("detections", "detections_calibrated")
    )
    assert raw.per_class == pytest.approx(mapped.per_class, abs=1e-6)
    assert raw.matches.detections.scores.max() != mapped.matches.detections.scores.max()
    inside = calibrated(raw, [record.image_id for record in dataset.records])
    assert inside.per_class == raw.per_class
    again = evaluate(parts[0], read_results(run / "detections_calibrated.json", parts[1]), *parts[1:])
    np.testing.assert_array_equal(np.sort(again.matches.matched), np.sort(inside.matches.matched))


def test_weights_have_the_calibration_of_eval_json_and_evaluating_again_changes_nothing(run: Path) -> None:
    values = json.loads((run / "eval.json").read_text())
    confidence = Detector.load(run).confidence
    assert confidence.calibration is not None
    assert confidence.calibration.to_dict() == values["calibration"]
    assert confidence.thresholds == {name: best["score"] for name, best in values["thresholds"]["per_class"].items()}
    assert values["thresholds"]["overall"]["interval"] is not None
    before = (run / "best.safetensors").read_bytes()
    main(["eval", str(run), "--device", "cpu", "--calibrated", "true"])
    assert (run / "best.safetensors").read_bytes() == before
    assert json.loads((run / "eval.json").read_text()) == values
    check_ap(run)


def test_a_copied_or_saved_weights_file_keeps_calibration_and_thresholds(run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "best.safetensors", tmp_path / "alone.safetensors")
    assert Detector.load(tmp_path / "alone.safetensors").confidence == Detector.load(run).confidence
    detector = Detector.load(run)
    detector.save(tmp_path / "again.safetensors")
    assert Detector.load(tmp_path / "again.safetensors").confidence == detector.confidence


def test_new_weights_do_not_inherit_calibration_and_thresholds(run: Path) -> None:
    """A resumed training writes new weights into a folder whose eval.json belongs to earlier ones."""
    detector = Detector.load(run)
    fresh = Detector(detector.settings, detector.classes)
    fresh.save(run / "best.safetensors")
    loaded = Detector.load(run)
    assert loaded.confidence.calibration is None
    assert loaded.thresholds is None


def test_predict_returns_probabilities_or_raw_scores_of_the_same_boxes(run: Path) -> None:
    image = ShapesDataset("val", size=64, images=12).load(3)[0]
    detector = Detector.load(run)
    found, raw = detector.predict(image), detector.predict(image, calibrated=False)
    assert len(found["scores"]) == len(raw["scores"]) > 0
    everything = detector.predict(image, threshold=0.0)
    assert len(everything["scores"]) > len(found["scores"])
    assert (everything["scores"].diff() <= 0).all()
    mapped = detector.confidence.calibration(raw["scores"].numpy(), raw["labels"].numpy())
    np.testing.assert_allclose(np.sort(mapped), np.sort(found["scores"].numpy()), atol=1e-6)
    low = torch.tensor([detector.thresholds[detector.classes[label]] for label in found["labels"]])
    assert (found["scores"] >= low - 1e-6).all()
    with pytest.raises(ModelError, match="give only one of them"):
        detector.predict(image, threshold=0.5, precision=0.5)


def test_other_images_are_evaluated_with_the_stored_calibration_which_does_not_change(
    run: Path, capsys: pytest.CaptureFixture
) -> None:
    before = (run / "best.safetensors").read_bytes()
    main(["eval", str(run), "--split", "train", "--device", "cpu"])
    assert "scores are probabilities: logistic" in capsys.readouterr().out
    assert {path.name for path in (run / "eval-train").iterdir()} == WRITTEN
    page = (run / "eval-train" / "report.html").read_text()
    assert "built-in shapes, train" in page
    assert "Precision and recall at the thresholds of the run" in page
    assert not (run / "report.html").exists()
    values = json.loads((run / "eval-train" / "eval.json").read_text())
    assert values["calibration"] == Detector.load(run).confidence.calibration.to_dict()
    assert not values["reliability"]["cross_fitted"]
    assert (run / "best.safetensors").read_bytes() == before


def test_evaluating_raw_scores_does_not_change_the_weights(run: Path, capsys: pytest.CaptureFixture) -> None:
    before = (run / "best.safetensors").read_bytes()
    main(["eval", str(run), "--device", "cpu", "--calibrated", "false"])
    assert "calibration" not in json.loads((run / "eval.json").read_text())
    assert (run / "best.safetensors").read_bytes() == before
    assert "scores are probabilities" not in capsys.readouterr().out


def test_a_run_of_an_earlier_version_loads_and_explains_how_to_calibrate(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    old = Path(shutil.copytree(finished.with_name("before"), tmp_path / "old"))
    threshold = {"score": 0.0123, "f1": 0.5, "precision": 0.5, "recall": 0.5}
    per_class = dict.fromkeys(Detector.load(old).classes, threshold)
    (old / "eval.json").write_text(json.dumps({"thresholds": {"overall": threshold, "per_class": per_class}}))
    assert set(Detector.load(old).thresholds.values()) == {0.0123}
    Image.new("RGB", (64, 64)).save(tmp_path / "image.png")
    main(["predict", str(old), str(tmp_path / "image.png"), "--out", str(tmp_path / "out"), "--device", "cpu"])
    assert "scores are raw, not probabilities" in (said := " ".join(capsys.readouterr().out.split()))
    assert "rankwise eval" in said
    with pytest.raises(ModelError, match="rankwise eval"):
        Detector.load(old).predict(torch.zeros(3, 64, 64, dtype=torch.uint8), precision=0.9)


def test_an_invalid_calibration_in_a_weights_file_is_refused(run: Path) -> None:
    import safetensors

    path = run / "best.safetensors"
    content = weights.read(path)
    with safetensors.safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["rankwise"])
    description["confidence"]["calibration"]["curves"].pop()
    weights.write(path, content.tensors, description, {"format": "pt"})  # with a valid checksum
    with pytest.raises(ModelError, match=r"best\.safetensors.*curves for"):
        Detector.load(run)


def test_calibrate_accepts_the_results_of_any_detector(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    dataset = ShapesDataset("val", size=64, images=12)
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps(dataset.ground_truth()))
    main(["calibrate", str(run / "detections.json"), "--truth", str(truth), "--out", str(tmp_path / "out")])
    assert "scores are probabilities: logistic" in capsys.readouterr().out
    values = json.loads((tmp_path / "out" / "calibration.json").read_text())
    wanted = json.loads((run / "eval.json").read_text())["calibration"]["curves"]
    slopes = [[curve["slope"] for curve in curves] for curves in (values["calibration"]["curves"], wanted)]
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-2)  # the file rounds scores and boxes
    found = json.loads((tmp_path / "out" / "detections.json").read_text())
    assert len(found) == len(json.loads((run / "detections.json").read_text()))
    for name in ("reliability", "thresholds"):
        pixels = np.asarray(Image.open(tmp_path / "out" / f"{name}.png").convert("L"))
        assert (pixels < 128).mean() > 0.002, name
    for name, content, message in (
        ("results", [{"image_id": dataset.records[0].image_id}], "entry 0 is not a detection"),
        ("results", {"images": []}, "expected a list of detections"),
        ("truth", {"images": []}, "not COCO annotations"),
    ):
        bad = tmp_path / "bad.json"
        bad.write_text(json.dumps(content))
        words = [str(run / "detections.json"), "--truth", str(bad)]
        if name == "results":
            words = [str(bad), "--truth", str(truth)]
        with pytest.raises(SystemExit):
            main(["calibrate", *words, "--out", str(tmp_path / "no")])
        assert message in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_class_agnostic_nms_keeps_one_box_per_object() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [5, 5, 15, 15], [0, 0, 10, 10.0]])
    assert nms(boxes, 0.7).tolist() == [0, 2]
    assert nms(boxes[:0], 0.7).tolist() == []
