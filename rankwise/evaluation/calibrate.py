"""``rankwise calibrate``: calibration of the results file of any detector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from rankwise.errors import DataError
from rankwise.evaluation import figures
from rankwise.evaluation.coco import Evaluation, calibrated, evaluate
from rankwise.evaluation.results import read_results, write_calibrated_results
from rankwise.evaluation.tabulate import print_evaluation
from rankwise.files.names import escaped, shortened
from rankwise.files.parsing import ParseError, is_number, read_json
from rankwise.files.writing import make_folder, write_text


def calibrate_results(detections: Path, truth: Path, out: Path) -> Evaluation:
    """Fits a calibration to a COCO results file with scores from 0 to 1, prints its quality and writes it; returns the
    evaluation.

    Writes ``calibration.json`` (map, thresholds and calibration errors), ``detections.json`` with calibrated scores,
    ``reliability.png`` and ``thresholds.png``.

    Raises:
        DataError: If a file is invalid, or no detection is correct.
    """
    console = Console(highlight=False)
    annotations = _read_truth(truth)
    categories = sorted(annotations["categories"], key=lambda category: category["id"])
    category_ids = [category["id"] for category in categories]
    classes = [str(category.get("name", category["id"])) for category in categories]
    image_ids = [image["id"] for image in annotations["images"]]
    if not detections.is_file():
        raise DataError(f"{escaped(detections)}: no such file")
    try:
        found = read_results(detections, category_ids)
        raw = evaluate(annotations, found, category_ids, classes)
        if not raw.correlation.n:
            raise ValueError(
                f"none of its {raw.detections:,} detections overlaps an object of its class with an IoU above 0.5, so "
                f"there is nothing to calibrate; boxes are left, top, width and height in pixels"
            )
        result = calibrated(raw, image_ids)
    except ValueError as error:
        raise DataError(f"{escaped(detections)}: {error}") from error
    assert result.calibration is not None

    make_folder(out)
    values = {"classes": classes, "category_ids": category_ids, **_part(result)}
    write_text(out / "calibration.json", json.dumps(values, indent=1) + "\n")
    write_calibrated_results(out / "detections.json", found, category_ids, result.calibration)
    if result.reliability is not None:
        figures.save_figure(figures.reliability_diagram(result.reliability), out / "reliability.png")
    figures.save_figure(figures.threshold_sweep(result), out / "thresholds.png")
    print_evaluation(result, console)
    console.print(f"calibration.json, detections.json (calibrated) and figures: {out}/", soft_wrap=True, markup=False)
    return result


def _part(result: Evaluation) -> dict[str, Any]:
    """The part of an evaluation that goes into ``calibration.json``."""
    values = result.to_dict()
    return {name: values[name] for name in ("calibration", "reliability", "thresholds", "ap", "images", "detections")}


def _read_truth(path: Path) -> dict[str, Any]:
    """COCO annotations whose ids and boxes have been checked: an id of another type would match nothing, silently."""
    if not path.is_file():
        raise DataError(f"{escaped(path)}: no such file")
    try:
        content = read_json(path, limit=2**34)
    except ParseError as error:
        raise DataError(f"{escaped(path)}: {error}") from error
    for name in ("images", "annotations", "categories"):
        entries = content.get(name) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DataError(f"{escaped(path)}: not COCO annotations: the list {name!r} is missing")
        if name != "annotations":
            _check_ids(path, name, [entry.get("id") for entry in entries])
    for number, entry in enumerate(content["annotations"]):
        box, ids = entry.get("bbox"), (entry.get("image_id"), entry.get("category_id"))
        right = isinstance(box, list) and len(box) == 4 and all(map(is_number, box)) and min(box[2:]) >= 0
        sizes = is_number(entry.get("area", 0)) and entry.get("iscrowd", 0) in (0, 1)
        if not (right and sizes and all(type(value) is int for value in ids)):
            raise DataError(
                f"{escaped(path)}: annotation {number} must have integers as image_id and category_id, a bbox of four "
                f"finite numbers with sides of at least 0, and, if given, a number as area and 0 or 1 as iscrowd; it "
                f"is {shortened(entry)}"
            )
    return dict(content)


def _check_ids(path: Path, name: str, ids: list[Any]) -> None:
    for value in ids:
        if type(value) is not int or abs(value) >= 2**63:
            raise DataError(f"{escaped(path)}: {name} must have integers as id, got {shortened(value)}")
    if len(set(ids)) < len(ids):
        twice = next(value for value in ids if ids.count(value) > 1)
        raise DataError(f"{escaped(path)}: {name} has the id {twice} twice")
