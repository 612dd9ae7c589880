"""COCO metrics against pycocotools, special cases and invalid input."""

from __future__ import annotations

import copy
import io
import json
import re

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from rich.console import Console

from rankwise.evaluation import Evaluation, evaluate
from rankwise.evaluation.coco import calibrated

NAMES = ("ap", "ap50", "ap75", "aps", "apm", "apl")


def pycocotools_numbers(scene) -> tuple[list[float], dict[int, float]]:
    """The six metrics of pycocotools, and AP by category id; -1 if undefined."""
    truth = COCO()
    truth.dataset = copy.deepcopy(scene.ground_truth)
    for annotation in truth.dataset["annotations"]:
        annotation["id"] += 1
    truth.createIndex()
    rows = []
    for image_id, found in scene.detections.items():
        boxes = found["boxes"].double().numpy().copy()
        boxes[:, 2:] -= boxes[:, :2]
        for box, score, label in zip(boxes, found["scores"].tolist(), found["labels"].tolist(), strict=True):
            category = scene.category_ids[label]
            rows.append({"image_id": image_id, "category_id": category, "bbox": box.tolist(), "score": score})
    coco = COCOeval(truth, truth.loadRes(rows), "bbox") if rows else COCOeval(truth, COCO(), "bbox")
    coco.evaluate()
    coco.accumulate()
    coco.summarize()
    precision = coco.eval["precision"][:, :, :, 0, -1]
    by_category = {}
    for index, category in enumerate(coco.params.catIds):
        values = precision[:, :, index]
        by_category[int(category)] = values[values > -1].mean() if (values > -1).any() else -1.0
    return list(coco.stats[:6]), by_category


def assert_agrees(scene) -> Evaluation:
    ours = evaluate(*scene.parts)
    numbers, by_category = pycocotools_numbers(scene)
    for name, theirs in zip(NAMES, numbers, strict=True):
        value = getattr(ours, name)
        assert (value is None) == (theirs == -1), name
        assert value is None or value == pytest.approx(100 * theirs, abs=1e-6), name
    for name, category in zip(scene.classes, scene.category_ids, strict=True):
        theirs, value = by_category[category], ours.per_class[name]
        assert (value is None) == (theirs == -1), name
        assert value is None or value == pytest.approx(100 * theirs, abs=1e-6), name
    return ours


@pytest.mark.parametrize("seed", range(40))
def test_numbers_agree_with_pycocotools_on_crowds_empty_images_ties_and_all_areas(scene, seed):
    assert_agrees(scene(seed))


@pytest.mark.parametrize("seed", range(5))
def test_numbers_agree_with_pycocotools_beyond_100_detections_per_image(scene, seed):
    many = scene(seed, images=6, category_ids=(5, 1), objects=12, detections=500)
    assert max(len(found["scores"]) for found in many.detections.values()) > 200
    assert_agrees(many)


@pytest.mark.parametrize("seed", range(10))
def test_numbers_agree_with_pycocotools_on_integer_boxes_whose_ious_equal_thresholds(scene, seed):
    whole = scene(seed, decimals=0, images=20)
    for found in whole.detections.values():
        found["boxes"] = found["boxes"].round()
    assert_agrees(whole)


@pytest.mark.parametrize("seed", range(5))
def test_numbers_agree_with_pycocotools_on_a_single_class(scene, seed):
    assert_agrees(scene(seed, category_ids=(17,)))


def test_an_area_range_without_objects_is_undefined_and_shown_as_a_dash(scene):
    small = scene(4)
    for annotation in small.ground_truth["annotations"]:
        annotation["area"] = 50.0  # as a thin mask in a large box
    result = assert_agrees(small)
    assert result.apm is None
    assert result.apl is None
    assert result.aps is not None
    names, numbers = (
        next(line.split() for line in shown(result).splitlines() if sign in line)
        for sign in ("AP75", f"{result.ap75:.1f}")
    )
    assert dict(zip(names, numbers, strict=True)) | {"APm": "–", "APl": "–"} == dict(zip(names, numbers, strict=True))


def test_area_ranges_use_the_annotated_area_not_that_of_the_box(scene):
    masks = scene(5)
    before = evaluate(*masks.parts)
    for annotation in masks.ground_truth["annotations"]:
        annotation["area"] /= 10
    after = assert_agrees(masks)
    assert after.ap == before.ap
    assert after.apm != before.apm


def test_an_annotation_without_area_has_the_area_of_its_box(scene):
    given = scene(6)
    for annotation in given.ground_truth["annotations"]:
        annotation["area"] = annotation["bbox"][2] * annotation["bbox"][3]
    expected = evaluate(*given.parts)
    for annotation in given.ground_truth["annotations"]:
        del annotation["area"]
    assert evaluate(*given.parts) == expected


