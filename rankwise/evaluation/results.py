"""The results of an evaluation, and COCO results files, as used by test servers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rankwise.config.settings import DataSettings
from rankwise.data.dataset import DetectionDataset
from rankwise.errors import ModelError
from rankwise.evaluation.coco import Evaluation, evaluate
from rankwise.evaluation.tables import detection_table
from rankwise.files.names import escaped
from rankwise.files.parsing import ParseError, is_number, read_json, set_aside
from rankwise.files.writing import write_text
from rankwise.models.confidence import rescored
from rankwise.models.score_map import ScoreMap
from rankwise.models.weights import read_thresholds
from rankwise.types import Detections


@dataclass(frozen=True)
class EvaluatedRun:
    """An evaluated run.

    Attributes:
        run: The run folder.
        folder: The folder of the results.
        settings: The data settings, with the path of the evaluated dataset.
        split: The requested split; None is the validation split of the run.
        dataset: The evaluated images, without unreadable ones.
        evaluation: The evaluation.
    """

    run: Path
    folder: Path
    settings: DataSettings
    split: str | None
    dataset: DetectionDataset
    evaluation: Evaluation


def evaluate_on(dataset: DetectionDataset, detections: Mapping[int, Detections]) -> Evaluation:
    """Evaluates the detections in the images of a dataset."""
    return evaluate(dataset.ground_truth(), detections, dataset.category_ids, dataset.classes)


def results_json(
    detections: Mapping[int, Detections], category_ids: Sequence[int], digits: int = 7
) -> list[dict[str, Any]]:
    """Detections as entries of a COCO results file, by image, best first.

    Boxes are rounded to a hundredth of a pixel.

    Args:
        detections: Detections by image id; boxes are in pixels of the original image, labels start at 0.
        category_ids: The category id of each label.
        digits: Significant digits of the scores: a float32 has 7, a float64 17.
    """
    table = detection_table(detections, len(category_ids))
    boxes = table.boxes.copy()
    boxes[:, 2:] -= boxes[:, :2]
    columns = (table.image_ids.tolist(), table.labels.tolist(), boxes.round(2).tolist(), table.scores.tolist())
    return [
        {"image_id": image, "category_id": int(category_ids[label]), "bbox": box, "score": float(f"{score:.{digits}g}")}
        for image, label, box, score in zip(*columns, strict=True)
    ]


def write_results(
    path: Path | str, detections: Mapping[int, Detections], category_ids: Sequence[int], digits: int = 7
) -> None:
    """Writes a COCO results file.

    Args:
        path: The file.
        detections: Detections by image id; boxes are in pixels of the original image, labels start at 0.
        category_ids: The category id of each label.
        digits: Significant digits of the scores.
    """
    entries = (json.dumps(entry) for entry in results_json(detections, category_ids, digits))
    write_text(Path(path), "[\n" + ",\n".join(entries) + "\n]\n")


def write_calibrated_results(
    path: Path, detections: Mapping[int, Detections], category_ids: Sequence[int], score_map: ScoreMap
) -> None:
    """Writes a COCO results file with calibrated scores, in full precision."""
    scored = {image: rescored(found, score_map, torch.from_numpy) for image, found in detections.items()}
    write_results(path, scored, category_ids, digits=17)


def read_results(path: Path | str, category_ids: Sequence[int]) -> dict[int, Detections]:
    """Reads a COCO results file; images without detections are absent.

    Raises:
        ValueError: If the file has a category that is not in ``category_ids``.
    """
    label_of = {int(category): label for label, category in enumerate(category_ids)}
    grouped: dict[int, list[dict[str, Any]]] = {}
    for number, entry in enumerate(_entries(Path(path))):
        if entry["category_id"] not in label_of:
            raise ValueError(f"{path}: entry {number} has category {entry['category_id']}, which is not in the dataset")
        grouped.setdefault(int(entry["image_id"]), []).append(entry)
    found: dict[int, Detections] = {}
    for image_id, entries in grouped.items():
        entries.sort(key=lambda entry: -entry["score"])
        boxes = torch.tensor([entry["bbox"] for entry in entries], dtype=torch.float64)
        boxes[:, 2:] += boxes[:, :2]
        found[image_id] = {
            "boxes": boxes.float(),
            "scores": torch.tensor([entry["score"] for entry in entries], dtype=torch.float32),
            "labels": torch.tensor([label_of[entry["category_id"]] for entry in entries], dtype=torch.int64),
        }
    return found


def _entries(path: Path) -> list[dict[str, Any]]:
    """The entries of a results file; a ParseError if it is damaged."""
    entries = read_json(path, limit=2**32)
    if not isinstance(entries, list):
        raise ParseError("expected a list of detections")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not _is_detection(entry):
            raise ParseError(f"entry {number} is not a detection with image_id, category_id, bbox and score")
    return entries


def _is_detection(entry: dict[str, Any]) -> bool:
    box, score = entry.get("bbox"), entry.get("score")
    numbers: list[Any] = [*box, score] if isinstance(box, list) and len(box) == 4 else [None]
    ids = (entry.get("image_id"), entry.get("category_id"))
    return all(is_number(value) and abs(value) < 1e30 for value in numbers) and all(
        type(value) is int and abs(value) < 2**63 for value in ids
    )


def _refuse_other_scores(path: Path) -> None:
    """Raises a ParseError if a results file of a run is damaged, or has scores that no detector of ours gives."""
    for number, entry in enumerate(_entries(path)):
        if not 0 <= entry["score"] <= 1:
            raise ParseError(f"entry {number} has the score {entry['score']:g}, which is not from 0 to 1")


def set_damaged_aside(run: Path) -> list[str]:
    """Renames unreadable results of a run, so that they can be created again; returns the messages."""
    notes = []
    checks = {"eval.json": lambda path: read_thresholds(path.parent, ()), "detections.json": _refuse_other_scores}
    for name, read in checks.items():
        path = run / name
        try:
            if path.is_file():
                read(path)
        except (ParseError, ModelError) as error:
            aside = set_aside(path)
            notes.append(f"{escaped(path)} is damaged ({error}): renamed to {escaped(aside.name)} and created again")
    return notes
