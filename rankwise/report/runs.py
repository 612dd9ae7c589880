"""Opens a run for a report: recipe, log, and metrics recomputed from its detections."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.config.datasets import open_run, results_subfolder
from rankwise.config.reading import not_a_run, read_recipe, read_section
from rankwise.data.dataset import DetectionDataset
from rankwise.errors import UserError
from rankwise.evaluation.coco import Evaluation, calibrated, unique_names
from rankwise.evaluation.reliability import ReliabilityCheck
from rankwise.evaluation.results import EvaluatedRun, evaluate_on, read_results, set_damaged_aside
from rankwise.evaluation.thresholds import best_thresholds, with_intervals
from rankwise.files.parsing import ParseError, is_number, parse_json, read_bytes, read_json
from rankwise.models.score_map import ScoreMap
from rankwise.report.error_types import Errors, ErrorType, ap50_gains, classify

#: Larger differences between the AP in eval.json and that of the rounded boxes in detections.json cause a warning.
ROUNDING = 0.5


class ReportError(UserError, ValueError):
    """A run has no report; the message says why and what to do."""


@dataclass(frozen=True)
class RunData:
    """A run with its evaluation, for a report.

    Attributes:
        name: Its name in the report.
        recipe: The contents of ``recipe.yaml``.
        metrics: The lines of ``metrics.jsonl``; empty if there is no such file.
        dataset: The evaluated dataset, without a transform.
        dataset_name: The name of the dataset in the report.
        dataset_key: Equal for runs that were evaluated on the same images and annotations.
        evaluation: The evaluation.
        errors: The errors by type.
        notes: Warnings about the numbers.
    """

    name: str
    recipe: dict[str, Any]
    metrics: list[dict[str, Any]]
    dataset: DetectionDataset
    dataset_name: str
    dataset_key: str
    evaluation: Evaluation
    errors: Errors
    notes: list[str]

    @property
    def classes(self) -> list[str]:
        """Class names without repetitions."""
        return unique_names(self.dataset.classes, self.dataset.category_ids)

    @cached_property
    def gains(self) -> dict[ErrorType, float | None]:
        """The cost of each error type in AP50."""
        return ap50_gains(self.errors, len(self.classes))


def read_run(run: Path, name: str, data: str | None = None, device: str = "auto", split: str | None = None) -> RunData:
    """Reads a run and its results for a report, in which it is called ``name``. A run without results is evaluated
    first.

    Raises:
        ReportError: If this is not a run, or it has nothing to report yet.
    """
    if not (run / "recipe.yaml").is_file():
        raise ReportError(not_a_run(run))
    for note in set_damaged_aside(run):
        print(note)
    folder = run / results_folder(run, data, split)
    if all((folder / name).is_file() for name in ("detections.json", "eval.json")):
        return run_data(_read_evaluation(run, folder, data, split), name)
    if not any((run / name).is_file() for name in ("best.safetensors", "last.ckpt")):
        raise ReportError(
            f"{run}: nothing to report yet: it has neither results (eval.json, detections.json) nor best.safetensors, "
            f"which the first evaluation of a training writes; resume with: rankwise train --resume {run}"
        )
    from rankwise.evaluation.inference import evaluate_run  # slow to import

    return run_data(evaluate_run(run, data=data, device=device, split=split, out=folder), name)


def run_data(measured: EvaluatedRun, name: str) -> RunData:
    """An evaluated run for a report."""
    evaluation, dataset, settings = measured.evaluation, measured.dataset, measured.settings
    if evaluation.given_thresholds:
        thresholds = best_thresholds(evaluation.matches, list(evaluation.per_class))
        ids = np.unique([record.image_id for record in dataset.records])
        if evaluation.calibration is not None:
            thresholds = with_intervals(thresholds, evaluation.matches, ids)
        evaluation = replace(evaluation, thresholds=thresholds, given_thresholds=False)
    path = "built-in shapes" if settings.path == "shapes" else settings.path
    return RunData(
        name=name,
        recipe=read_recipe(measured.run / "recipe.yaml"),
        metrics=read_metrics(measured.run / "metrics.jsonl"),
        dataset=dataset,
        dataset_name=f"{path}, {measured.split or settings.val}",
        dataset_key=hashlib.sha256(json.dumps(dataset.ground_truth()).encode()).hexdigest(),
        evaluation=evaluation,
        errors=classify(evaluation.matches),
        notes=_notes(measured),
    )


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """The lines of a ``metrics.jsonl``, none if there is no such file.

    Incomplete lines, as after a kill, and lines without a step are skipped.
    """
    rows: list[dict[str, Any]] = []
    if not Path(path).is_file():
        return rows
    for line in read_bytes(path, limit=2**32).splitlines():
        try:
            row = parse_json(line)
        except ParseError:
            continue
        if isinstance(row, dict) and is_number(row.get("step")):
            rows.append(row)
    return rows


def run_names(runs: Sequence[Path]) -> list[str]:
    """A short, unique name per run: the name of its folder, with parent folders if names are the same."""
    parts = [run.resolve().parts for run in runs]
    names = []
    for own in parts:
        depth = 1
        while depth < len(own) and sum(other[-depth:] == own[-depth:] for other in parts) > 1:
            depth += 1
        names.append("/".join(own[-depth:]))
    return names


def results_folder(run: Path, data: str | None, split: str | None) -> str:
    """The subfolder of a run with its results on a dataset and split."""
    return results_subfolder(read_section(run, "data"), data, split)


def _read_evaluation(run: Path, folder: Path, data: str | None, split: str | None) -> EvaluatedRun:
    """The evaluation of a run, recomputed from the detections in a results folder."""
    settings, dataset = open_run(run, data, split)
    try:
        found = read_results(folder / "detections.json", dataset.category_ids)
        evaluation = evaluate_on(dataset, found)
    except ValueError as error:
        raise ReportError(
            f"{folder}/detections.json does not match the dataset ({error}); evaluate again with: rankwise eval {run}"
        ) from error
    evaluation = _in_calibrated_scores(folder, evaluation, [record.image_id for record in dataset.records])
    return EvaluatedRun(run, folder, settings, split, dataset, evaluation)


def _in_calibrated_scores(run: Path, evaluation: Evaluation, image_ids: Sequence[int]) -> Evaluation:
    """The evaluation with the calibration in ``eval.json``; with raw scores if there is none."""
    try:
        values = read_json(run / "eval.json")
        if values.get("calibration") is None:
            return evaluation
        score_map = ScoreMap.from_dict(values["calibration"], len(evaluation.per_class))
        check = ReliabilityCheck.from_dict(values["reliability"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(
            f"{run}/eval.json: its calibration cannot be read ({error}); evaluate again with: rankwise eval {run}"
        ) from error
    return replace(calibrated(evaluation, image_ids, score_map), reliability=check)


def _notes(measured: EvaluatedRun) -> list[str]:
    notes, evaluation = [], measured.evaluation
    try:
        written = read_json(measured.folder / "eval.json")
        then, given = written["ap"], written.get("given_thresholds")
    except (ParseError, KeyError, TypeError):
        then, given = None, None
    now = evaluation.ap
    if is_number(then) and now is not None and not np.isclose(then, now, rtol=0, atol=ROUNDING):
        notes.append(
            f"AP is {then:.1f} in eval.json but {now:.1f} from detections.json: the dataset or the detections have "
            "changed. To evaluate again, run `rankwise eval`."
        )
    if given:
        notes.append(
            "The thresholds on this page are the best ones for these images. Precision and recall at the thresholds "
            "of the run, which were chosen on its validation images, are in eval.json."
        )
    if evaluation.calibration is None:
        notes.append("The scores are raw, not probabilities. To calibrate them, run `rankwise eval`.")
    if not (measured.run / "metrics.jsonl").is_file():
        notes.append("There is no metrics.jsonl, so there are no training curves.")
    return notes
