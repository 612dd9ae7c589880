"""COCO results files."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from pycocotools.coco import COCO

from rankwise.evaluation import evaluate, read_results, results_json, write_results


def test_pycocotools_reads_the_file_with_the_original_category_ids(scene, tmp_path):
    given = scene(0)
    write_results(tmp_path / "detections.json", given.detections, given.category_ids)
    truth = COCO()
    truth.dataset = copy.deepcopy(given.ground_truth)
    truth.createIndex()
    loaded = truth.loadRes(str(tmp_path / "detections.json"))
    entries = loaded.dataset["annotations"]
    assert len(entries) == sum(len(found["scores"]) for found in given.detections.values())
    assert {entry["category_id"] for entry in entries} == set(given.category_ids)
    first = json.loads((tmp_path / "detections.json").read_text())[0]
    assert set(first) == {"image_id", "category_id", "bbox", "score"}
    assert all(round(side, 2) == side for side in first["bbox"])


def test_a_written_and_read_file_gives_the_same_metrics(scene, tmp_path):
    given = scene(1)
    write_results(tmp_path / "detections.json", given.detections, given.category_ids)
    again = read_results(tmp_path / "detections.json", given.category_ids)
    expected, result = evaluate(*given.parts), evaluate(given.ground_truth, again, given.category_ids, given.classes)
    assert result.ap == pytest.approx(expected.ap, abs=0.05)  # boxes are rounded
    assert result.ap50 == pytest.approx(expected.ap50, abs=0.05)
    assert result.correlation.scc == pytest.approx(expected.correlation.scc, abs=1e-3)
    assert result.thresholds.overall.score == pytest.approx(expected.thresholds.overall.score, rel=1e-6)


def test_scores_keep_their_order_down_to_float32():
    scores = torch.tensor([1.0, 1 - 2**-22, 0.5, 1e-5 + 1e-11, 1e-5])
    boxes = torch.zeros(5, 4)
    entries = results_json({1: {"boxes": boxes, "scores": scores, "labels": torch.zeros(5, dtype=torch.int64)}}, [3])
    written = [entry["score"] for entry in entries]
    assert written == sorted(set(written), reverse=True)


def test_without_detections_the_file_is_an_empty_list(tmp_path):
    write_results(tmp_path / "none.json", {}, [1])
    assert json.loads((tmp_path / "none.json").read_text()) == []
    assert read_results(tmp_path / "none.json", [1]) == {}


def test_an_unknown_category_is_an_error_that_names_the_entry(tmp_path):
    (tmp_path / "other.json").write_text('[{"image_id": 1, "category_id": 9, "bbox": [0, 0, 1, 1], "score": 1}]')
    with pytest.raises(ValueError, match=r"other.json: entry 0 has category 9"):
        read_results(tmp_path / "other.json", [1, 2])
