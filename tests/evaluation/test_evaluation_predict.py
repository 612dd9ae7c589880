"""Detections in a user's own images, and that these stay as they are."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

from rankwise.data import DataError, ShapesDataset
from rankwise.data.transforms import EvalTransform
from rankwise.evaluation.inference import detect
from rankwise.evaluation.predict import find_images, predict_files
from rankwise.images.reading import read_pixels
from rankwise.models import Detector, DetectorSettings

NOTHING = {"boxes": np.zeros((0, 4)), "scores": np.zeros(0), "labels": np.zeros(0, dtype=np.int64)}


def predict(words, out, batch_size=8):
    return predict_files(
        find_images([str(word) for word in words]),
        out,
        read_pixels,
        lambda images: [NOTHING] * len(images),
        [],
        batch_size,
    )


def test_no_picture_is_written_over_an_image(tmp_path, monkeypatch, capsys):
    photos = tmp_path / "photos"
    (photos / "more").mkdir(parents=True)
    for place, name in enumerate(["a.png", "a.jpg", "b.jpg", "more/c.png", "more/d.png"]):
        Image.new("RGB", (8, 6), (place, 0, 0)).save(photos / name)
    (photos / "c.png").symlink_to(photos / "more" / "c.png")
    os.link(photos / "more" / "d.png", photos / "d.png")
    before = {file: file.read_bytes() for file in find_images([str(photos)])}
    monkeypatch.chdir(tmp_path)
    entries = predict(["photos"], photos)  # the folder has two names here
    assert {file: file.read_bytes() for file in before} == before
    pictures = [entry["picture"] for entry in entries]
    assert len(set(pictures)) == len(before)
    assert all((photos / name).is_file() for name in pictures)
    drawn = {entry["image"]: entry["picture"] for entry in entries}
    assert drawn["photos/b.jpg"] == "b.png"
    assert f"photos/a.png: 0 objects, drawn in {photos / drawn['photos/a.png']}\n" in capsys.readouterr().out


def test_pictures_of_an_earlier_call_are_written_anew(tmp_path):
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    for _ in range(2):
        (entry,) = predict([tmp_path / "a.png"], tmp_path / "out")
        assert entry["picture"] == "a.png"
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["a.png", "predictions.json"]
    assert json.loads((tmp_path / "out" / "predictions.json").read_text()) == [entry]


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_without_images_is_refused_before_anything_is_written(tmp_path, batch_size):
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=f"batch_size is {batch_size}: it must be at least 1"):
        predict([tmp_path / "a.png"], tmp_path / "out", batch_size)
    assert not (tmp_path / "out").exists()


def test_evaluation_pads_with_the_colour_that_prediction_pads_with():
    torch.manual_seed(0)
    settings = DetectorSettings.from_dict(
        {
            "input": {"short_side": 50, "max_side": 50, "mean": [0.9, 0.1, 0.0]},
            "backbone": {"name": "resnet10t", "args": {"channels": [8, 8, 16, 16], "stem_width": 8}},
            "neck": {"channels": 16, "extra_levels": 0},
            "head": {"channels": 16, "depth": 1},
            "postprocess": {"score_threshold": 0.0},
        }
    )
    dataset = ShapesDataset("val", images=1, size=50, transform=EvalTransform(settings.input))
    detector = Detector(settings, dataset.classes).eval()
    (found,) = detect(detector, dataset).detections.values()
    image, _ = dataset[0]
    predicted = detector.predict(image, threshold=0.0)
    assert len(found["scores"]) > 0
    assert torch.equal(found["scores"], predicted["scores"])
    assert torch.equal(found["boxes"], predicted["boxes"])