def test_numbers_do_not_depend_on_the_order_of_the_images(scene):
    given = scene(7, images=30)
    expected = evaluate(*given.parts)
    rng = np.random.default_rng(0)
    images, detections = list(given.ground_truth["images"]), list(given.detections.items())
    by_image = [
        [row for row in given.ground_truth["annotations"] if row["image_id"] == image["id"]] for image in images
    ]
    for order in (rng.permutation(len(images)), rng.permutation(len(images))):
        truth = {
            "images": [images[index] for index in order],
            "annotations": [row for index in order for row in by_image[index]],
            "categories": given.ground_truth["categories"][::-1],
        }
        shuffled = dict(detections[index] for index in rng.permutation(len(detections)))
        result = evaluate(truth, shuffled, given.category_ids, given.classes)
        assert result == expected
        assert json.dumps(result.to_dict()) == json.dumps(expected.to_dict())


def test_ap_per_class_does_not_depend_on_the_order_of_the_labels(scene):
    given = scene(8)
    expected = evaluate(*given.parts)
    order = [2, 0, 1]
    moved = {
        image: found | {"labels": torch.tensor([order.index(label) for label in found["labels"].tolist()]).long()}
        for image, found in given.detections.items()
    }
    categories, classes = [given.category_ids[k] for k in order], [given.classes[k] for k in order]
    assert evaluate(given.ground_truth, moved, categories, classes).per_class == pytest.approx(expected.per_class)


def test_without_detections_ap_is_zero_and_the_thresholds_have_no_f1(scene):
    given = scene(9)
    for none in ({}, {image: _nothing() for image in given.detections}):
        result = evaluate(given.ground_truth, none, given.category_ids, given.classes)
        assert result.ap == result.ap50 == 0
        assert set(result.per_class.values()) == {0}
        assert result.detections == 0
        assert result.correlation.pcc is None
        assert result.thresholds.overall.f1 is None
        assert re.search(r"^\s*all\s+\d+\s+0\.0\s+–\s+–\s+–\s", shown(result), re.MULTILINE)


def test_without_objects_all_metrics_are_undefined(scene):
    given = scene(10)
    truth = given.ground_truth | {"annotations": []}
    result = evaluate(truth, given.detections, given.category_ids, given.classes)
    assert [getattr(result, name) for name in NAMES] == [None] * 6
    assert set(result.per_class.values()) == {None}
    assert result.objects == 0
    assert result.detections > 0
    assert re.search(r"^\s*all\s+0\s+–\s+–\s+–\s+–\s", shown(result), re.MULTILINE)
    assert evaluate({"images": [], "annotations": []}, {}, [1], ["a"]).ap is None


def test_ap_of_a_class_without_objects_is_undefined_and_not_part_of_the_mean(scene):
    given = scene(11)
    expected = evaluate(*given.parts)
    result = evaluate(given.ground_truth, given.detections, [*given.category_ids, 1000], [*given.classes, "unicorn"])
    assert result.per_class["unicorn"] is None
    assert result.ap == expected.ap
    assert result.thresholds.per_class["unicorn"].score == result.thresholds.overall.score
    # The table contains the number of objects and starts with the rare classes.
    rows = re.findall(rf"^\s*({'|'.join(result.per_class)})\s+(\d+)\s+(\S+)", shown(result), re.MULTILINE)
    counts = [int(count) for _, count, _ in rows]
    assert (rows[0], counts, len(counts)) == (("unicorn", "0", "–"), sorted(counts), len(result.per_class))


def test_annotations_of_other_categories_are_ignored(scene):
    given = scene(12)
    other = given.ground_truth["annotations"][0] | {"id": 10**6, "category_id": 555}
    truth = given.ground_truth | {"annotations": [*given.ground_truth["annotations"], other]}
    assert evaluate(truth, given.detections, given.category_ids, given.classes) == evaluate(*given.parts)


def test_perfect_detections_reach_100():
    truth = _truth([[10, 10, 20.3, 30.1], [50, 50, 100, 120]])
    found = _found([[10, 10, 30.3, 40.1], [50, 50, 150, 170]], [0.9, 0.8])
    result = evaluate(truth, {1: found}, [1], ["a"])
    assert result.ap == pytest.approx(100)
    assert result.thresholds.overall.f1 == 1


def test_a_detection_on_a_crowd_region_is_neither_correct_nor_wrong():
    truth = _truth([[10, 10, 20, 20], [100, 100, 200, 200]], crowd=[0, 1])
    found = _found([[120, 120, 140, 140], [130, 150, 180, 180], [10, 10, 30, 30]], [0.9, 0.8, 0.7])
    result = evaluate(truth, {1: found}, [1], ["a"])
    assert result.ap == pytest.approx(100)
    assert result.objects == 1
    assert result.thresholds.overall.precision == 1


def test_boxes_with_negative_sides_are_wrong_detections():
    truth = _truth([[10, 10, 20, 20]])
    found = _found([[30, 30, 10, 10], [10, 10, 30, 30]], [0.9, 0.8])
    assert evaluate(truth, {1: found}, [1], ["a"]).ap == pytest.approx(50)


