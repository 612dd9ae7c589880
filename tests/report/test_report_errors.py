"""Kinds of error: each by an example, and what they cost by measuring anew with the errors mended by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from made_runs import detect_around

from rankwise.data import ShapesDataset
from rankwise.evaluation import evaluate
from rankwise.report.error_types import ERRORS, Errors, Kind, ap50_gains, classify

CAT, DOG = 0, 1
OBJECT = [10.0, 10.0, 50.0, 50.0]


def judged(
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
    ("box", "label", "kind", "iou"),
    [
        (OBJECT, CAT, Kind.CORRECT, 1.0),
        ([10, 10, 50, 30], CAT, Kind.CORRECT, 0.5),
        ([10, 10, 50, 29], CAT, Kind.LOCALISATION, 0.475),
        ([10, 10, 50, 14], CAT, Kind.LOCALISATION, 0.1),
        ([10, 10, 50, 13], CAT, Kind.BACKGROUND, 0.075),
        (OBJECT, DOG, Kind.CLASS, 1.0),
        ([10, 10, 50, 20], DOG, Kind.CLASS, 0.25),
        ([10, 10, 50, 13], DOG, Kind.BACKGROUND, 0.075),
        ([60, 60, 90, 90], CAT, Kind.BACKGROUND, 0.0),
    ],
)
def test_a_lone_detection_is_judged_by_class_and_overlap(box: list[float], label: int, kind: Kind, iou: float) -> None:
    errors = judged([(OBJECT, CAT)], [(box, 0.9, label)])
    assert errors.kind.tolist() == [kind]
    assert errors.iou == pytest.approx([iou])
    assert errors.target.tolist() == [-1 if kind is Kind.BACKGROUND else 0]


def test_the_second_detection_of_an_object_is_a_duplicate_however_well_it_fits() -> None:
    errors = judged([(OBJECT, CAT)], [([10, 10, 50, 40], 0.9, CAT), (OBJECT, 0.8, CAT)])
    assert errors.kind.tolist() == [Kind.CORRECT, Kind.DUPLICATE]
    assert errors.iou == pytest.approx([0.75, 1.0])


def test_a_box_on_another_class_is_a_class_error_though_its_own_class_is_near() -> None:
    beside = [40.0, 10.0, 80.0, 50.0]
    errors = judged([(OBJECT, CAT), (beside, DOG)], [(OBJECT, 0.9, CAT), (beside, 0.8, CAT)])
    assert errors.kind.tolist() == [Kind.CORRECT, Kind.CLASS]
    assert errors.target.tolist() == [0, 1]


def test_a_detection_on_a_crowd_is_no_error_and_a_crowd_is_not_missed() -> None:
    errors = judged([(OBJECT, CAT)], [([20, 20, 40, 40], 0.9, CAT)], crowd=[0])
    assert errors.kind.tolist() == [Kind.IGNORED]
    assert {kind: int(count[0]) for kind, count in errors.counts(np.array([0.0])).items()} == dict.fromkeys(
        (Kind.CORRECT, *ERRORS), 0
    )


def test_whether_an_object_is_missed_depends_on_what_the_threshold_keeps() -> None:
    errors = judged([(OBJECT, CAT)], [([10, 10, 50, 25], 0.75, CAT), (OBJECT, 0.5, CAT)])
    counts = errors.counts(np.array([0.8, 0.75, 0.6, 0.5, 0.1]))
    assert counts[Kind.CORRECT].tolist() == [0, 0, 0, 1, 1]
    assert counts[Kind.MISSED].tolist() == [1, 0, 0, 0, 0]  # from 0.75 on a localisation error is on it


def test_counts_by_threshold_and_by_class_agree() -> None:
    errors = made_scene()[1]
    for threshold in (0.2, 0.45, 0.6):
        whole = errors.counts(np.array([threshold]))
        for kind, counts in errors.by_class(threshold, 8).items():
            assert counts.sum() == whole[kind][0]
        kept = errors.matches.detections.scores >= threshold
        assert sum(int(whole[kind][0]) for kind in whole if kind is not Kind.MISSED) == kept.sum()
        confused = errors.confusions(threshold, 8)
        assert sum(number for *_, number in confused) == whole[Kind.CLASS][0]
        assert all(truth != taken for truth, taken, _ in confused)


def test_what_a_kind_costs_is_what_measuring_without_it_gives() -> None:
    dataset, errors, result = made_scene()
    gains = ap50_gains(errors, 8)
    assert result.ap50 is not None
    for kind in ERRORS:
        mended = mend(dataset, errors, kind)
        assert mended.ap50 == pytest.approx(result.ap50 + gains[kind], abs=1e-9), kind
        assert gains[kind] > 0, kind


def test_without_objects_no_cost_is_defined() -> None:
    errors = judged([], [(OBJECT, 0.9, CAT)])
    assert set(ap50_gains(errors, 2).values()) == {None}
    assert errors.kind.tolist() == [Kind.BACKGROUND]


def test_without_detections_every_object_is_missed() -> None:
    errors = judged([(OBJECT, CAT), (OBJECT, DOG)], [])
    assert errors.counts(np.array([0.0]))[Kind.MISSED].tolist() == [2]


def made_scene() -> Any:
    dataset = ShapesDataset("val", size=96, images=40, seed=3)
    result = evaluate(dataset.ground_truth(), detect_around(dataset, 5, 0.12), dataset.category_ids, dataset.classes)
    return dataset, classify(result.matches), result


def mend(dataset: ShapesDataset, errors: Errors, kind: Kind) -> Any:
    """The evaluation after errors of a kind are put right in the detections or, for missed, in the ground truth."""
    table, objects = errors.matches.detections, errors.matches.objects
    truth = dataset.ground_truth()
    found_by = errors.matches.found_by
    if kind is Kind.MISSED:
        covered = set(errors.target[np.isin(errors.kind, (Kind.LOCALISATION, Kind.CLASS))].tolist())
        gone = [g for g in range(len(objects)) if found_by[g] < 0 and g not in covered]
        ids = set(objects.annotation_ids[gone].tolist())
        truth["annotations"] = [row for row in truth["annotations"] if row["id"] not in ids]
    rows: dict[int, list[tuple[Any, float, int]]] = {}
    taken: set[int] = set()
    for row in np.argsort(-table.scores, kind="stable").tolist():
        box, label = table.boxes[row], int(table.labels[row])
        if errors.kind[row] == kind:
            target = int(errors.target[row])
            if target < 0 or kind is Kind.DUPLICATE or found_by[target] >= 0 or target in taken:
                continue
            taken.add(target)
            box, label = objects.boxes[target], int(objects.labels[target])
        rows.setdefault(int(table.image_ids[row]), []).append((box, float(table.scores[row]), label))
    found = {
        image: {
            "boxes": torch.tensor(np.stack([box for box, _, _ in own])),
            "scores": torch.tensor([score for _, score, _ in own], dtype=torch.float64),
            "labels": torch.tensor([label for *_, label in own]),
        }
        for image, own in rows.items()
    }
    return evaluate(truth, found, dataset.category_ids, dataset.classes)
