"""Calibration: strictly increasing, accurate, and defined for any data."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import ModelError
from rankwise.evaluation.calibration import Calibration, calibration_data, cross_fitted, describe
from rankwise.evaluation.matching import match
from rankwise.evaluation.reliability import check_reliability, reliability
from rankwise.evaluation.tables import detection_table, object_table
from rankwise.models.confidence import Confidence
from rankwise.models.score_map import IDENTITY, Curve, ScoreMap, expit, logit

#: Scores as a detector has them: float32, from the smallest to 1.
SCORES = st.floats(0, 1, width=32, allow_nan=False, allow_subnormal=True)
SOME = settings(max_examples=60, deadline=None)


@st.composite
def detections(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Scores, labels of three classes, which detections are correct, and a kind of curve."""
    rows = draw(st.lists(st.tuples(SCORES, st.integers(0, 2), st.booleans()), min_size=0, max_size=60))
    scores, labels, correct = (np.asarray([row[column] for row in rows]) for column in range(3))
    kind = draw(st.sampled_from(["logistic", "isotonic"]))
    return scores.astype(np.float64), labels.astype(np.int64), correct.astype(np.bool_), kind


def fit(scores: np.ndarray, labels: np.ndarray, correct: np.ndarray, kind: str) -> Calibration:
    return Calibration.fit(scores, labels, correct, objects=np.ones(3), kinds=[kind] * 3)


