"""Saving, loading and predicting."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_detectors import CLASSES, SLIM, lively, small
from torch import Tensor

from rankwise.images.tensors import as_image, input_size, resize_for_input, stack_images
from rankwise.models import Detector, DetectorSettings, InputSettings, ModelError, PostprocessSettings, atss
from rankwise.types import Predictions


def picture(height: int = 80, width: int = 120, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=random)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in ("boxes", "scores", "labels"))


def test_a_saved_detector_is_the_same_when_loaded(settings: DetectorSettings, tmp_path: Path) -> None:
    detector = lively(settings)
    detector.save(tmp_path / "best.safetensors", epoch=7, ap=0.31)
    loaded = Detector.load(tmp_path)
    assert loaded.settings == settings
    assert loaded.classes == CLASSES
    with safe_open(tmp_path / "best.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["rankwise"])["extra"] == {"epoch": 7, "ap": 0.31}
    assert not loaded.training
    images = torch.stack([picture(), picture(seed=1)])
    one, other = detector(images), loaded(images)
    assert torch.equal(one.logits, other.logits)
    assert torch.equal(one.boxes, other.boxes)


def test_channels_last_weights_can_be_saved(detector: Detector, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    detector.to(memory_format=torch.channels_last).save(path)
    state = detector.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in Detector.load(path).state_dict().items())


def test_loading_needs_no_pretrained_weights(tmp_path: Path) -> None:
    detector = lively(small(atss()))
    detector.settings = replace(detector.settings, backbone=replace(SLIM, pretrained="gone.safetensors"))
    detector.save(tmp_path / "best.safetensors")
    assert Detector.load(tmp_path).settings.backbone.pretrained is False


def _nothing(_: Path) -> None:
    pass


def _folder(path: Path) -> None:
    path.mkdir()


def _pickle(path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (path.parent / "ran",))

    path.write_bytes(pickle.dumps(Bomb()))


def _foreign(path: Path) -> None:
    save_file({"conv.weight": torch.zeros(2)}, path)


def _other_settings(path: Path) -> None:
    description = {"settings": {"head": {"colour": 1}}, "classes": ["a"], "extra": {}}
    save_file({"conv.weight": torch.zeros(2)}, path, {"rankwise": json.dumps(description)})


def _settings_that_load(path: Path) -> None:
    bomb = path.parent / "bomb.pth"
    _pickle(bomb)
    settings = small(atss()).to_dict()
    settings["backbone"]["args"]["checkpoint_path"] = str(bomb)
    description = {"settings": settings, "classes": ["a"], "extra": {}}
    save_file({"conv.weight": torch.zeros(2)}, path, {"rankwise": json.dumps(description)})


def _settings_that_fetch(path: Path) -> None:
    settings = small(atss()).to_dict()
    settings["backbone"]["name"] = "hf-hub:someone/something"
    description = {"settings": settings, "classes": ["a"], "extra": {}}
    save_file({"conv.weight": torch.zeros(2)}, path, {"rankwise": json.dumps(description)})


def _other_weights(path: Path) -> None:
    lively(small(atss())).save(path)
    tensors = load_file(path)
    description = {"settings": small(atss()).to_dict(), "classes": ["only"], "extra": {}}
    save_file(tensors, path, {"rankwise": json.dumps(description)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_nothing, "no such run or file"),
        (_folder, "contains no detector: expected best.safetensors"),
        (_pickle, "is not a safetensors file, or damaged; nothing was run"),
        (_foreign, "weights but no detector settings"),
        (_other_settings, "settings.head has no 'colour'.*another version"),
        (_settings_that_load, "backbone.args sets checkpoint_path"),
        (_settings_that_fetch, "timm has no backbone 'hf-hub"),
        (_other_weights, "its weights and settings do not match"),
    ],
)
def test_wrong_files_have_distinct_errors_and_run_nothing(make: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    make(path)
    with pytest.raises(ModelError, match=message):
        Detector.load(path)
    assert not (tmp_path / "ran").exists()


def test_all_image_types_give_the_same_detections(detector: Detector, tmp_path: Path) -> None:
    image = picture()
    array = image.permute(1, 2, 0).numpy()
    Image.fromarray(array).save(tmp_path / "image.png")
    expected = detector.predict(image)
    assert len(expected["boxes"])
    for kind in (
        array,
        Image.fromarray(array),
        tmp_path / "image.png",
        str(tmp_path / "image.png"),
        image.float() / 255,
    ):
        assert same(detector.predict(kind), expected)


def test_a_list_of_images_returns_a_list(detector: Detector) -> None:
    images = [picture(80, 120), picture(50, 90, seed=1), picture(120, 60, seed=2)]
    alone = [detector.predict(image) for image in images]
    together = detector.predict(images)
    assert len(together) == 3
    assert all(same(one, other) for one, other in zip(alone, together, strict=True))
    assert detector.predict([]) == []


def test_images_of_one_batch_keep_their_own_coordinates(detector: Detector) -> None:
    wide, high = picture(60, 150), picture(150, 60, seed=1)
    for found, image in zip(detector.predict([wide, high], batch_size=2), (wide, high), strict=True):
        height, width = image.shape[1:]
        assert len(found["boxes"])
        assert (found["boxes"][:, 2] <= width + 1e-3).all()
        assert (found["boxes"][:, 3] <= height + 1e-3).all()


@pytest.mark.parametrize(
    ("height", "width", "settings"),
    [
        (300, 500, InputSettings(short_side=96, max_side=160)),  # smaller
        (500, 210, InputSettings(short_side=96, max_side=160)),  # smaller, held by the longer side
        (30, 40, InputSettings(short_side=96, max_side=160)),  # larger
        (300, 500, InputSettings(short_side=128, max_side=128, keep_ratio=False)),  # squeezed
        (40, 25, InputSettings(short_side=96, max_side=160, keep_ratio=False)),  # stretched
    ],
)
def test_boxes_are_in_pixels_of_the_original_image(height: int, width: int, settings: InputSettings) -> None:
    """A detector that finds the bright rectangle by looking at the pixels it is given."""
    detector = Detector(small(atss(), input=settings), ["bright"])

    def look(images: Tensor) -> Predictions:
        bright = (images[0].float().mean(dim=0) > 128).nonzero()
        (top, left), (bottom, right) = bright.amin(dim=0).tolist(), (bright.amax(dim=0) + 1).tolist()
        boxes = torch.tensor([[[left, top, right, bottom]]], dtype=torch.float32)
        return Predictions(torch.full((1, 1, 1), 2.0), boxes, boxes[0], (1,))

    detector.forward = look  # type: ignore[method-assign]
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    true = torch.tensor([0.2 * width, 0.3 * height, 0.7 * width, 0.9 * height]).round()
    left, top, right, bottom = true.int().tolist()
    image[:, top:bottom, left:right] = 255
    found = detector.predict(image)["boxes"][0]
    size = input_size(height, width, settings)
    pixel = torch.tensor([width / size[1], height / size[0]] * 2)  # one pixel of the resized image
    assert ((found - true).abs() <= pixel).all()


@pytest.mark.parametrize(
    ("size", "settings", "expected"),
    [
        ((480, 640), InputSettings(), (800, 1067)),
        ((640, 480), InputSettings(), (1067, 800)),
        ((300, 1000), InputSettings(), (400, 1333)),
        ((1200, 1600), InputSettings(), (800, 1067)),
        ((480, 640), InputSettings(512, 512, keep_ratio=False), (512, 512)),
        ((640, 480), InputSettings(256, 384, keep_ratio=False), (384, 256)),
        ((1, 5000), InputSettings(), (1, 1333)),
    ],
)
def test_input_size_follows_the_settings(
    size: tuple[int, int], settings: InputSettings, expected: tuple[int, int]
) -> None:
    assert input_size(*size, settings) == expected
    if size[0] * size[1] < 400_000:
        assert resize_for_input(torch.zeros(3, *size, dtype=torch.uint8), settings).shape == (3, *expected)


def test_batches_are_padded_with_the_mean_color() -> None:
    batch = stack_images([picture(20, 40), picture(33, 10)], InputSettings())
    assert batch.shape == (2, 3, 64, 64)
    assert batch.dtype == torch.uint8
    assert torch.equal(batch[0, :, :20, :40], picture(20, 40))
    assert batch[0, :, 20, 0].tolist() == batch[1, :, 0, 10].tolist() == [124, 116, 104]


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 5, 3)), "uint8 of shape .* not float64"),
        (np.zeros((3, 4, 5), dtype=np.uint8), r"not uint8 of shape \[3, 4, 5\]"),
        (torch.zeros(4, 5, 3), r"\[3, height, width\], not \[4, 5, 3\]"),
        (torch.full((3, 4, 5), 200.0), "values from 0 to 1, this one has 200 to 200"),
        (torch.full((3, 4, 5), float("nan")), "values from 0 to 1"),
        (torch.zeros(3, 4, 5, dtype=torch.int32), "uint8 or float, not torch.int32"),
        (torch.zeros(3, 0, 5), "no pixels"),
        (17, "not int"),
    ],
)
def test_unknown_image_types_are_refused(image: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        as_image(image)


def test_gray_and_transparent_images_become_rgb() -> None:
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert torch.equal(as_image(grey), torch.from_numpy(grey).expand(3, 3, 4))
    assert as_image(Image.new("RGBA", (5, 4))).shape == (3, 4, 5)


def test_an_image_of_16_bits_is_the_same_by_path_and_as_a_pil_image(tmp_path: Path) -> None:
    values = (np.arange(48, dtype=np.uint16) * 1300).reshape(6, 8)
    Image.fromarray(values).save(tmp_path / "deep.png")
    by_path = as_image(tmp_path / "deep.png")
    with Image.open(tmp_path / "deep.png") as image:
        assert image.mode.startswith("I")
        assert torch.equal(as_image(image), by_path)
    assert torch.equal(by_path[0], torch.from_numpy((values >> 8).astype(np.uint8)))


def test_the_orientation_of_a_pil_image_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(20, 30).permute(1, 2, 0).numpy()).save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as image:
        assert torch.equal(as_image(image), as_image(tmp_path / "turned.png"))


def stored(folder: Path, overall: float, per_class: dict[str, float]) -> None:
    scores = {name: {"score": score, "f1": 0.5} for name, score in per_class.items()}
    (folder / "eval.json").write_text(json.dumps({"thresholds": {"overall": {"score": overall}, "per_class": scores}}))


def test_the_default_thresholds_are_those_stored_with_the_run(detector: Detector, tmp_path: Path) -> None:
    detector.save(tmp_path / "best.safetensors")
    everything = detector.predict(picture(), threshold=0.0)
    limits = [everything["scores"][everything["labels"] == label].median().item() for label in (0, 1)]
    stored(tmp_path, 0.9, {"ant": limits[0], "bee": limits[1]})
    found = Detector.load(tmp_path).predict(picture())
    at_least = torch.tensor([*limits, 0.9])  # the cat was not measured
    keep = everything["scores"] >= at_least[everything["labels"]]
    assert same(found, {name: value[keep] for name, value in everything.items()})
    assert 0 < len(found["boxes"]) < len(everything["boxes"])


def test_an_explicit_threshold_overrides_the_stored_ones(detector: Detector, tmp_path: Path) -> None:
    detector.save(tmp_path / "best.safetensors")
    stored(tmp_path, 1.0, {})
    loaded = Detector.load(tmp_path)
    found = loaded.predict(picture(), threshold=0.3)
    assert len(found["scores"])
    assert (found["scores"] >= 0.3).all()
    assert len(loaded.predict(picture())["scores"]) == 0


def test_a_threshold_may_be_below_that_of_the_settings() -> None:
    settings = small(atss(), postprocess=PostprocessSettings(score_threshold=0.6, max_detections=1000))
    detector = lively(settings)
    assert (detector.predict(picture())["scores"] >= 0.6).all()
    assert detector.predict(picture(), threshold=0.1)["scores"].min() < 0.6
    with pytest.raises(ModelError, match="threshold is 2"):
        detector.predict(picture(), threshold=2)


def test_no_image_is_left_out_by_a_batch_size_below_one() -> None:
    with pytest.raises(ModelError, match="batch_size is -1: it must be at least 1"):
        lively(small(atss())).predict([picture()], batch_size=-1)


def test_thresholds_of_other_classes_are_refused() -> None:
    detector = lively(small(atss()))
    with pytest.raises(ModelError, match="thresholds are for the classes bird: give one for each of "):
        detector.thresholds = {"bird": 0.5}


@pytest.mark.parametrize("text", ["{", '{"thresholds": {}}', '{"thresholds": 3}', "[]"])
def test_a_damaged_eval_json_is_named(text: str, detector: Detector, tmp_path: Path) -> None:
    detector.save(tmp_path / "best.safetensors")
    (tmp_path / "eval.json").write_text(text)
    with pytest.raises(ModelError, match=r"eval\.json: its thresholds cannot be read"):
        Detector.load(tmp_path)


def test_an_evaluation_without_thresholds_is_not_an_error(detector: Detector, tmp_path: Path) -> None:
    detector.save(tmp_path / "best.safetensors")
    (tmp_path / "eval.json").write_text('{"ap": 0.3}')
    assert Detector.load(tmp_path).thresholds is None


def test_predict_keeps_the_training_mode(detector: Detector) -> None:
    detector.train()
    before = {name: value.clone() for name, value in detector.state_dict().items()}
    detector.predict(picture())
    assert detector.training
    assert all(torch.equal(value, before[name]) for name, value in detector.state_dict().items())
    # Same size as just predicted: what was made there must not stand in the way of gradients.
    size = input_size(80, 120, detector.settings.input)
    detector(torch.zeros(2, 3, *size, dtype=torch.uint8)).boxes.sum().backward()


def test_weights_that_are_not_finite_are_an_error_and_not_an_empty_result(detector: Detector) -> None:
    with torch.no_grad():
        detector.head.class_output.bias[0] = float("nan")
    with pytest.raises(ModelError, match="class logits of the detector are not finite"):
        detector.predict(picture())
