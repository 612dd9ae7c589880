"""``rankwise calibrate``: calibration of the results file of any detector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from rankwise.errors import DataError
from rankwise.evaluation import figures
from rankwise.evaluation.coco import Evaluation, calibrated, evaluate
from rankwise.evaluation.results import read_results, write_results
from rankwise.evaluation.tabulate import score_lines
from rankwise.files.names import shown
from rankwise.files.parsing import ParseError, read_json
from rankwise.files.writing import make_folder, write_text
from rankwise.models.confidence import rescored


def calibrate_results(detections: Path, truth: Path, out: Path, console: Console | None = None) -> Evaluation:
    """Fits a calibration to a results file, prints its quality and writes it; returns the evaluation.

    Writes ``calibration.json`` (map, thresholds and calibration errors), ``detections.json`` with calibrated scores,
    ``reliability.png`` and ``thresholds.png``.

    Args:
        detections: A COCO results file with scores from 0 to 1.
        truth: COCO annotations of the same images.
        out: Output folder.
        console: Where to print.

    Raises:
        DataError: If a file is invalid.
    """
    console = console or Console(highlight=False)
    annotations = _read(truth)
    try:
        categories = sorted(annotations["categories"], key=lambda category: category["id"])
        category_ids = [int(category["id"]) for category in categories]
        classes = [str(category["name"]) for category in categories]
        image_ids = [image["id"] for image in annotations["images"]]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{truth}: not COCO annotations: {error} is missing; images and categories are needed"
        ) from error
    if not isinstance(_read(detections), list):
        raise DataError(f"{detections}: not a COCO results file: expected a list of detections")
    try:
        found = read_results(detections, category_ids)
        result = calibrated(evaluate(annotations, found, category_ids, classes), image_ids)
    except KeyError as error:
        raise DataError(
            f"{detections}: a detection has no {error}; expected image_id, category_id, bbox, score"
        ) from error
    except (TypeError, ValueError) as error:
        raise DataError(f"{detections}: {error}") from error
    assert result.calibration is not None

    make_folder(out)
    values = {"classes": classes, "category_ids": category_ids, **_part(result)}
    write_text(out / "calibration.json", json.dumps(values, indent=1) + "\n")
    scored = {key: rescored(one, result.calibration, torch.from_numpy) for key, one in found.items()}
    write_results(out / "detections.json", scored, category_ids, digits=17)
    if result.reliability is not None:
        figures.save_figure(figures.reliability_diagram(result.reliability), out / "reliability.png")
    figures.save_figure(figures.threshold_sweep(result), out / "thresholds.png")
    result.print_table(console)
    for line in score_lines(result):
        console.print(shown(line), soft_wrap=True, markup=False)
    console.print(f"calibration.json, detections.json (calibrated) and figures: {out}/", soft_wrap=True, markup=False)
    return result


def _part(result: Evaluation) -> dict[str, Any]:
    """The part of an evaluation that goes into ``calibration.json``."""
    values = result.to_dict()
    return {name: values[name] for name in ("calibration", "reliability", "thresholds", "ap", "images", "detections")}


def _read(path: Path) -> Any:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        return read_json(path, limit=2**34)
    except ParseError as error:
        raise DataError(f"{shown(path)}: {error}") from error
