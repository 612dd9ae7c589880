"""Calibration errors are measured on images that the calibration was not fitted to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

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
def test_calibration_errors_come_from_images_outside_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builtin: bool
) -> None:
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
    splits = calibration._splits(tmp_path, builtin)
    assert [(len(fit), len(measured)) for fit, measured, *_ in splits] == ([(12, 8)] if builtin else [(6, 6), (6, 6)])
    for fit, measured, *_ in splits:
        one, other = ({part.load(index)[0].sum().item() for index in range(6)} for part in (fit, measured))
        assert not one & other
    numbers = calibration.calibration_numbers(tmp_path, builtin, tmp_path, "APE")
    assert numbers["AP change"] == pytest.approx(0, abs=1e-6)
    assert set(numbers) == {"ECE raw", "ECE", "LaECE raw", "LaECE", "AP change", "AP change, float32"}
    monkeypatch.delattr(calibration, "detect")  # detections are kept for the next call
    assert calibration.calibration_numbers(tmp_path, builtin, tmp_path, "APE") == numbers


def test_calibrated_scores_have_lower_errors_on_the_other_half_and_the_same_ap(tmp_path: Path) -> None:
    """Correct boxes with raw scores of 0.2 to 0.4, and as many wrong ones with 0.1 to 0.3."""
    recipe = parse_recipe(["--config", "shapes", "--data.shapes.size=64", "--data.shapes.val_images=100"])
    (tmp_path / "recipe.yaml").write_text(recipe.text)
    dataset = open_run(tmp_path)[1]
    rng = np.random.default_rng(0)
    found = {}
    for record in dataset.records:
        n = len(record.boxes)
        scores = np.concatenate([rng.uniform(0.2, 0.4, n), rng.uniform(0.1, 0.3, n)])
        found[record.image_id] = {
            "boxes": torch.from_numpy(np.concatenate([record.boxes, record.boxes + 200])),
            "scores": torch.from_numpy(scores).float(),
            "labels": torch.from_numpy(np.tile(record.labels, 2)),
        }
    write_results(tmp_path / "detections.json", found, dataset.category_ids)
    numbers = calibration.calibration_numbers(tmp_path, False, tmp_path, "APE")
    assert numbers["ECE"] < numbers["ECE raw"] / 2
    assert numbers["LaECE"] == pytest.approx(numbers["ECE"], abs=0.02)  # the boxes are exact, up to rounding
    assert numbers["AP change"] == pytest.approx(0, abs=1e-6)
    pixels = np.asarray(Image.open(tmp_path / "calibration_reliability_APE.png").convert("L"))
    assert (pixels < 128).mean() > 0.002


def test_calibration_errors_have_three_digits_and_ap_changes_are_in_scientific_notation() -> None:
    assert summary([0.0123], "ECE raw") == "0.012"
    assert summary([2.2e-7, 1e-8], "AP change") == "2e-07"
