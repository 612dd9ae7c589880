"""Post-processing against a reference loop, and its edge cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from plain_postprocess import plain_postprocess

from rankwise.models import ModelError, PostprocessSettings
from rankwise.models import nms as suppression
from rankwise.models.postprocess import Candidates, detections, find_candidates, postprocess
from rankwise.types import Predictions

LEVELS = (60, 20, 7)
SIZES = [(90, 120), (120, 70), (64, 64)]
ORIGINALS = [(45, 240), (360, 210), (64, 64)]


def scene(seed: int, batch: int = 3, classes: int = 4, clusters: int = 8) -> Predictions:
    """Boxes in clusters, so that many overlap; some stick out of the image, some lie outside of it."""
    random = np.random.default_rng(seed)
    total = sum(LEVELS)
    home = random.uniform(-20, 130, (batch, clusters, 2))
    extent = random.uniform(5, 60, (batch, clusters, 2))
    which = random.integers(0, clusters, (batch, total))
    centres = np.take_along_axis(home, which[..., None], 1) + random.normal(0, 3, (batch, total, 2))
    half = np.take_along_axis(extent, which[..., None], 1) * random.uniform(0.8, 1.2, (batch, total, 2)) / 2
    boxes = torch.tensor(np.concatenate([centres - half, centres + half], axis=2), dtype=torch.float32)
    logits = torch.tensor(random.normal(-1.5, 2, (batch, total, classes)), dtype=torch.float32)
    return Predictions(logits, boxes, torch.zeros(total, 4), LEVELS)


VARIANTS = {
    "usual threshold": PostprocessSettings(score_threshold=0.05),
    "few a level": PostprocessSettings(topk=25),
    "few an image": PostprocessSettings(max_detections=5),
    "no threshold": PostprocessSettings(),
    "high threshold": PostprocessSettings(score_threshold=0.9),
    "strict suppression": PostprocessSettings(nms_threshold=0.2),
    "no suppression": PostprocessSettings(nms_threshold=1.0, max_detections=50),
    "across classes": PostprocessSettings(per_class=False),
    "voting": PostprocessSettings(score_threshold=0.05, score_voting=True),
    "wide voting across classes": PostprocessSettings(score_voting=True, voting_sigma=0.2, per_class=False, topk=40),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("boxes_a_call", [1, 40, 10_000])
def test_detections_equal_a_plain_loop(variant: str, boxes_a_call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suppression, "_BOXES_PER_CALL", {"cpu": boxes_a_call})
    monkeypatch.setattr(suppression, "_PAIRS_AT_ONCE", 50 * boxes_a_call)
    settings = VARIANTS[variant]
    for seed in range(3):
        predictions = scene(seed)
        found = postprocess(predictions, SIZES, ORIGINALS, settings)
        expected = plain_postprocess(predictions, SIZES, ORIGINALS, settings)
        for one, other in zip(found, expected, strict=True):
            assert one["labels"].tolist() == other["labels"].tolist()
            np.testing.assert_allclose(one["scores"].numpy(), other["scores"], rtol=1e-5)
            np.testing.assert_allclose(one["boxes"].numpy(), other["boxes"], atol=1e-3)


def test_scenes_are_hard_enough_to_tell_variants_apart() -> None:
    results = {name: postprocess(scene(0), SIZES, ORIGINALS, settings) for name, settings in VARIANTS.items()}
    sums = {name: sum(float(one["boxes"].sum()) for one in found) for name, found in results.items()}
    assert len({round(value, 1) for value in sums.values()}) == len(VARIANTS)


def test_boxes_lie_inside_the_original_images() -> None:
    for found, (height, width) in zip(
        postprocess(scene(1), SIZES, ORIGINALS, VARIANTS["voting"]), ORIGINALS, strict=True
    ):
        boxes = found["boxes"]
        assert len(boxes)
        assert (boxes >= 0).all()
        assert (boxes[:, 2] <= width + 1e-3).all()
        assert (boxes[:, 3] <= height + 1e-3).all()


def test_sizes_may_be_a_tensor() -> None:
    one = postprocess(scene(0), SIZES, ORIGINALS, PostprocessSettings())
    other = postprocess(scene(0), torch.tensor(SIZES), torch.tensor(ORIGINALS), PostprocessSettings())
    assert all(torch.equal(a["boxes"], b["boxes"]) for a, b in zip(one, other, strict=True))


def test_no_detections_are_empty_tensors_of_the_right_shapes() -> None:
    predictions = scene(0)
    nothing = replace(predictions, logits=torch.full_like(predictions.logits, -50.0))
    for settings in (VARIANTS["usual threshold"], VARIANTS["voting"]):
        for found in postprocess(nothing, SIZES, ORIGINALS, settings):
            assert found["boxes"].shape == (0, 4)
            assert found["scores"].shape == (0,)
            assert found["labels"].shape == (0,)
            assert found["labels"].dtype == torch.int64


def test_one_image_without_detections_does_not_shift_the_others() -> None:
    predictions = scene(0)
    logits = predictions.logits.clone()
    logits[1] = -50.0
    whole = postprocess(predictions, SIZES, ORIGINALS, VARIANTS["usual threshold"])
    found = postprocess(replace(predictions, logits=logits), SIZES, ORIGINALS, VARIANTS["usual threshold"])
    assert len(found[1]["boxes"]) == 0
    assert torch.equal(found[0]["boxes"], whole[0]["boxes"])
    assert torch.equal(found[2]["boxes"], whole[2]["boxes"])


def test_an_image_has_the_same_detections_alone_and_in_a_large_batch() -> None:
    # A thousand groups: shifting them apart in float32 would move boxes by a tenth of a pixel.
    predictions = scene(5, batch=40, classes=30)
    sizes = [(120, 130)] * 40
    settings = PostprocessSettings(score_threshold=0.3)
    together = postprocess(predictions, sizes, sizes, settings)
    for index in (0, 17, 39):
        single = replace(
            predictions, logits=predictions.logits[index : index + 1], boxes=predictions.boxes[index : index + 1]
        )
        alone = postprocess(single, sizes[:1], sizes[:1], settings)[0]
        assert all(torch.equal(alone[name], together[index][name]) for name in alone)


def test_half_precision_logits_give_float32_scores() -> None:
    predictions = scene(0)
    found = postprocess(
        replace(predictions, logits=predictions.logits.bfloat16()), SIZES, ORIGINALS, PostprocessSettings()
    )
    assert found[0]["scores"].dtype == torch.float32


@pytest.mark.parametrize(("what", "name"), [("logits", "class logits"), ("boxes", "boxes")])
def test_nan_predictions_raise_an_error_that_names_the_image(what: str, name: str) -> None:
    predictions = scene(0)
    broken = getattr(predictions, what).clone()
    broken[1, 70] = float("nan")
    with pytest.raises(ModelError, match=f"{name} of the detector are not finite .* in image 1 of the batch"):
        postprocess(replace(predictions, **{what: broken}), SIZES, ORIGINALS, PostprocessSettings())


def test_the_wrong_number_of_sizes_is_an_error() -> None:
    with pytest.raises(ModelError, match="2 image sizes were given for a batch of 3"):
        postprocess(scene(0), SIZES[:2], ORIGINALS, PostprocessSettings())


def test_candidates_of_two_passes_can_be_joined() -> None:
    settings = PostprocessSettings()
    half = [(height // 2, width // 2) for height, width in SIZES]
    predictions = scene(0)
    smaller = replace(predictions, boxes=predictions.boxes / 2)
    one = find_candidates(predictions, SIZES, ORIGINALS, settings)
    other = find_candidates(smaller, half, ORIGINALS, settings)
    torch.testing.assert_close(one.boxes, other.boxes, atol=1e-3, rtol=1e-4)
    joined = Candidates(*(torch.cat([getattr(each, name) for each in (one, other)]) for name in vars(one)))
    # The second pass sees the same, so all of it is suppressed.
    for single, both in zip(detections(one, 3, settings), detections(joined, 3, settings), strict=True):
        torch.testing.assert_close(single["scores"], both["scores"])


def test_voting_moves_a_box_towards_its_neighbors() -> None:
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0], [50.0, 50.0, 60.0, 60.0]])
    scores = torch.tensor([0.9, 0.6, 0.5])
    settings = PostprocessSettings(nms_threshold=0.5, score_voting=True, voting_sigma=0.025)
    found = detections(
        Candidates(boxes, scores, torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)), 1, settings
    )
    weight = 0.6 * np.exp(-((1 - 90 / 110) ** 2) / 0.025)
    torch.testing.assert_close(found[0]["boxes"][0, 0], torch.tensor(weight / (0.9 + weight), dtype=torch.float32))
    torch.testing.assert_close(found[0]["boxes"][1], boxes[2])
