"""Thresholds by precision and by LRP, and their bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rankwise.evaluation.matching import Matches, match
from rankwise.evaluation.tables import detection_table, object_table, sorted_image_ids
from rankwise.evaluation.thresholds import best_thresholds, sweep, with_intervals


def matched(scene: Callable, seed: int, **options: int) -> tuple[Matches, np.ndarray, list[str]]:
    truth, found, category_ids, classes = scene(seed, **options).parts
    matches = match(detection_table(found, len(classes)), object_table(truth, category_ids))
    return matches, sorted_image_ids(truth), classes


def lrp_by_hand(matches: Matches, threshold: float) -> float:
    """The definition: localization errors of matches, false positives and missed objects over their number."""
    kept = (matches.detections.scores >= threshold) & ~matches.ignored
    total = 0.0
    for row in np.flatnonzero(kept & matches.correct):
        a, b = matches.detections.boxes[row], matches.objects.boxes[matches.matched[row]]
        sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
        shared = sides.prod()
        total += (1 - shared / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared)) / 0.5
    correct = (kept & matches.correct).sum()
    missed = (~matches.objects.crowd).sum() - correct
    wrong = kept.sum() - correct
    return (total + wrong + missed) / (correct + wrong + missed)


def test_the_lrp_threshold_minimizes_the_error_of_the_definition(scene: Callable) -> None:
    matches, _, classes = matched(scene, 1)
    values = sweep(matches)
    by_hand = [lrp_by_hand(matches, score) for score in values.scores]
    np.testing.assert_allclose(values.lrp, by_hand)
    best = best_thresholds(matches, classes).lrp
    assert best is not None
    assert best.score == values.scores[int(np.argmin(by_hand))]


def test_the_threshold_of_a_precision_has_the_highest_recall_with_the_fewest_boxes(scene: Callable) -> None:
    matches, _, classes = matched(scene, 2)
    found = best_thresholds(matches, classes).by_precision
    assert found
    counted = ~matches.ignored
    scores, correct = matches.detections.scores[counted], matches.correct[counted]
    for percent, threshold in found.items():
        assert correct[scores >= threshold.score].mean() >= percent / 100
        lower = np.unique(scores[scores < threshold.score])
        more = [score for score in lower if correct[scores >= score].mean() >= percent / 100]
        assert all(not correct[(scores >= score) & (scores < threshold.score)].any() for score in more)
        assert correct[scores == threshold.score].any()
    unreached = set(range(5, 100)) - set(found)
    assert all(sweep(matches).at_precision(percent / 100) is None for percent in unreached)


def test_intervals_equal_those_of_an_explicit_bootstrap(scene: Callable) -> None:
    """The reference builds each resampled dataset, matches it again, and takes the best thresholds there."""
    truth, found, category_ids, classes = scene(3, images=14).parts
    matches, image_ids, _ = matched(scene, 3, images=14)
    rounds = 60
    drawn = np.random.default_rng(0).multinomial(14, np.full(14, 1 / 14), size=rounds)
    best, lrp, half, own = [], [], [], []
    for counts in drawn:
        copies = [
            (copy * 1000 + key, key) for key, n in zip(image_ids.tolist(), counts, strict=True) for copy in range(n)
        ]
        annotations = [
            {**row, "image_id": new} for new, key in copies for row in truth["annotations"] if row["image_id"] == key
        ]
        drawn_truth = {"images": [{"id": new} for new, _ in copies], "annotations": annotations}
        drawn_found = {new: found[key] for new, key in copies if key in found}
        again = match(detection_table(drawn_found, 3), object_table(drawn_truth, category_ids))
        values, of_class = sweep(again), sweep(again, 0).best()
        best.append(values.best().score)
        lrp.append(values.best_lrp().score)
        at = values.at_precision(0.5)
        half.append(1.0 if at is None else at.score)
        own.append(1.0 if of_class is None else of_class.score)
    thresholds = with_intervals(best_thresholds(matches, classes), matches, image_ids, rounds)
    for scores, known in (
        (best, thresholds.overall),
        (lrp, thresholds.lrp),
        (half, thresholds.by_precision[50]),
        (own, thresholds.per_class[classes[0]]),
    ):
        assert known.interval == tuple(np.quantile(scores, [0.025, 0.975], method="nearest"))


def test_more_images_narrow_the_interval_and_few_are_uncertain(scene: Callable) -> None:
    widths = []
    for images in (10, 300):
        matches, image_ids, classes = matched(scene, 4, images=images)
        low, high = with_intervals(best_thresholds(matches, classes), matches, image_ids).overall.interval
        widths.append(high - low)
    assert widths[1] < widths[0] / 2
    assert widths[0] > 0.2


def test_a_single_image_or_no_correct_detection_gives_no_interval(scene: Callable) -> None:
    matches, image_ids, classes = matched(scene, 5, images=1)
    thresholds = best_thresholds(matches, classes)
    assert with_intervals(thresholds, matches, image_ids) == thresholds
    nothing = match(
        detection_table({}, 3), object_table({"images": [{"id": 1}, {"id": 2}], "annotations": []}, (1, 2, 3))
    )
    empty = with_intervals(best_thresholds(nothing, classes), nothing, np.array([1, 2]))
    assert empty.overall.interval is None
    assert empty.lrp is None
    assert empty.by_precision == {}
