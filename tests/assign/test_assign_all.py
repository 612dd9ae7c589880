"""Properties of every assigner, including unusual input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from layouts import grid, layout
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rankwise.assign import ATSS, PAA, Assigner, IoUThreshold, chunks
from rankwise.types import Assignment, Predictions, Target

CLASSES = 3
ASSIGNERS = [IoUThreshold(), ATSS(), PAA(), PAA(clustering="losses"), PAA(clustering="ranking", normalize=False)]
NAMES = ["IoUThreshold", "ATSS", "PAA", "PAA of losses", "PAA of ranking"]
every_assigner = pytest.mark.parametrize("assigner", ASSIGNERS, ids=NAMES)


def predictions_for(images: int, side: int = 64, seed: int = 0) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    anchors, sizes = grid(side, (8, 16, 32), (4.0,))
    logits = torch.randn(images, len(anchors), CLASSES, generator=generator)
    boxes = anchors + torch.randn(images, len(anchors), 4, generator=generator)
    return Predictions(logits, boxes, anchors, sizes)


def things(*boxes: list[float], labels: list[int] | None = None, crowd: list[bool] | None = None) -> Target:
    found: Target = {
        "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        "labels": torch.tensor(labels if labels is not None else [0] * len(boxes), dtype=torch.int64),
    }
    if crowd is not None:
        found["iscrowd"] = torch.tensor(crowd)
    return found


def check_sound(found: Assignment, predictions: Predictions, targets: list[Target]) -> None:
    """Labels, matches and the count of objects without a positive fit together."""
    assert found.labels.shape == found.matched.shape == predictions.logits.shape[:2]
    assert found.labels.dtype == found.matched.dtype == torch.int64
    unmatched = 0
    for labels, matched, target in zip(found.labels, found.matched, targets, strict=True):
        positive = matched >= 0
        assert torch.equal(labels[positive], target["labels"][matched[positive]])
        assert ((labels[~positive] == CLASSES) | (labels[~positive] == -1)).all()
        real = ~target.get("iscrowd", torch.zeros(len(target["boxes"]), dtype=torch.bool))
        has = torch.zeros(len(target["boxes"]), dtype=torch.bool)
        has[matched[positive]] = True
        assert not (has & ~real).any()
        unmatched += int((real & ~has).sum())
    assert found.unmatched.shape == ()
    assert int(found.unmatched) == unmatched


@every_assigner
def test_images_without_objects_are_all_background(assigner: Assigner) -> None:
    predictions = predictions_for(2)
    empty = things()
    found = assigner(predictions, [empty, empty])
    assert (found.labels == CLASSES).all()
    assert (found.matched == -1).all()
    assert int(found.unmatched) == 0


@every_assigner
def test_images_are_assigned_independently(assigner: Assigner) -> None:
    for seed in range(20):
        predictions, targets = layout(seed, classes=CLASSES)
        together = assigner(predictions, targets)
        check_sound(together, predictions, targets)
        for image, target in enumerate(targets):
            one = slice(image, image + 1)
            alone = assigner(
                replace(predictions, logits=predictions.logits[one], boxes=predictions.boxes[one]), [target]
            )
            assert torch.equal(alone.labels, together.labels[one])
            assert torch.equal(alone.matched, together.matched[one])


@every_assigner
def test_a_well_placed_object_gets_positives_of_its_own_class(assigner: Assigner) -> None:
    predictions = predictions_for(1)
    found = assigner(predictions, [things([4.0, 4.0, 36.0, 36.0], labels=[2])])
    positive = found.matched[0] == 0
    assert positive.any()
    assert (found.labels[0, positive] == 2).all()
    assert int(found.unmatched) == 0


@every_assigner
def test_a_thousand_objects_next_to_an_empty_image(assigner: Assigner) -> None:
    generator = torch.Generator().manual_seed(1)
    corner = torch.rand(1000, 2, generator=generator) * 120
    boxes = torch.cat([corner, corner + torch.rand(1000, 2, generator=generator) * 40 + 2], 1)
    crowded: Target = {"boxes": boxes, "labels": torch.randint(0, CLASSES, (1000,), generator=generator)}
    predictions = predictions_for(2, side=128)
    found = assigner(predictions, [things(), crowded])
    check_sound(found, predictions, [things(), crowded])
    assert (found.matched[0] == -1).all()
    assert (found.matched[1] >= 0).sum() > 50


@every_assigner
def test_identical_boxes_without_a_positive_are_counted_as_unmatched(assigner: Assigner) -> None:
    predictions = predictions_for(1)
    target = things(*[[8.0, 8.0, 40.0, 40.0]] * 300, labels=[0] * 300)
    found = assigner(predictions, [target])
    check_sound(found, predictions, [target])
    assert (found.matched[0] == 0).any()
    assert int(found.unmatched) > 200


@every_assigner
def test_an_object_outside_every_anchor_is_counted_as_unmatched(assigner: Assigner) -> None:
    predictions = predictions_for(1)
    target = things([500.0, 500.0, 520.0, 520.0], [16.0, 16.0, 48.0, 48.0])
    found = assigner(predictions, [target])
    check_sound(found, predictions, [target])
    assert int(found.unmatched) == 1
    assert not (found.matched == 0).any()


@every_assigner
def test_a_box_without_area_gets_no_anchor_and_does_not_affect_others(assigner: Assigner) -> None:
    predictions = predictions_for(1)
    alone = assigner(predictions, [things([16.0, 16.0, 48.0, 48.0])])
    found = assigner(predictions, [things([16.0, 16.0, 48.0, 48.0], [20.0, 20.0, 20.0, 30.0])])
    assert torch.equal(found.matched, alone.matched)
    assert int(found.unmatched) == 1


@every_assigner
def test_crowds_are_never_matched_and_their_area_is_ignored(assigner: Assigner) -> None:
    predictions = predictions_for(1)
    target = things([0.0, 0.0, 48.0, 64.0], [8.0, 8.0, 40.0, 40.0], labels=[0, 1], crowd=[True, False])
    plain = things([8.0, 8.0, 40.0, 40.0], labels=[1])
    found, without = assigner(predictions, [target]), assigner(predictions, [plain])
    positive = found.matched[0] >= 0
    assert torch.equal(positive, without.matched[0] >= 0)
    assert (found.matched[0, positive] == 1).all()  # the index in the target counts the crowd
    assert (found.labels[0, positive] == 1).all()
    inside = anchor_share(predictions.anchors, torch.tensor([0.0, 0.0, 48.0, 64.0])) > 0.5
    assert 0 < inside.sum() < len(inside)
    assert torch.equal(found.labels[0] == -1, (inside & ~positive) | (without.labels[0] == -1))
    assert int(found.unmatched) == 0


@every_assigner
def test_an_image_with_only_crowds_has_no_positives_and_no_unmatched_objects(assigner: Assigner) -> None:
    predictions = predictions_for(1)
    found = assigner(predictions, [things([0.0, 0.0, 30.0, 30.0], crowd=[True])])
    inside = anchor_share(predictions.anchors, torch.tensor([0.0, 0.0, 30.0, 30.0])) > 0.5
    assert inside.any()
    assert torch.equal(found.labels[0] == -1, inside)
    assert (found.matched == -1).all()
    assert int(found.unmatched) == 0


@every_assigner
def test_overlapping_crowds_are_ignored_like_one(assigner: Assigner) -> None:
    predictions = predictions_for(1)
    one = assigner(predictions, [things([0.0, 0.0, 30.0, 30.0], crowd=[True])])
    many = assigner(predictions, [things(*[[0.0, 0.0, 30.0, 30.0]] * 512, crowd=[True] * 512)])
    assert torch.equal(one.labels, many.labels)


@every_assigner
def test_half_precision_and_gradients_do_not_change_the_assignment(assigner: Assigner) -> None:
    predictions = predictions_for(1)
    target = things([8.0, 8.0, 40.0, 40.0])
    half = replace(predictions, logits=predictions.logits.half(), boxes=predictions.boxes.half())
    rounded = replace(predictions, logits=half.logits.float(), boxes=half.boxes.float())
    assert torch.equal(assigner(half, [target]).matched, assigner(rounded, [target]).matched)
    trained = replace(
        predictions,
        logits=predictions.logits.clone().requires_grad_(),
        boxes=predictions.boxes.clone().requires_grad_(),
    )
    found = assigner(trained, [target])
    assert not found.labels.requires_grad
    assert torch.equal(found.matched, assigner(predictions, [target]).matched)


@every_assigner
def test_nan_predictions_still_give_an_assignment(assigner: Assigner) -> None:
    predictions = predictions_for(1)
    bad = replace(
        predictions,
        logits=torch.full_like(predictions.logits, torch.nan),
        boxes=torch.full_like(predictions.boxes, torch.inf),
    )
    target = things([8.0, 8.0, 40.0, 40.0])
    found = assigner(bad, [target])
    check_sound(found, bad, [target])
    assert int(found.unmatched) == 0


class LargestTensor(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = function(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, Tensor) and one.untyped_storage().nbytes() == one.nbytes:  # a broadcast view is not made
                self.bytes = max(self.bytes, one.nbytes)
        return made


def peak_memory() -> int:
    """The most bytes that the process has held since its peak was last reset."""
    return next(
        int(line.split()[1]) << 10
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads memory from /proc")
@pytest.mark.parametrize("assigner", ASSIGNERS[:3], ids=NAMES[:3])
def test_a_thousand_objects_and_two_hundred_thousand_anchors_stay_within_the_memory_budget(assigner: Assigner) -> None:
    generator = torch.Generator().manual_seed(1)
    predictions = predictions_for(1, side=3136)
    assert len(predictions.anchors) > 200_000
    corner = torch.rand(1000, 2, generator=generator) * 3000
    boxes = torch.cat([corner, corner + torch.rand(1000, 2, generator=generator) * 100 + 2], 1)
    target: Target = {"boxes": boxes, "labels": torch.zeros(1000, dtype=torch.int64)}
    table = 1000 * len(predictions.anchors) * 4
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory()
    with LargestTensor() as largest:
        found = assigner(predictions, [target])
    assert largest.bytes <= chunks.PAIR_BUDGET["cpu"] < table / 80
    assert peak_memory() - before < table / 8  # a few such pieces and what is held for each anchor
    check_sound(found, predictions, [target])
    assert int(found.unmatched) < 500


def test_a_wrong_number_of_targets_is_refused() -> None:
    with pytest.raises(ValueError, match="1 targets for a batch of 2 images"):
        ATSS()(predictions_for(2), [things()])


def test_a_label_out_of_range_is_refused_with_its_index() -> None:
    bad = things([0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, 9.0], labels=[0, CLASSES])
    with pytest.raises(ValueError, match=r"target 1 of the batch, object 1.*labels from 0 to 2"):
        ATSS()(predictions_for(2), [things(), bad])


@pytest.mark.parametrize("corner", [torch.nan, -3.0], ids=["nan", "inverted"])
def test_a_box_that_is_not_xyxy_is_refused_with_its_index(corner: float) -> None:
    with pytest.raises(ValueError, match=rf"target 0 .*object 0: box \[0.0, 0.0, {corner}, 9.0\].*x1 <= x2"):
        IoUThreshold()(predictions_for(1), [things([0.0, 0.0, corner, 9.0])])


def test_a_target_may_say_that_it_has_no_crowds() -> None:
    target = things([0.0, 0.0, 20.0, 20.0])
    found, wanted = (PAA()(predictions_for(1), [one]) for one in (target | {"iscrowd": None}, target))
    assert torch.equal(found.labels, wanted.labels)


def test_different_numbers_of_labels_and_boxes_are_refused() -> None:
    with pytest.raises(ValueError, match="2 labels for 1 boxes"):
        PAA()(predictions_for(1), [things([0.0, 0.0, 9.0, 9.0], labels=[0, 0])])


def test_level_sizes_that_do_not_sum_to_the_anchors_are_refused() -> None:
    with pytest.raises(ValueError, match="do not sum"):
        PAA()(replace(predictions_for(1), level_sizes=(64,)), [things()])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: IoUThreshold(0.4, 0.5), "negative <= positive"),
        (lambda: IoUThreshold(0.0, 0.0), "positive > 0"),
        (lambda: ATSS(0), "k must be"),
        (lambda: PAA(0), "k must be"),
        (lambda: PAA(candidate_iou=0), "candidate_iou"),
        (lambda: PAA(clustering="loss"), "scores, ranking, localization, losses"),
        (lambda: PAA(normalize="no"), "normalize must be True or False"),
    ],
)
def test_invalid_settings_are_refused(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()  # type: ignore[operator]


def anchor_share(anchors: Tensor, box: Tensor) -> Tensor:
    """Which part of each anchor lies in a box."""
    size = (torch.minimum(anchors[:, 2:], box[2:]) - torch.maximum(anchors[:, :2], box[:2])).clamp(min=0)
    return size.prod(1) / (anchors[:, 2:] - anchors[:, :2]).prod(1)