def simulated(count: int, seed: int, slope: float = 4.0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Detections with a known probability of being correct: scores, labels, correct and that probability."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    x = rng.normal(-4, 0.8, count)
    truth = expit(slope * (x + 3.8) + np.array([-0.5, 0.0, 0.5])[labels])
    return expit(x), labels, rng.random(count) < truth, truth


@SOME
@given(detections(), st.lists(SCORES, min_size=1, max_size=50))
def test_the_map_is_strictly_increasing_adds_no_ties_and_stays_between_0_and_1(data, new) -> None:
    calibration = fit(*data)
    scores = np.unique(np.asarray([*new, *data[0]], dtype=np.float32)).astype(np.float64)
    for label in range(3):
        mapped = calibration(scores, np.full(len(scores), label))
        assert (np.diff(mapped) > 0).all()
        assert mapped.min() >= 0
        assert mapped.max() <= 1


@SOME
@given(detections(), st.randoms())
def test_the_fit_is_deterministic_and_does_not_depend_on_the_order(data, random) -> None:
    scores, labels, correct, kind = data
    order = list(range(len(scores)))
    random.shuffle(order)
    images = np.arange(len(scores)) // 3
    first = Calibration.fit(scores, labels, correct, images=images, objects=np.ones(3), kinds=[kind] * 3)
    again = Calibration.fit(
        scores[order], labels[order], correct[order], images=images[order], objects=np.ones(3), kinds=[kind] * 3
    )
    assert first == again


@SOME
@given(detections(), st.floats(0.2, 3), st.floats(-3, 3))
def test_logistic_curves_are_invariant_to_an_affine_transform_of_the_logits(data, factor, shift) -> None:
    scores, labels, correct, _ = data
    scores = np.clip(scores, 0.01, 0.99)  # so that transformed scores differ from 1 in float64
    other = expit(factor * logit(scores) + shift)
    before = fit(scores, labels, correct, "logistic")(scores, labels)
    after = fit(other, labels, correct, "logistic")(other, labels)
    np.testing.assert_allclose(before, after, atol=1e-5)


@SOME
@given(detections(), st.sampled_from([np.sqrt, np.square, lambda s: s / (2 - s), lambda s: np.round(s, 2) * 0.5]))
def test_isotonic_curves_are_invariant_to_a_monotonic_transform_of_the_scores(data, transform) -> None:
    scores, labels, correct, _ = data
    scores = np.round(scores, 2)
    before = fit(scores, labels, correct, "isotonic")(scores, labels)
    after = fit(transform(scores), labels, correct, "isotonic")(transform(scores), labels)
    np.testing.assert_allclose(before, after, atol=1e-9)


def test_the_logistic_fit_recovers_the_probabilities_of_simulated_data() -> None:
    scores, labels, correct, _ = simulated(20_000, seed=0)
    calibration = Calibration.fit(scores, labels, correct)
    assert calibration.kinds == ("logistic",) * 3
    scores, labels, correct, truth = simulated(20_000, seed=1)
    assert np.abs(calibration(scores, labels) - truth).max() < 0.05
    before, after = (reliability(s, correct, np.ones(len(s))).ece for s in (scores, calibration(scores, labels)))
    assert before > 0.2
    assert after < 0.01


def test_isotonic_is_chosen_with_thousands_of_matches_that_a_logistic_curve_does_not_fit() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random(20_000)
    truth = np.where(scores < 0.5, 0.2 + 0.1 * scores, 0.7 + 0.1 * scores)  # a step, which no logistic curve has
    correct, labels = rng.random(20_000) < truth, (np.arange(20_000) % 20 == 0).astype(np.int64)
    calibration = Calibration.fit(scores, labels, correct)
    assert calibration.kinds == ("isotonic", "logistic")  # the second class has a twentieth of the matches
    assert describe(calibration, ["a", "b"]) == "logistic for 1 of 2 classes, isotonic for a"
    grid = np.linspace(0.02, 0.98, 97)
    grid = grid[np.abs(grid - 0.5) > 0.03]
    wanted = np.where(grid < 0.5, 0.2 + 0.1 * grid, 0.7 + 0.1 * grid)
    assert np.abs(calibration(grid, np.zeros(len(grid), dtype=int)) - wanted).max() < 0.05


def test_classes_with_few_detections_are_near_the_map_of_all_classes() -> None:
    scores, labels, correct, _ = simulated(5_000, seed=2)
    few = np.r_[scores, [0.02, 0.03]], np.r_[labels, [3, 3]], np.r_[correct, [False, False]]
    calibration = Calibration.fit(*few, objects=np.array([1, 1, 1, 1, 0]))
    assert calibration.pooled == (4,)
    at = np.full(5, 0.022)
    mapped = calibration(at, np.arange(5))
    assert abs(mapped[3] - mapped[4]) < 0.1  # two wrong detections have little weight
    assert mapped[0] < mapped[4] < mapped[2]
    assert describe(calibration, "abcde").endswith("together for e: no validation objects")


def test_detections_of_a_class_without_objects_do_not_affect_the_fit() -> None:
    scores, labels, correct, _ = simulated(3_000, seed=3)
    without = Calibration.fit(scores, labels, correct, objects=np.array([1, 1, 1, 0]))
    noise = np.full(500, 0.03), np.full(500, 3), np.zeros(500, dtype=bool)
    with_noise = Calibration.fit(
        *(np.r_[a, b] for a, b in zip((scores, labels, correct), noise, strict=True)), objects=np.array([1, 1, 1, 0])
    )
    np.testing.assert_allclose(with_noise([0.02] * 4, range(4)), without([0.02] * 4, range(4)), atol=1e-9)


@pytest.mark.parametrize("right", [True, False])
def test_if_all_detections_are_correct_or_all_wrong_probabilities_stay_between_0_and_1(right: bool) -> None:
    scores, labels = np.linspace(0.01, 0.9, 30), np.zeros(30, dtype=int)
    mapped = Calibration.fit(scores, labels, np.full(30, right))(scores, labels)
    assert (np.diff(mapped) > 0).all()
    assert (mapped > 0.9).all() if right else (mapped < 0.1).all()
    assert mapped.min() > 0
    assert mapped.max() < 1


def test_without_detections_the_map_is_the_identity_and_one_detection_is_enough_for_a_fit() -> None:
    empty = Calibration.fit([], np.zeros(0, dtype=int), [], objects=[4, 0])
    assert empty.curves == (IDENTITY, IDENTITY)
    np.testing.assert_allclose(empty([0.1, 0.9], [0, 1]), [0.1, 0.9])
    one = Calibration.fit([0.3], [0], [True])
    assert 0.5 < one([0.3], [0])[0] < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.5], [0], [True]), "a score is 1.5.*sigmoid"),
        (([np.nan], [0], [True]), "a score is nan"),
        (([0.5], [0.5], [True]), "labels must be integers"),
        (([0.5], [-1], [True]), "labels are from -1"),
        (([0.5, 0.5], [0], [True]), r"\[2\] scores need as many labels"),
        (([0.5], [0], [2]), "correct must be true or false"),
    ],
)
def test_invalid_input_is_refused_with_a_message(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        Calibration.fit(*arguments)


@SOME
@given(detections(), st.lists(st.floats(0.001, 0.999), min_size=1, max_size=20))
def test_the_inverse_returns_the_raw_score(data, probabilities) -> None:
    calibration = fit(*data)
    labels = np.arange(len(probabilities)) % 3
    raw = calibration.inverse(probabilities, labels)
    inside = (raw > 1e-300) & (raw < 1 - 1e-12)  # a float64 score cannot be nearer to 1
    np.testing.assert_allclose(calibration(raw, labels)[inside], np.asarray(probabilities)[inside], atol=1e-4)


def test_equal_scores_give_a_flat_map_although_their_spread_is_rounded() -> None:
    calibration = Calibration.fit([0.875] * 3, [0] * 3, [False] * 3)  # the standard deviation of the logits is 2e-16
    low, high = calibration([0.5, 0.95], [0, 0])
    assert 0.1 < low < high < 0.3


def test_a_map_survives_json_exactly() -> None:
    calibration = Calibration.fit(*simulated(2_000, seed=4)[:3])
    there = ScoreMap.from_dict(json.loads(json.dumps(calibration.to_dict())), classes=3)
    assert there.curves == calibration.curves


CURVE = {"kind": "logistic", "x": [0.0], "y": [0.0], "slope": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slope": 0.0}, "not strictly increasing"),
        ({"slope": float("nan")}, "not finite"),
        ({"slope": "1"}, "not a number"),
        ({"x": [0.0, 0.0], "y": [0.0, 1.0]}, "not strictly increasing"),
        ({"x": [0.0, 1.0]}, "expected equal numbers"),
        ({"x": []}, "expected equal numbers"),
        ({"kind": "cubic"}, "kind 'cubic'"),
    ],
)
def test_an_untrusted_map_is_checked(change, message) -> None:
    values = {"calibration": {"curves": [CURVE | change]}, "thresholds": {"a": 0.5}, "precisions": []}
    with pytest.raises(ModelError, match=f"x.safetensors.*{message}"):
        Confidence.from_dict(values, ["a"], "x.safetensors")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"calibration": {"curves": [CURVE, CURVE]}}, "2 curves for 1 classes"),
        ({"calibration": {"curves": [CURVE], "pooled": [7]}}, "refers to the classes"),
        ({"thresholds": {"b": 0.5}}, "other classes"),
        ({"thresholds": {"a": 1.5}}, "outside"),
        ({"precisions": [[0.9, 2.0, 0.1, 0.2]]}, "by precision"),
        ({"calibration": 3}, "cannot be read"),
    ],
)
def test_untrusted_thresholds_are_checked(values, message) -> None:
    whole = {"calibration": None, "thresholds": {"a": 0.5}, "precisions": []} | values
    with pytest.raises(ModelError, match=message):
        Confidence.from_dict(whole, ["a"], "x")


