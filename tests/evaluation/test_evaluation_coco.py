"""COCO numbers against pycocotools, and everything around them."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from rich.console import Console

from rankwise.evaluation import Evaluation, evaluate

NAMES = ("ap", "ap50", "ap75", "aps", "apm", "apl")


def pycocotools_numbers(scene) -> tuple[list[float], dict[int, float]]:
    """The six numbers and those by category id, as pycocotools gives them; -1 where undefined."""
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
    for place, category in enumerate(coco.params.catIds):
        values = precision[:, :, place]
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
def test_numbers_agree_with_pycocotools_beyond_100_detections_an_image(scene, seed):
    many = scene(seed, images=6, category_ids=(5, 1), objects=12, detections=500)
    assert max(len(found["scores"]) for found in many.detections.values()) > 200
    assert_agrees(many)


@pytest.mark.parametrize("seed", range(10))
def test_numbers_agree_with_pycocotools_on_whole_pixel_boxes_where_ious_hit_thresholds_exactly(scene, seed):
    whole = scene(seed, decimals=0, images=20)
    for found in whole.detections.values():
        found["boxes"] = found["boxes"].round()
    assert_agrees(whole)
