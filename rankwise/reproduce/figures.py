"""Figures of a table: its numbers, and the corresponding figures of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankwise.evaluation.colors import ACCENT, EMPHASIS, hex_color
from rankwise.evaluation.figures import draw_score_against_iou, new_panels, save_figure, style_panel
from rankwise.evaluation.inference import draw_paa_figures
from rankwise.losses import Sigmoid, SigmoidCrossEntropy, Step
from rankwise.report.runs import read_metrics, read_run
from rankwise.reproduce.tables import paper_row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rankwise.evaluation.coco import Evaluation
    from rankwise.reproduce.text import Results


def draw_figures(results: Results, runs: Mapping[str, Sequence[Path | None]], folder: Path) -> list[Path]:
    """Draws the figures of a table into a folder; returns the files.

    Args:
        results: The results of the table.
        runs: The run folders of each row by seed, None if a run is not finished.
        folder: Output folder.
    """
    drawn = {f"{results.name}.png": numbers(results)}
    if results.name == "distance":
        drawn["distance_functions.png"] = distance_functions()
    firsts = {name: run for name, seeds in runs.items() if (run := next(filter(None, seeds), None))}
    if results.name in ("contributions", "losses") and firsts:
        drawn[f"{results.name}_precision_recall.png"] = precision_recall_by_row(_evaluations(firsts))
    if results.name == "correlation" and firsts:
        drawn["score_against_iou.png"] = score_against_iou_by_row(_evaluations(firsts))
    if results.name == "speed" and firsts:
        logs = {name: [read_metrics(run / "metrics.jsonl") for run in seeds if run] for name, seeds in runs.items()}
        drawn["ap_against_minutes.png"] = ap_against_minutes(logs)
    for name, figure in drawn.items():
        save_figure(figure, folder / name)
    made = [folder / name for name in drawn]
    if results.name == "calibration":
        made += sorted(folder.glob("calibration_reliability_*.png"))
    best = firsts.get("ranking + localization, normalized")
    if results.name == "clustering" and best is not None:
        made += draw_paa_figures(best, folder)
    return made


def numbers(results: Results) -> Figure:
    """The first column of a table: a dot per run, a line at their mean, and a ring at the value of the paper."""
    column = results.table.columns[0]
    found = {
        row: [value for run in results.measured[row.name] if (value := run.get(column)) is not None]
        for row in results.rows
    }
    rows = [row for row, values in found.items() if values]  # the two scales only correspond if both have the row
    height = 0.9 + 0.34 * len(rows)
    figure, (panel,) = new_panels(1, width=7.6, height=max(height, 2.2))
    papers = [paper_row(results.name, row).get(column) for row in rows]
    if any(value is not None for value in papers):
        of_paper = panel.twiny()  # another dataset, so another scale
        known = [(value, position) for position, value in enumerate(papers) if value is not None]
        of_paper.plot(*np.array(known).T, "o", markerfacecolor="none", markeredgecolor=ACCENT)
        style_panel(of_paper, f"{column} of the paper", "", "")
        of_paper.grid(False)
        of_paper.xaxis.label.set_color(ACCENT)
        of_paper.spines["top"].set_visible(True)
    for position, row in enumerate(rows):
        panel.plot(found[row], [position] * len(found[row]), "o", color=EMPHASIS, markersize=4, alpha=0.7)
        panel.plot([np.mean(found[row])] * 2, [position - 0.3, position + 0.3], color=EMPHASIS, linewidth=2)
    panel.set_yticks(range(len(rows)), [row.name for row in rows])
    panel.invert_yaxis()
    style_panel(panel, f"{column} here: each run, and the mean", "", "")
    return figure


def distance_functions() -> Figure:
    """The distance functions and their gradients."""
    z = torch.linspace(-1.5, 1.5, 601, dtype=torch.float64)
    figure, (errors, gradients) = new_panels(2, width=4.6, height=3.6)
    choices = {
        "H, δ = 0.5": Step(0.5),
        "H, δ = 0.125": Step(0.125),
        "S, λ = 2": Sigmoid(2.0),
        "S, λ = 8": Sigmoid(8.0),
        "CE(S, 0) / λ, λ = 8": SigmoidCrossEntropy(8.0),
    }
    for index, (name, distance) in enumerate(choices.items()):
        color = hex_color(index)
        errors.plot(z, distance.error(z), label=name, color=color)
        gradients.plot(z, distance.rank(z), label=name, color=color, linestyle="--" if "CE" in name else "-")
    style_panel(errors, "logit of the sample − logit of the positive", "error", "error of a pair")
    style_panel(gradients, "logit of the sample − logit of the positive", "gradient", "gradient of a pair")
    errors.legend(fontsize=8, framealpha=0.85, edgecolor="none")
    return figure


def precision_recall_by_row(evaluations: Mapping[str, Evaluation]) -> Figure:
    """Mean precision over the classes against recall, one curve per row, at an IoU of 0.5 and of 0.75."""
    figure, panels = new_panels(2, width=4.8, height=4.2)
    for panel, iou in zip(panels, (0.5, 0.75), strict=True):
        for index, (name, evaluation) in enumerate(evaluations.items()):
            precision = evaluation.curves.at(iou)
            known = precision[:, ~np.isnan(precision).any(0)]  # classes without objects have no curve
            if known.size:
                mean = known.mean(1)
                style = ("-", "--")[index // 8 % 2]
                panel.plot(
                    evaluation.curves.recall,
                    mean,
                    style,
                    label=f"{name} ({100 * mean.mean():.1f})",
                    color=hex_color(index % 8),
                )
        style_panel(panel, "recall", "precision", f"IoU {iou}, one run per row")
        panel.set_xlim(0, 1)
        panel.set_ylim(0, 1.01)
        panel.legend(fontsize=7, framealpha=0.85, edgecolor="none")
    return figure


def minutes(line: Mapping[str, Any]) -> float:
    """The duration of a training up to a line of its log, which has the mean time of each part of a step so far."""
    return float(line["step"] * sum(line["seconds"].values()) / 60)


def ap_against_minutes(logs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> Figure:
    """AP of each evaluation against the minutes of training, one line per run and one color per row.

    Args:
        logs: The lines of `metrics.jsonl` of each run, by row.
    """
    figure, (panel,) = new_panels(1, width=6.4, height=4.2)
    for index, (name, seeds) in enumerate(logs.items()):
        for number, log in enumerate(seeds):
            trained = [line for line in log if line.get("kind") == "train"]
            points = [
                (minutes(before[-1]) * line["step"] / before[-1]["step"], line["ap"])
                for line in log
                if line.get("kind") == "eval" and (before := [t for t in trained if t["step"] <= line["step"]])
            ]
            label = name if number == 0 else None
            if points:
                panel.plot(*np.array(points, float).T, "o-", markersize=4, color=hex_color(index), label=label)
    style_panel(panel, "minutes of training", "AP", "AP against minutes of training")
    panel.set_xlim(left=0)
    panel.set_ylim(bottom=0)
    panel.legend(framealpha=0.85, edgecolor="none")
    return figure


def score_against_iou_by_row(evaluations: Mapping[str, Evaluation]) -> Figure:
    """Scores against IoU of well-localized detections with their correlations, one panel per row."""
    figure, panels = new_panels(len(evaluations), width=5.4, height=4.4)
    for panel, (name, evaluation) in zip(panels, evaluations.items(), strict=True):
        draw_score_against_iou(figure, panel, evaluation.matches, title=f"{name}: ")
    return figure


def _evaluations(runs: Mapping[str, Path]) -> dict[str, Evaluation]:
    return {name: read_run(run, name).evaluation for name, run in runs.items()}
