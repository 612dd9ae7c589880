"""Prediction in images and videos: outputs, and input images that are never overwritten."""

from __future__ import annotations

import json
import os
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from rankwise.cli import main
from rankwise.data import DataError, ShapesDataset, open_dataset
from rankwise.data.transforms import EvalTransform
from rankwise.evaluation.inference import detect
from rankwise.evaluation.predict import predict_files
from rankwise.evaluation.predictions import Output
from rankwise.images.reading import read_pixels
from rankwise.images.sources import Camera, Frame, find_images, find_inputs, frames
from rankwise.models import Detector, DetectorSettings, ModelError

NOTHING = {"boxes": np.zeros((0, 4)), "scores": np.zeros(0), "labels": np.zeros(0, dtype=np.int64)}


def predict(words, out, batch_size=8):
    return predict_files(
        find_images([str(word) for word in words]),
        Output(out),
        read_pixels,
        lambda images: [NOTHING] * len(images),
        [],
        batch_size,
    )


def test_input_images_are_never_overwritten(tmp_path, monkeypatch, capsys):
    photos = tmp_path / "photos"
    (photos / "more").mkdir(parents=True)
    for number, name in enumerate(["a.png", "a.jpg", "b.jpg", "more/c.png", "more/d.png"]):
        Image.new("RGB", (8, 6), (number, 0, 0)).save(photos / name)
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


def test_one_object_is_not_called_objects(tmp_path, capsys):
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    one = {"boxes": np.array([[1.0, 1, 4, 4]]), "scores": np.array([0.5]), "labels": np.array([0])}
    for found, said in ((NOTHING, "0 objects"), (one, "1 object")):
        predict_files([tmp_path / "a.png"], Output(tmp_path / "out"), read_pixels, lambda _, now=found: [now], ["cat"])
        assert f"a.png: {said}\n" in capsys.readouterr().out


def test_images_of_an_earlier_call_are_replaced(tmp_path):
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    for _ in range(2):
        (entry,) = predict([tmp_path / "a.png"], tmp_path / "out")
        assert entry["picture"] == "a.png"
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["a.png", "predictions.json"]
    assert json.loads((tmp_path / "out" / "predictions.json").read_text()) == [entry]


@pytest.mark.parametrize("batch_size", [0, -1])
def test_an_invalid_batch_size_is_refused_before_anything_is_written(tmp_path, batch_size):
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=f"batch_size is {batch_size}: it must be at least 1"):
        predict([tmp_path / "a.png"], tmp_path / "out", batch_size)
    assert not (tmp_path / "out").exists()


def test_evaluation_and_prediction_pad_with_the_same_color():
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


ONE = {"boxes": np.array([[2.0, 1.0, 6.0, 5.0], [90.0, 90.0, 95.0, 95.0]]), "scores": np.array([0.9, 0.8])}
ONE |= {"labels": np.array([1, 0])}


def predict_one(sources, out, batch_size=1, **options):
    output = Output(out, **options)
    return predict_files(sources, output, read_pixels, lambda images: [ONE] * len(images), ["a", "b/../c"], batch_size)


def write_video(path, count=5):
    cv2 = pytest.importorskip("cv2")
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (64, 48))
    for number in range(count):
        writer.write(np.full((48, 64, 3), 40 * number, dtype=np.uint8))
    writer.release()
    return path


