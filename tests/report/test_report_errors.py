"""Error types: an example of each, counts equal to those of TIDE, and costs equal to evaluating without the errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from made_runs import detect_around

from rankwise.data import ShapesDataset
from rankwise.evaluation import evaluate
from rankwise.evaluation.coco import coco_eval
from rankwise.report.error_types import ERRORS, Errors, ErrorType, ap50_gains, classify

CAT, DOG = 0, 1
OBJECT = [10.0, 10.0, 50.0, 50.0]


def errors_of(
    objects: list[tuple[list[float], int]], detections: list[tuple[list[float], float, int]], **crowd: Any
) -> Errors:
    """Errors in one image; objects are (box, class), detections (box, score, class)."""
    annotations = [
        {
            "id": number + 1,
            "image_id": 1,
            "category_id": label,
            "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
            "area": 1.0,
            "iscrowd": int(number in crowd.get("crowd", ())),
        }
        for number, (box, label) in enumerate(objects)
    ]
    truth = {"images": [{"id": 1}], "annotations": annotations, "categories": []}
    found = {
        1: {
            "boxes": torch.tensor([box for box, _, _ in detections]).reshape(-1, 4),
            "scores": torch.tensor([score for _, score, _ in detections]),
            "labels": torch.tensor([label for _, _, label in detections], dtype=torch.int64),
        }
    }
    return classify(evaluate(truth, found, [CAT, DOG], ["cat", "dog"]).matches)


@pytest.mark.parametrize(
    ("box", "label", "error_type", "iou"),
    [
        (OBJECT, CAT, ErrorType.CORRECT, 1.0),
        ([10, 10, 50, 30], CAT, ErrorType.CORRECT, 0.5),
        ([10, 10, 50, 29], CAT, ErrorType.LOCALIZATION, 0.475),
        ([10, 10, 50, 14], CAT, ErrorType.LOCALIZATION, 0.1),
        ([10, 10, 50, 13], CAT, ErrorType.BACKGROUND, 0.075),
        (OBJECT, DOG, ErrorType.CLASS, 1.0),
        ([10, 10, 50, 20], DOG, ErrorType.BOTH, 0.25),
        ([10, 10, 50, 13], DOG, ErrorType.BACKGROUND, 0.075),
        ([60, 60, 90, 90], CAT, ErrorType.BACKGROUND, 0.0),
    ],
)
def test_a_single_detection_is_classified_by_class_and_iou(
    box: list[float], label: int, error_type: ErrorType, iou: float
) -> None:
    errors = errors_of([(OBJECT, CAT)], [(box, 0.9, label)])
    assert errors.types.tolist() == [error_type]
    assert errors.iou == pytest.approx([iou])
    assert errors.target.tolist() == [-1 if error_type is ErrorType.BACKGROUND else 0]


def test_the_second_detection_of_an_object_is_a_duplicate_even_with_a_higher_iou() -> None:
    errors = errors_of([(OBJECT, CAT)], [([10, 10, 50, 40], 0.9, CAT), (OBJECT, 0.8, CAT)])
    assert errors.types.tolist() == [ErrorType.CORRECT, ErrorType.DUPLICATE]
    assert errors.iou == pytest.approx([0.75, 1.0])


def test_a_box_on_another_class_is_a_localization_error_if_an_object_of_its_own_class_is_near() -> None:
    beside, far = [40.0, 10.0, 80.0, 50.0], [60.0, 60.0, 90.0, 90.0]
    detections = [(OBJECT, 0.9, CAT), (beside, 0.8, CAT), (far, 0.7, CAT)]
    errors = errors_of([(OBJECT, CAT), (beside, DOG), (far, DOG)], detections)
    assert errors.types.tolist() == [ErrorType.CORRECT, ErrorType.LOCALIZATION, ErrorType.CLASS]
    assert errors.target.tolist() == [0, 0, 2]


def test_a_detection_on_a_crowd_region_is_not_an_error_and_crowd_regions_are_not_missed() -> None:
    errors = errors_of([(OBJECT, CAT)], [([20, 20, 40, 40], 0.9, CAT)], crowd=[0])
    assert errors.types.tolist() == [ErrorType.IGNORED]
    assert errors.kind is errors.types  # its name in the first version
    assert {error_type: int(count[0]) for error_type, count in errors.counts(np.array([0.0])).items()} == dict.fromkeys(
        (ErrorType.CORRECT, *ERRORS), 0
    )


def test_whether_an_object_is_missed_depends_on_the_threshold() -> None:
    errors = errors_of([(OBJECT, CAT)], [([10, 10, 50, 25], 0.75, CAT), (OBJECT, 0.5, CAT)])
    counts = errors.counts(np.array([0.8, 0.75, 0.6, 0.5, 0.1]))
    assert counts[ErrorType.CORRECT].tolist() == [0, 0, 0, 1, 1]
    assert counts[ErrorType.MISSED].tolist() == [1, 0, 0, 0, 0]  # at 0.75, a localization error refers to it


def test_counts_by_threshold_and_by_class_agree() -> None:
    errors = made_scene()[1]
    for threshold in (0.2, 0.45, 0.6):
        whole = errors.counts(np.array([threshold]))
        for error_type, counts in errors.by_class(threshold, 8).items():
            assert counts.sum() == whole[error_type][0]
        kept = errors.matches.detections.scores >= threshold
        assert (
            sum(int(whole[error_type][0]) for error_type in whole if error_type is not ErrorType.MISSED) == kept.sum()
        )
        confused = errors.confusions(threshold, 8)
        assert sum(number for *_, number in confused) == whole[ErrorType.CLASS][0]
        assert all(truth != predicted for truth, predicted, _ in confused)


def test_counts_by_type_equal_those_of_tide() -> None:
    errors = made_scene()[1]
    table, objects = errors.matches.detections, errors.matches.objects
    tide = coco_eval(np.unique(objects.image_ids), objects, table, 8).tide_errors(0.5, 0.1)["counts"]
    counts = errors.counts(np.array([-1.0]))
    names = {"MISSED": "Miss", "BACKGROUND": "Bkg", "LOCALIZATION": "Loc", "CLASS": "Cls", "BOTH": "Both"}
    for error_type in ERRORS:
        assert counts[error_type][0] == tide[names.get(error_type.name, "Dupe")] > 0, error_type


def test_the_cost_of_a_type_equals_the_gain_of_evaluating_without_it() -> None:
    """For types that are corrected by removal: background and duplicate detections, and missed objects."""
    dataset, errors, result = made_scene()
    gains = ap50_gains(errors, 8)
    for error_type in (ErrorType.MISSED, ErrorType.BACKGROUND, ErrorType.DUPLICATE):
        assert corrected(dataset, errors, error_type).ap50 == pytest.approx(
            result.ap50 + gains[error_type], abs=1e-9
        ), error_type
    assert all(gains[error_type] > 0 for error_type in ERRORS)


def test_without_objects_the_costs_are_undefined() -> None:
    errors = errors_of([], [(OBJECT, 0.9, CAT)])
    assert set(ap50_gains(errors, 2).values()) == {None}
    assert errors.types.tolist() == [ErrorType.BACKGROUND]


def test_without_detections_every_object_is_missed() -> None:
    errors = errors_of([(OBJECT, CAT), (OBJECT, DOG)], [])
    assert errors.counts(np.array([0.0]))[ErrorType.MISSED].tolist() == [2]


def made_scene() -> Any:
    dataset = ShapesDataset("val", size=96, images=40, seed=3)
    result = evaluate(dataset.ground_truth(), detect_around(dataset, 5, 0.12), dataset.category_ids, dataset.classes)
    return dataset, classify(result.matches), result


def corrected(dataset: ShapesDataset, errors: Errors, error_type: ErrorType) -> Any:
    """The evaluation without detections of a type or, for missed, without the objects."""
    table, objects = errors.matches.detections, errors.matches.objects
    truth = dataset.ground_truth()
    if error_type is ErrorType.MISSED:
        missed = (errors.matches.found_by < 0) & np.isneginf(errors.covered_at)
        ids = set(objects.annotation_ids[missed].tolist())
        truth["annotations"] = [row for row in truth["annotations"] if row["id"] not in ids]
    keep = errors.types != error_type
    found = {}
    for image in np.unique(table.image_ids[keep]).tolist():
        rows = keep & (table.image_ids == image)
        columns = {"boxes": table.boxes[rows], "scores": table.scores[rows], "labels": table.labels[rows]}
        found[image] = {name: torch.from_numpy(values) for name, values in columns.items()}
    return evaluate(truth, found, dataset.category_ids, dataset.classes)
