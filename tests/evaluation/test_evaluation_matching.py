"""Matching, correlation and thresholds against simple loops."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from scipy import stats

from rankwise.evaluation import (
    best_thresholds,
    correlate,
    detection_table,
    localized,
    match,
    matching,
    object_table,
    sweep,
)


def tables(scene):
    return detection_table(scene.detections, len(scene.classes)), object_table(scene.ground_truth, scene.category_ids)


def plain_iou(box, other, crowd=False):
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    area, other_area = ((b[2] - b[0]) * (b[3] - b[1]) for b in (box, other))
    return width * height / (area if crowd else area + other_area - width * height)


def plain_match(detections, objects, iou):
    """COCO's rule, one detection at a time."""
    matched, ignored, best = [], [], []
    taken = set()
    for row in np.lexsort((np.arange(len(detections)), -detections.scores)):
        mine = [
            column
            for column in range(len(objects))
            if objects.image_ids[column] == detections.image_ids[row]
            and objects.labels[column] == detections.labels[row]
        ]
        overlaps = {c: plain_iou(detections.boxes[row], objects.boxes[c], objects.crowd[c]) for c in mine}
        real = [c for c in mine if not objects.crowd[c]]
        free = [c for c in real if c not in taken and overlaps[c] >= iou]
        choice = max(free, key=lambda c: (overlaps[c], c), default=-1)
        taken.add(choice)
        matched.append((row, choice))
        on_crowd = any(objects.crowd[c] and overlaps[c] >= iou for c in mine)
        ignored.append((row, choice < 0 and on_crowd))
        best.append((row, max((overlaps[c] for c in real), default=0.0)))
    return ([value for _, value in sorted(column)] for column in (matched, ignored, best))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("iou", [0.5, 0.75])
def test_matches_equal_those_of_a_simple_loop(scene, seed, iou):
    detections, objects = tables(scene(seed, images=8))
    ours = match(detections, objects, iou)
    matched, ignored, best = plain_match(detections, objects, iou)
    assert ours.matched.tolist() == matched
    assert ours.ignored.tolist() == ignored
    assert ours.best_iou == pytest.approx(best)
    for column, row in enumerate(ours.found_by.tolist()):
        assert row == (matched.index(column) if column in matched else -1)


@pytest.mark.parametrize("seed", range(6))
def test_matches_equal_those_of_pycocotools(scene, seed):
    given = scene(seed, images=10)
    detections, objects = tables(given)
    ours = match(detections, objects, 0.5)
    truth = COCO()
    truth.dataset = copy.deepcopy(given.ground_truth)
    for annotation in truth.dataset["annotations"]:
        annotation["id"] += 1
    truth.createIndex()
    xywh = detections.boxes.copy()
    xywh[:, 2:] -= xywh[:, :2]
    found = truth.loadRes(
        [
            {
                "image_id": int(detections.image_ids[row]),
                "category_id": given.category_ids[detections.labels[row]],
                "bbox": xywh[row].tolist(),
                "score": detections.scores[row],
            }
            for row in range(len(detections))
        ]
    )  # which numbers them from 1, in this order
    coco = COCOeval(truth, found, "bbox")
    coco.evaluate()
    seen = 0
    for entry in coco.evalImgs:
        if entry is None or entry["aRng"] != [0, 1e10]:
            continue
        for index, number in enumerate(entry["dtIds"]):
            row, theirs = number - 1, int(entry["dtMatches"][0, index])
            assert ours.ignored[row] == entry["dtIgnore"][0, index]
            if not ours.ignored[row]:
                mine = objects.annotation_ids[ours.matched[row]] + 1 if ours.matched[row] >= 0 else 0
                assert mine == theirs
            seen += 1
    assert seen == len(detections)


def test_overlapping_pairs_do_not_depend_on_the_chunk_size(scene):
    detections, objects = tables(scene(20))
    whole, pieces = (
        matching.overlapping_pairs(detections, objects, same_class=False, at_once=number) for number in (10**6, 7)
    )
    assert len(whole[0]) > 70
    for one, other in zip(whole, pieces, strict=True):
        assert np.array_equal(one, other)