def test_evaluate_prints_nothing(scene, capfd):
    evaluate(*scene(13).parts)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scores", float("nan"), "image 8: a detection has a score that is not finite"),
        ("scores", float("inf"), "image 8: a detection has a score that is not finite"),
        ("boxes", float("nan"), "image 8: a detection has a box with a coordinate that is not finite"),
        ("labels", 3, "image 8: a detection has a label above 2, the last of 3 classes"),
        ("labels", -1, "image 8: a detection has a negative label"),
    ],
)
def test_a_bad_detection_is_an_error_that_names_the_image(scene, key, value, message):
    given = scene(14)
    given.detections[3], given.detections[8] = (
        _found([[0, 0, 9, 9]] * 2, [0.5, 0.4]),
        _found([[0, 0, 9, 9]] * 2, [1, 0]),
    )
    given.detections[8][key][1] = value
    with pytest.raises(ValueError, match=message):
        evaluate(*given.parts)


def test_detections_of_an_unlisted_image_are_an_error(scene):
    given = scene(15)
    given.detections[4] = _nothing()
    with pytest.raises(ValueError, match="detections for image 4, which the ground truth does not list"):
        evaluate(*given.parts)


def test_columns_of_different_lengths_are_an_error(scene):
    given = scene(15)
    given.detections[3] = _nothing() | {"scores": torch.zeros(2)}
    with pytest.raises(ValueError, match=r"image 3: detections need boxes \[N, 4\]"):
        evaluate(*given.parts)


def test_a_category_id_is_needed_for_each_class(scene):
    given = scene(15)
    with pytest.raises(ValueError, match="2 category ids for 3 classes"):
        evaluate(given.ground_truth, given.detections, given.category_ids[:2], given.classes)


def test_classes_with_the_same_name_are_distinguished_by_category_id(scene):
    given = scene(16)
    result = evaluate(given.ground_truth, given.detections, given.category_ids, ["fish", "fish", "bird"])
    assert list(result.per_class) == ["fish (7)", "fish (2)", "bird"]


def test_to_dict_contains_all_metrics_and_thresholds(scene):
    result = evaluate(*scene(17).parts)
    values = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert {*NAMES, "per_class", "correlation", "thresholds", "images", "objects", "detections"} == set(values)
    assert values["ap50"] == result.ap50
    assert values["correlation"]["n"] == result.correlation.n
    assert values["thresholds"]["overall"]["score"] == result.thresholds.overall.score
    assert set(values["thresholds"]["per_class"]) == set(result.thresholds.per_class)
    assert result.summary()["kcc"] == result.correlation.kcc


def test_the_table_shows_every_metric_and_class(scene):
    given = scene(18)
    result = evaluate(*given.parts)
    lines = [line.split() for line in shown(result).splitlines()]
    names = ("AP", "AP50", "AP75", "APs", "APm", "APl", "PCC", "SCC", "KCC")
    numbers = lines[lines.index([*names]) + 2]
    coefficients = (result.correlation.pcc, result.correlation.scc, result.correlation.kcc)
    assert numbers == [*(f"{getattr(result, name):.1f}" for name in NAMES), *(f"{value:.3f}" for value in coefficients)]
    for name, best in result.thresholds.per_class.items():
        percent = [f"{100 * value:.1f}" for value in (best.f1, best.precision, best.recall)]
        row = next(line for line in lines if line[: len(name.split())] == name.split())
        assert row[-5:] == [f"{result.per_class[name]:.1f}", *percent, f"{best.score:.3f}"]


def test_the_table_with_intervals_fits_80_columns_and_folds_long_names_alone(scene):
    given = scene(18)
    names = ["rectangle", "b", "a name that is longer than its column"]
    result = evaluate(given.ground_truth, given.detections, given.category_ids, names)
    result = calibrated(result, [image["id"] for image in given.ground_truth["images"]])
    text = shown(result, width=80)
    assert "…" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("rectangle ")]
    low, high = result.thresholds.per_class["rectangle"].interval
    assert f" {low:.2f}–{high:.2f}" in row
    assert row.split()[2] == f"{result.per_class['rectangle']:.1f}"
    assert "precision" in text


def test_brackets_in_a_class_name_are_not_markup(scene):
    given = scene(18)
    result = evaluate(given.ground_truth, given.detections, given.category_ids, ["[bold]x", "b", "c"])
    assert "[bold]x" in shown(result)


def test_ap_is_the_mean_of_the_precision_curves(scene):
    given = scene(19)
    result = evaluate(*given.parts)
    assert 100 * np.nanmean(result.curves.at(0.75)) == pytest.approx(result.ap75)
    assert 100 * np.nanmean(result.curves.precision[..., 1]) == pytest.approx(result.per_class[given.classes[1]])


def shown(result: Evaluation, width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    result.print_table(console)
    return console.export_text()


def _truth(boxes, crowd=None):
    annotations = [
        {"id": k, "image_id": 1, "category_id": 1, "bbox": box, "iscrowd": crowd[k] if crowd else 0}
        for k, box in enumerate(boxes)
    ]
    return {"images": [{"id": 1}], "annotations": annotations, "categories": [{"id": 1, "name": "a"}]}


def _found(boxes, scores):
    count = len(scores)
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(count, 4),
        "scores": torch.tensor(scores, dtype=torch.float32),
        "labels": torch.zeros(count, dtype=torch.int64),
    }


def _nothing():
    return _found([], [])
