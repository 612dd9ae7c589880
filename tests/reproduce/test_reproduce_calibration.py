"""The table of calibration errors measures on images that the calibration was not fitted to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankwise.config.datasets import open_run
from rankwise.config.recipe import parse_recipe
from rankwise.data import EvalTransform, ShapesDataset
from rankwise.evaluation import write_results
from rankwise.evaluation.inference import detect
from rankwise.models import Detector
from rankwise.reproduce import calibration
from rankwise.reproduce.text import summary

FLAGS = ["--data.shapes.size=64", "--data.shapes.val_images=12", "--model.input.short_side=64"]


@pytest.mark.parametrize("builtin", [True, False])
def test_a_run_is_measured_on_other_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builtin: bool) -> None:
    monkeypatch.setattr(calibration, "IMAGES", 8)
    recipe = parse_recipe(["--config", "shapes", *FLAGS, "--model.input.max_side=64"])
    (tmp_path / "recipe.yaml").write_text(recipe.text)
    torch.manual_seed(0)
    detector = Detector(recipe.model, ShapesDataset("val", size=64, images=1).classes)
    with torch.no_grad():
        detector.head.class_output.weight.normal_(std=0.3)
    detector.save(tmp_path / "best.safetensors")
    own = open_run(tmp_path)[1]
    seen = detect(detector, own.with_transform(EvalTransform(detector.settings.input)))
    write_results(tmp_path / "detections.json", seen.detections, own.category_ids)
    pairs = calibration._pairs(tmp_path, builtin)
    assert [(len(fit), len(measured)) for fit, measured, *_ in pairs] == ([(12, 8)] if builtin else [(6, 6), (6, 6)])
    for fit, measured, *_ in pairs:
        one, other = ({part.load(index)[0].sum().item() for index in range(6)} for part in (fit, measured))
        assert not one & other
    numbers = calibration.calibration_numbers(tmp_path, builtin, tmp_path, "APE")
    assert numbers["AP change"] == pytest.approx(0, abs=1e-6)
    assert set(numbers) == {"ECE raw", "ECE", "LaECE raw", "LaECE", "AP change", "AP change, float32"}
    assert (tmp_path / "calibration_reliability_APE.png").is_file()
    monkeypatch.delattr(calibration, "detect")  # what was detected is not detected again
    assert calibration.calibration_numbers(tmp_path, builtin, tmp_path, "APE") == numbers


def test_errors_have_three_digits_and_changes_of_ap_their_size() -> None:
    assert summary([0.0123], "ECE raw") == "0.012"
    assert summary([2.2e-7, 1e-8], "AP change") == "2e-07"
