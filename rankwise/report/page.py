"""The report as one self-contained HTML file, with numbers, images, style and script."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import rankwise
from rankwise.errors import UserError
from rankwise.evaluation.colors import hex_color
from rankwise.evaluation.results import EvaluatedRun
from rankwise.files.names import escaped, message_of
from rankwise.files.writing import make_folder, write_text
from rankwise.report import numbers
from rankwise.report.error_types import DEFINITIONS, ErrorType
from rankwise.report.findings import comparison, findings
from rankwise.report.runs import ReportError, RunData, read_run, results_folder, run_data, run_names
from rankwise.report.sheet import BUDGET, box_rows, choose_images, picture_rows

#: The parts of the script, in the order of their dependencies.
SCRIPTS = (
    "dom.js", "state.js", "chart.js", "density.js", "reliability.js", "overview.js", "training.js", "quality.js",
    "errors.js", "boxes.js", "sheet.js", "viewer.js", "main.js",
)  # fmt: skip


def write_report(
    runs: Sequence[Path | str],
    out: Path | str | None = None,
    images: int = 100,
    data: str | None = None,
    device: str = "auto",
    split: str | None = None,
) -> Path:
    """Writes a report of one run, or a comparison of several, as a self-contained HTML file.

    Args:
        runs: Run folders. The first one is the baseline.
        out: Output file; by default ``report.html`` next to the results, or in the current folder for several runs.
        images: Maximum number of images; those with the most errors are shown.
        data: The dataset, if it has moved, or another dataset.
        device: The device for evaluating a run without results.
        split: Another split; the validation split of the runs by default.

    Returns:
        The file that was written.

    Raises:
        ReportError: If a folder is not a run, or has nothing to report yet.
    """
    folders = [Path(run) for run in runs]
    if not folders:
        raise ReportError("no run given: pass at least one run folder")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ReportError("a run is given twice; pass each folder once")
    if images < 0:
        raise ReportError(f"--images {images}: must be 0 or more")
    opened = [read_run(run, name, data, device, split) for run, name in zip(folders, run_names(folders), strict=True)]
    folder = folders[0] / results_folder(folders[0], data, split) if len(folders) == 1 else Path()
    target = Path(out) if out else folder / "report.html"
    make_folder(target.parent)
    _write(target, opened, images)
    return target


def report_on(measured: EvaluatedRun | None, again: str) -> Path | None:
    """Writes ``report.html`` next to the results of an evaluation and prints its path; returns the path.

    Errors are printed, not raised, and None is returned: the results of a training that may have taken days are already
    saved.

    Args:
        measured: The result of :func:`rankwise.evaluation.inference.evaluate_run`; None in processes other than rank 0.
        again: A command that writes the report later, for the error message.
    """
    if measured is None:
        return None
    target = measured.folder / "report.html"
    try:
        _write(target, [run_data(measured, *run_names([measured.run]))])
    except (UserError, OSError, MemoryError) as error:
        why = message_of(error) or "out of memory"
        print(f"no report: {why}\nAll results are saved; to write the report, run: {escaped(again)}", file=sys.stderr)
        return None
    print(f"report    {escaped(target)}", flush=True)
    return target


def _write(target: Path, runs: Sequence[RunData], images: int = 100) -> None:
    # A folder name may contain bytes that are not valid text; they become question marks.
    write_text(target, render(page_data(runs, images)), errors="replace")


def page_data(runs: Sequence[RunData], images: int = 100) -> dict[str, Any]:
    """The contents of the page, as plain values."""
    keys = list(dict.fromkeys(run.dataset_key for run in runs))
    datasets = []
    for key in keys:
        same = [run for run in runs if run.dataset_key == key]
        dataset = same[0].dataset
        rows = picture_rows(dataset, choose_images(same, images // len(keys)), BUDGET // len(keys))
        colors = [hex_color(label) for label in range(len(same[0].classes))]
        named = {"name": same[0].dataset_name, "classes": same[0].classes, "colors": colors}
        datasets.append({**named, "images": len(dataset), "sheet": rows})
    return {
        "version": rankwise.__version__,
        "created": datetime.now().strftime("%Y-%m-%d %H:%M"),
        "types": [{"key": error_type.name.lower(), "definition": DEFINITIONS[error_type]} for error_type in ErrorType],
        "comparison": comparison(runs),
        "datasets": datasets,
        "runs": [_run_data(run, keys.index(run.dataset_key), datasets) for run in runs],
    }


def _run_data(run: RunData, dataset: int, datasets: Sequence[dict[str, Any]]) -> dict[str, Any]:
    evaluation = run.evaluation
    return {
        "name": run.name,
        "dataset": dataset,
        "notes": run.notes,
        "findings": findings(run),
        "recipe": numbers.flat_recipe(run.recipe),
        "skipped": sum(row.get("kind") == "skipped" for row in run.metrics),
        "curves": numbers.training_curves(run.metrics),
        "summary": numbers.summary(evaluation),
        "classes": numbers.class_rows(evaluation),
        "pr": numbers.precision_recall(evaluation),
        "sweep": numbers.threshold_sweep(evaluation, run.errors),
        "density": numbers.score_density(evaluation),
        "reliability": numbers.reliability(evaluation),
        "errors": numbers.error_numbers(run.errors, evaluation, run.gains),
        "boxes": [box_rows(run.errors, image["id"]) for image in datasets[dataset]["sheet"]],
    }


def render(data: dict[str, Any]) -> str:
    """The page as HTML.

    The data is embedded as JSON without any ``<``, and the script inserts it as text, never as HTML. The content
    security policy allows this one script and no network connections.
    """
    template = resources.files("rankwise.report") / "template"
    parts = [(template / name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = "\n(() => {\n'use strict';\n" + "\n".join(parts) + "})();\n"
    plain = json.dumps(data, allow_nan=False, separators=(",", ":"))
    names = " and ".join(run["name"] for run in data["runs"])
    fields = {
        "title": html.escape(f"{names} · rankwise report"),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        "style": (template / "style.css").read_text(encoding="utf-8"),
        "script": script,
        "data": plain.replace("<", "\\u003c"),
    }
    page = (template / "page.html").read_text(encoding="utf-8")
    # In one pass over the template, so that braces in inserted text are not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], page)