def test_a_video_becomes_a_video_and_an_entry_per_frame(tmp_path):
    video = write_video(tmp_path / "clip.avi")
    entries = predict_one(find_inputs([str(tmp_path)]), tmp_path / "out", batch_size=2)
    assert [entry["frame"] for entry in entries] == list(range(5))
    assert [entry["seconds"] for entry in entries] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert {entry["image"] for entry in entries} == {str(video)}
    drawn = list(frames(tmp_path / "out" / "clip.mp4"))
    assert len(drawn) == 5
    assert drawn[0].pixels.shape == (48, 64, 3)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["clip.mp4", "predictions.json"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_video_leaves_no_file_behind(tmp_path, monkeypatch, stop):
    done, cut = write_video(tmp_path / "a.avi"), write_video(tmp_path / "b.avi")

    def interrupted(source):
        for frame in frames(source):
            if source == cut and frame.number == 3:
                assert (tmp_path / "out" / ".b.part.mp4").exists()
                raise stop
            yield frame

    monkeypatch.setattr("rankwise.evaluation.predict.frames", interrupted)
    with pytest.raises(stop):
        predict_one([done, cut], tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["a.mp4"]
    assert len(list(frames(tmp_path / "out" / "a.mp4"))) == 5


def test_a_camera_is_read_until_ctrl_c(tmp_path, monkeypatch, capsys):
    def pictures(source):
        for number in range(3):
            yield Frame(np.zeros((8, 8, 3), dtype=np.uint8), number, 25.0)
        raise KeyboardInterrupt

    monkeypatch.setattr("rankwise.evaluation.predict.frames", pictures)
    entries = predict_one(find_inputs(["webcam"]), tmp_path / "out", pictures=False, batch_size=8)
    assert [entry["image"] for entry in entries] == ["webcam 0"] * 3
    assert json.loads((tmp_path / "out" / "predictions.json").read_text()) == entries
    assert "predictions.json in " in capsys.readouterr().out
    assert find_inputs(["1", "webcam2"]) == [Camera(1), Camera(2)]


def test_an_unreadable_video_or_a_missing_opencv_is_a_message(tmp_path, monkeypatch):
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    with pytest.raises(DataError, match=r"clip\.mp4: OpenCV cannot read this video"):
        predict_one([tmp_path / "clip.mp4"], tmp_path / "out")
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(DataError, match=r"clip\.mp4: it needs OpenCV, install it with: pip install opencv-python"):
        predict_one([tmp_path / "clip.mp4"], tmp_path / "out")


def test_output_as_coco_yolo_and_crops(tmp_path, capsys):
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.new("RGB", (20, 10), (9, 8, 7)).save(photos / "one.png")
    files = find_inputs([str(photos)])
    predict_one(files, tmp_path / "coco", format="coco", pictures=False)
    coco = json.loads((tmp_path / "coco" / "annotations.json").read_text())
    assert coco["images"] == [{"id": 1, "file_name": str(photos / "one.png"), "width": 20, "height": 10}]
    assert coco["annotations"][0]["bbox"] == [2, 1, 4, 4]
    assert [row["category_id"] for row in coco["annotations"]] == [2, 1]
    assert [row["score"] for row in coco["annotations"]] == [0.9, 0.8]
    assert not list((tmp_path / "coco").glob("*.png"))
    # YOLO labels next to the images are a valid dataset.
    predict_one(files, photos, format="yolo", pictures=False)
    (photos / "images").mkdir()
    (photos / "one.png").rename(photos / "images" / "one.png")
    (photos / "labels" / "one.txt").write_text((photos / "labels" / "one.txt").read_text().splitlines()[0])
    dataset = open_dataset(photos)
    assert dataset.classes == ["a", "b/../c"]
    assert dataset.records[0].boxes.tolist() == [[2, 1, 6, 5]]
    capsys.readouterr()
    predict_one([photos / "images" / "one.png"], tmp_path / "crops", crop=True)
    (crop,) = (tmp_path / "crops" / "crops").rglob("*.png")  # the other box is outside the image
    assert crop.relative_to(tmp_path / "crops" / "crops").as_posix() == "b_.._c/one-1.png"
    assert Image.open(crop).size == (4, 4)
    said = capsys.readouterr().out
    assert "1 picture, predictions.json and 1 crop in " in said
    assert re.search(r"1 image in [\d.]+ s, [\d.]+ images/s\n", said)


def test_if_nothing_is_detected_the_highest_score_is_printed(tmp_path, capsys):
    torch.manual_seed(0)
    slim = {"name": "resnet10t", "args": {"channels": [8, 8, 16, 16], "stem_width": 8}}
    settings = {"input": {"short_side": 32, "max_side": 32}, "backbone": slim, "neck": {"channels": 16}}
    detector = Detector(DetectorSettings.from_dict({**settings, "head": {"channels": 16, "depth": 1}}), ["a"])
    detector.save(tmp_path / "detector.safetensors")
    image = tmp_path / "photo.png"
    Image.new("RGB", (40, 30), (200, 30, 90)).save(image)
    main(["predict", str(tmp_path / "detector.safetensors"), str(image), "--threshold", "0.9", "--no-pictures",
          "--out", str(tmp_path / "out")])  # fmt: skip
    best = detector.predict(image, threshold=0.0)["scores"][0].item()
    said = capsys.readouterr().out
    assert f"nothing was detected: the highest score is {best:.3g}, in {image}; set a lower --threshold" in said
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["predictions.json"]


def test_predict_accepts_folders_and_calling_a_detector_like_torchvision_explains_how(tmp_path):
    slim = {"name": "resnet10t", "args": {"channels": [8, 8, 16, 16], "stem_width": 8}}
    settings = {"input": {"short_side": 32, "max_side": 32}, "backbone": slim, "neck": {"channels": 16}}
    detector = Detector(DetectorSettings.from_dict({**settings, "head": {"channels": 16, "depth": 1}}), ["a"]).eval()
    for name in ("one.png", "two.jpg"):
        Image.new("RGB", (40, 30), (200, 30, 90)).save(tmp_path / name)
    (tmp_path / "notes.txt").touch()
    found = detector.predict(tmp_path, threshold=0.0)
    assert list(found) == [str(tmp_path / "one.png"), str(tmp_path / "two.jpg")]
    assert torch.equal(found[str(tmp_path / "one.png")]["boxes"], detector.predict(tmp_path / "one.png", 0.0)["boxes"])
    assert list(detector.predict(str(tmp_path / "*.jpg"))) == [str(tmp_path / "two.jpg")]
    assert len(detector.predict(np.zeros((2, 30, 40, 3), dtype=np.uint8))) == 2
    with pytest.raises(ModelError, match=r"not a list: .* as torchvision's detectors give them, call detector"):
        detector([torch.rand(3, 30, 40)])
