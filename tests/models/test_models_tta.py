"""Test-time augmentation: a single plain view changes nothing, and flipped views find the same objects."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_detectors import lively, small
from torch import Tensor

from rankwise.images.tensors import resize_for_input, sizes_of, stack_images
from rankwise.models import Detector, InputSettings, ModelError, PostprocessSettings, TestSettings, atss
from rankwise.models.tta import View, detect_with_tta, tta_views
from rankwise.types import Detections, Predictions

INPUT = InputSettings(short_side=96, max_side=160)
POST = PostprocessSettings(score_threshold=0.1, nms_threshold=0.6)


def pictures() -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [
        torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=random)
        for height, width in ((80, 120), (120, 90))
    ]


def equal(one: Detections, other: Detections) -> bool:
    return all(torch.equal(one[name], other[name]) for name in ("boxes", "scores", "labels"))


@pytest.fixture(scope="module")
def detector() -> Detector:
    return lively(small(atss(), postprocess=POST))


@torch.no_grad()
def test_a_single_unflipped_view_equals_plain_detection(detector: Detector) -> None:
    images = pictures()
    resized = [resize_for_input(image, INPUT) for image in images]
    plain = detector.postprocess(detector(stack_images(resized, INPUT)), sizes_of(resized), sizes_of(images))
    assert all(len(found["scores"]) > 3 for found in plain)
    for test in (TestSettings(), TestSettings((96,)), TestSettings((96,), max_side=160)):
        views = tta_views(INPUT, test)
        assert views == [View(INPUT)]
        found = detect_with_tta(detector, images, views, POST)
        assert all(equal(one, other) for one, other in zip(found, plain, strict=True))


def test_sizes_and_flips_are_combined() -> None:
    test = TestSettings((48, 96), max_side=200, flip=True)
    sizes = [(view.input.short_side, view.input.max_side, view.flip) for view in tta_views(INPUT, test)]
    assert sizes == [(48, 200, False), (48, 200, True), (96, 200, False), (96, 200, True)]
    assert tta_views(INPUT, TestSettings(flip=True)) == [View(INPUT), View(INPUT, flip=True)]
    beyond = tta_views(INPUT, TestSettings((400,)))[0].input  # the long side counts
    assert (beyond.short_side, beyond.max_side) == (160, 160)


def test_images_without_a_fixed_ratio_are_stretched_in_every_view() -> None:
    square = InputSettings(short_side=64, max_side=64, keep_ratio=False)
    view = tta_views(square, TestSettings((32,)))[0].input
    assert (view.short_side, view.max_side, view.keep_ratio) == (32, 32, False)


def mirror_fair(images: Tensor) -> Predictions:
    """A detector that sees bright squares of 16 pixels wherever they are, whichever way the image faces."""
    boxes, logits = [], []
    for image in images:
        y, x = (image[0] == 255).nonzero(as_tuple=True)
        box = torch.stack([x.min(), y.min(), x.max() + 1, y.max() + 1]).float()
        boxes.append(box[None])
        logits.append(torch.tensor([[2.0, -9.0]]))
    return Predictions(torch.stack(logits), torch.stack(boxes), torch.zeros(1, 4), (1,))


def test_boxes_of_flipped_views_are_mapped_back() -> None:
    image = torch.zeros(3, 60, 100, dtype=torch.uint8)
    image[:, 10:26, 70:86] = 255
    plain = InputSettings(short_side=60, max_side=100, divisor=1)
    found = detect_with_tta(mirror_fair, [image], tta_views(plain, TestSettings(flip=True)), POST)[0]
    assert found["boxes"].tolist() == [[70.0, 10.0, 86.0, 26.0]]  # both views say the same, one is suppressed
    double = detect_with_tta(mirror_fair, [image], [View(replace(plain, short_side=120, max_side=200), True)], POST)[0]
    assert (double["boxes"] - torch.tensor([[70.0, 10.0, 86.0, 26.0]])).abs().max() <= 1


@torch.no_grad()
def test_a_symmetric_image_gives_mirrored_candidates(detector: Detector) -> None:
    half = pictures()[0][:, :96, :80]
    image = torch.cat([half, half.flip(-1)], dim=-1)  # 80 x 160, symmetric
    found = [detect_with_tta(detector, [image], [View(INPUT, flip)], POST)[0] for flip in (False, True)]
    assert torch.equal(found[0]["scores"], found[1]["scores"])
    mirrored = found[0]["boxes"][:, [2, 1, 0, 3]]
    mirrored[:, [0, 2]] = image.shape[-1] - mirrored[:, [0, 2]]
    torch.testing.assert_close(mirrored, found[1]["boxes"])


@torch.no_grad()
def test_candidates_of_all_views_go_through_one_nms(detector: Detector) -> None:
    images = pictures()
    views = tta_views(INPUT, TestSettings((64, 96), flip=True))
    everything = replace(POST, nms_threshold=1.0, max_detections=10**6)
    one_by_one = [detect_with_tta(detector, images, [view], everything) for view in views]
    together = detect_with_tta(detector, images, views, everything)
    for index, found in enumerate(together):
        scores = torch.cat([part[index]["scores"] for part in one_by_one]).sort(descending=True).values
        torch.testing.assert_close(found["scores"], scores)
    final = detect_with_tta(detector, images, views, POST)
    assert all(len(found["scores"]) <= POST.max_detections for found in final)
    assert all(len(found["scores"]) < len(all_["scores"]) for found, all_ in zip(final, together, strict=True))


def test_predict_uses_the_views_of_the_settings(detector: Detector) -> None:
    image = pictures()[0]
    test = TestSettings((96, 128), max_side=200, flip=True)
    several = lively(replace(detector.settings, test=test))
    assert not equal(several.predict(image), detector.predict(image))
    expected = detect_with_tta(detector, [image], tta_views(INPUT, test), POST)[0]
    assert equal(several.predict(image), expected)


def test_images_without_candidates_in_any_view_have_no_detections() -> None:
    image = torch.zeros(3, 60, 100, dtype=torch.uint8)
    image[:, 10:26, 70:86] = 255
    views = tta_views(InputSettings(short_side=60, max_side=100), TestSettings(flip=True))
    found = detect_with_tta(mirror_fair, [image, image], views, replace(POST, score_threshold=0.95))
    assert [one["boxes"].shape for one in found] == [(0, 4), (0, 4)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"short_sides": (0,)}, "give 2 to 20000 each"),
        ({"short_sides": (64, 64)}, "must be unique"),
        ({"short_sides": (64, 200), "max_side": 100}, "at least 200"),
    ],
)
def test_invalid_tta_settings_are_refused(values: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        TestSettings(**values)