def test_a_precision_uses_the_next_higher_measured_one_or_raises() -> None:
    known = Confidence(None, {"a": 0.5}, ((0.8, 0.3, 0.2, 0.4), (0.9, 0.6, 0.5, 0.7)))
    assert known.at_precision(0.8) == (0.3, 0.2, 0.4)
    assert known.at_precision(0.85) == (0.6, 0.5, 0.7)
    with pytest.raises(ModelError, match=r"no threshold reached more than 0\.9"):
        known.at_precision(0.95)
    with pytest.raises(ModelError, match=r"no threshold reached even 0\.05"):
        Confidence(None, {"a": 0.5}).at_precision(0.9)
    with pytest.raises(ModelError, match="give the desired fraction"):
        known.at_precision(90)
    with pytest.raises(ModelError, match="rankwise eval"):
        Confidence(None, {}).at_precision(0.9)


def test_curves_with_different_numbers_of_knots_can_be_combined() -> None:
    bent = Curve("isotonic", (-1.0, 0.0, 2.0), (-3.0, 0.0, 1.0), 0.5)
    mapped = ScoreMap((IDENTITY, bent))(expit(np.array([1.0, -2.0, -0.5, 1.0, 4.0])), np.array([0, 1, 1, 1, 1]))
    np.testing.assert_allclose(logit(mapped), [1.0, -3.5, -1.5, 0.5, 2.0])


def test_calibration_errors_are_mean_distances_of_score_and_precision_or_iou() -> None:
    scores, correct = np.array([0.91, 0.93, 0.12, 0.12]), np.array([True, False, False, False])
    result = reliability(scores, correct, np.array([0.7, 0.9, 0.9, 0.9]))
    assert result.ece == pytest.approx((abs(0.92 - 0.5) + 0.12) / 2)
    assert result.laece == pytest.approx((abs(0.92 - 0.35) + 0.12) / 2)
    assert result.count[18] == result.count[2] == 2
    assert reliability(scores[:0], correct[:0], scores[:0]).ece is None


def test_cross_fitting_uses_a_map_fitted_to_other_images() -> None:
    """All correct detections are in one image: with it, their probability is high; without it, it is low."""
    scores = np.full(40, 0.5)
    correct = np.arange(40) < 20
    images = np.where(correct, 0, np.arange(40))
    calibration = Calibration.fit(scores, np.zeros(40, dtype=int), correct, images=images)
    fitted = cross_fitted(calibration, scores, np.zeros(40, dtype=int), correct, images, np.array([40]))
    assert calibration([0.5], [0])[0] == pytest.approx(0.5, abs=0.02)
    assert fitted[correct].max() < 0.1
    assert cross_fitted(calibration, scores, correct * 0, correct, np.zeros(40), np.array([40])) is None


def test_detections_on_crowd_regions_are_ignored_and_an_evaluation_may_be_empty(scene: Callable) -> None:
    truth, found, category_ids, classes = scene(5).parts
    matches = match(detection_table(found, len(classes)), object_table(truth, category_ids))
    assert matches.ignored.any()
    columns = calibration_data(matches, len(classes))
    assert len(columns["scores"]) == (~matches.ignored).sum()
    calibration = Calibration.fit(**columns)
    check = check_reliability(matches, calibration, len(classes), fitted_here=True)
    assert check.cross_fitted
    assert check.before.count != check.after.count
    assert "calibration error" in check.describe()
    nothing = match(detection_table({}, 3), object_table(truth, category_ids))
    calibration = Calibration.fit(**calibration_data(nothing, 3))
    assert "the calibration error is unknown" in check_reliability(nothing, calibration, 3, fitted_here=True).describe()