def test_pairs_of_any_class_include_those_of_the_same_class(scene):
    detections, objects = tables(scene(21))
    rows, columns, _ = matching.overlapping_pairs(detections, objects)
    assert (detections.labels[rows] == objects.labels[columns]).all()
    every = matching.overlapping_pairs(detections, objects, same_class=False)
    assert set(zip(rows, columns, strict=True)) < set(zip(every[0], every[1], strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_correlation_equals_scipys_on_pairs_from_a_simple_loop(scene, seed):
    detections, objects = tables(scene(seed))
    scores, ious = [], []
    for row in range(len(detections)):
        best = 0.0
        for column in range(len(objects)):
            same = objects.image_ids[column] == detections.image_ids[row]
            if same and objects.labels[column] == detections.labels[row] and not objects.crowd[column]:
                best = max(best, plain_iou(detections.boxes[row], objects.boxes[column]))
        if best > 0.5:
            scores.append(detections.scores[row])
            ious.append(best)
    ours = correlate(*localized(match(detections, objects)))
    assert ours.n == len(scores) > 10
    assert ours.pcc == pytest.approx(stats.pearsonr(scores, ious)[0], abs=1e-12)
    assert ours.scc == pytest.approx(stats.spearmanr(scores, ious)[0], abs=1e-12)
    assert ours.kcc == pytest.approx(stats.kendalltau(scores, ious)[0], abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "ious"), [([], []), ([0.5], [0.7]), ([0.5, 0.5], [0.6, 0.7]), ([0.1, 0.5], [0.7, 0.7])]
)
def test_too_few_or_constant_values_have_no_correlation_and_no_warning(scores, ious):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = correlate(np.asarray(scores, dtype=float), np.asarray(ious, dtype=float))
    assert (ours.pcc, ours.scc, ours.kcc, ours.n) == (None, None, None, len(scores))


def test_two_points_correlate_fully():
    ours = correlate(np.asarray([0.2, 0.6]), np.asarray([0.7, 0.9]))
    assert (ours.pcc, ours.scc, ours.kcc) == pytest.approx((1, 1, 1))


def test_nearly_constant_values_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = correlate(1 + np.asarray([0, 1, 0]) * 2.3e-16, np.asarray([0.6, 0.7, 0.8]))
    assert found.scc == pytest.approx(0, abs=1e-12)  # the one that differs is in the middle of the ranking


def test_the_correlation_of_half_a_million_points_equals_that_of_a_sample():
    """A table of all pairs would take 2 TB."""
    rng = np.random.default_rng(0)
    ious = rng.uniform(0.5, 1, 500_000)
    scores = ious + rng.normal(0, 0.1, len(ious))
    ours = correlate(scores, ious)
    some = stats.kendalltau(scores[:4000], ious[:4000]).statistic
    assert ours.kcc == pytest.approx(some, abs=0.03)


def brute_force(matches, label=None):
    """The best (F1, threshold), counted for every possible threshold."""
    detections, objects = matches.detections, matches.objects
    wanted = [c for c in range(len(objects)) if not objects.crowd[c] and label in (None, objects.labels[c])]
    rows = [r for r in range(len(detections)) if not matches.ignored[r] and label in (None, detections.labels[r])]
    best = (0.0, None)
    for threshold in sorted({detections.scores[r] for r in rows}, reverse=True):
        kept = [r for r in rows if detections.scores[r] >= threshold]
        correct = sum(matches.matched[r] >= 0 for r in kept)
        precision, recall = correct / len(kept), correct / len(wanted) if wanted else 0.0
        f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
        if f1 > best[0] + 1e-12:
            best = (f1, threshold)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_thresholds_equal_those_of_brute_force(scene, seed):
    given = scene(seed)
    matches = match(*tables(given))
    ours = best_thresholds(matches, given.classes)
    f1, score = brute_force(matches)
    assert ours.overall.score == score
    assert ours.overall.f1 == pytest.approx(f1)
    for label, name in enumerate(given.classes):
        f1, score = brute_force(matches, label)
        assert ours.per_class[name].score == (ours.overall.score if score is None else score)
        assert ours.per_class[name].f1 == (None if score is None else pytest.approx(f1))


@pytest.mark.parametrize("seed", range(4))
def test_each_row_of_the_sweep_equals_matching_the_detections_above_its_threshold(scene, seed):
    given = scene(seed)
    values = sweep(match(*tables(given)))
    for row in range(0, len(values.scores), 7):
        kept = {
            image: {key: column[found["scores"].double() >= values.scores[row]] for key, column in found.items()}
            for image, found in given.detections.items()
        }
        again = match(detection_table(kept), object_table(given.ground_truth, given.category_ids))
        counted = ~again.ignored
        objects = (~again.objects.crowd).sum()
        assert values.precision[row] == again.correct.sum() / counted.sum()
        assert values.recall[row] == again.correct.sum() / objects
        assert values.f1[row] == pytest.approx(2 * again.correct.sum() / (counted.sum() + objects))


def test_the_higher_of_two_thresholds_with_the_same_f1_is_chosen():
    truth = {
        "images": [{"id": 1}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [x, 0, 10, 10]} for x in (0, 100, 150)],
    }
    boxes = [[0, 0, 10, 10], [300, 0, 310, 10], [300, 50, 310, 60], [300, 90, 310, 99], [100, 0, 110, 10]]
    found = {
        "boxes": torch.tensor(boxes, dtype=torch.float32),
        "scores": torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]),
        "labels": torch.zeros(5, dtype=torch.int64),
    }
    values = sweep(match(detection_table({1: found}), object_table(truth, [1])))
    assert values.f1[0] == values.f1[4] == 0.5  # 2·1/(1+3) and 2·2/(5+3)
    assert values.best().score == pytest.approx(0.9)


def test_tied_scores_are_kept_or_dropped_together():
    truth = {"images": [{"id": 1}], "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10]}]}
    found = {
        "boxes": torch.tensor([[0.0, 0, 10, 10], [50, 50, 60, 60]]),
        "scores": torch.tensor([0.5, 0.5]),
        "labels": torch.zeros(2, dtype=torch.int64),
    }
    values = sweep(match(detection_table({1: found}), object_table(truth, [1])))
    assert values.scores.tolist() == [0.5]
    assert values.precision.tolist() == [0.5]


def test_a_class_without_threshold_has_the_overall_one(scene):
    given = scene(3)
    ours = best_thresholds(match(*tables(given)), given.classes)
    assert ours.by_label([given.classes[1], "never seen"]) == [
        ours.per_class[given.classes[1]].score,
        ours.overall.score,
    ]


def test_without_a_correct_detection_the_threshold_is_the_highest_score():
    truth = {"images": [{"id": 1}], "annotations": []}
    found = {
        "boxes": torch.tensor([[0.0, 0, 10, 10], [50, 50, 60, 60]]),
        "scores": torch.tensor([0.75, 0.5]),
        "labels": torch.zeros(2, dtype=torch.int64),
    }
    matches = match(detection_table({1: found}), object_table(truth, [1]))
    assert best_thresholds(matches, ["a"]).by_label(["a"]) == [0.75]
