"""Figures of an evaluation, for results without a report.

Each function returns a matplotlib figure created without pyplot, so that no state is shared and no window opens.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rankwise.evaluation.colors import ACCENT, EMPHASIS, hex_color
from rankwise.evaluation.correlation import correlate, localized, score_quartiles
from rankwise.evaluation.tabulate import decimals
from rankwise.evaluation.thresholds import sweep
from rankwise.files.writing import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rankwise.evaluation.coco import Evaluation
    from rankwise.evaluation.matching import Matches
    from rankwise.evaluation.reliability import ReliabilityCheck

#: With more classes than this there is no legend, because the colors could not be distinguished.
NAMED_CLASSES = 12

#: Scatter plots with more points than this are drawn as a density.
CLOUD = 1500

_INK, _FAINT = "#333333", "#bbbbbb"


def save_figure(figure: Figure, path: Path | str) -> None:
    """Saves a figure; the file extension, such as ``.png`` or ``.svg``, determines the format."""
    format = Path(path).suffix.lstrip(".") or "png"
    write_whole(Path(path), lambda part: figure.savefig(part, dpi=150, facecolor="white", format=format))


def draw_score_against_iou(figure: Figure, panel: Axes, matches: Matches, title: str = "") -> None:
    """Draws scores of detections with an IoU above 0.5 against their IoU, with the correlation, in a panel of a figure.

    The solid line is the median score at each IoU; the dashed lines are the quartiles.
    """
    scores, ious = localized(matches)
    correlation = correlate(scores, ious)
    if len(scores) > CLOUD:
        from matplotlib.colors import LogNorm

        # The scale starts below one, so that a single detection is visible.
        density = panel.hexbin(
            ious, scores, gridsize=32, mincnt=1, cmap="Blues", norm=LogNorm(vmin=0.4), linewidths=0.2
        )
        bar = figure.colorbar(density, ax=panel, label="detections", pad=0.02, format="%g")
        bar.outline.set_visible(False)
    elif len(scores):
        panel.scatter(ious, scores, s=10, color="#56B4E9", alpha=0.6, linewidths=0)
    else:
        nothing_to_show(panel)
    middles, low, median, high = score_quartiles(scores, ious).T
    if len(middles) > 1:
        panel.plot(middles, median, color=ACCENT, linewidth=2.4, label="median score")
        panel.plot(middles, low, color=ACCENT, linewidth=1.3, linestyle="--", label="quartiles")
        panel.plot(middles, high, color=ACCENT, linewidth=1.3, linestyle="--")
        panel.legend(fontsize=8, loc="upper left", framealpha=0.85, edgecolor="none")
    parts = ", ".join(f"{name.upper()} {decimals(getattr(correlation, name), 3)}" for name in ("pcc", "scc", "kcc"))
    style_panel(panel, "IoU with the object", "raw score", f"{title}{parts}   ({len(scores):,} detections)")
    panel.set_xlim(0.5, 1)


def threshold_sweep(evaluation: Evaluation) -> Figure:
    """Precision, recall and F1 by score threshold over all classes, and F1 per class, with the best marked."""
    matches, names = evaluation.matches, list(evaluation.per_class)
    figure, (overall, classes) = new_panels(2, width=4.8, height=4.0)
    values = sweep(matches)
    if len(values.scores):
        for name, line, color in (
            ("precision", values.precision, "#56B4E9"),
            ("recall", values.recall, "#E69F00"),
            ("F1", values.f1, "black"),
        ):
            overall.plot(values.scores, line, color=color, linewidth=2.4 if name == "F1" else 1.6, label=name)
        best = evaluation.thresholds.overall
        if best.f1 is not None:
            overall.axvline(best.score, color=_FAINT, linewidth=1, zorder=0)
            overall.plot([best.score], [best.f1], "o", color="black", markersize=6)
            text = f"{best.f1:.2f} at {best.score:.3f}"
            overall.annotate(text, (best.score, best.f1), (6, 6), textcoords="offset points", fontsize=9)
        overall.legend(fontsize=8, framealpha=0.85, edgecolor="none")
    else:
        nothing_to_show(overall)
    style_panel(overall, "score threshold", "", "all classes")
    named = len(names) <= NAMED_CLASSES
    for label, name in enumerate(names):
        values, best = sweep(matches, label), evaluation.thresholds.per_class[name]
        if best.f1 is None:
            continue
        color = hex_color(label) if named else _FAINT
        classes.plot(
            values.scores, values.f1, color=color, linewidth=1.5 if named else 0.7, label=name if named else None
        )
        classes.plot([best.score], [best.f1], "o", color=color, markersize=5 if named else 3)
    if named and classes.lines:
        classes.legend(fontsize=8, framealpha=0.85, edgecolor="none")
    style_panel(classes, "score threshold", "F1", "by class")
    for panel in (overall, classes):
        panel.set_ylim(0, 1.02)
    return figure


def reliability_diagram(check: ReliabilityCheck) -> Figure:
    """The fraction of correct detections by score, raw and calibrated; on the diagonal, scores are probabilities.

    The area of a point is proportional to the number of detections in its bin.
    """
    figure, panels = new_panels(2, width=4.2, height=4.2)
    for panel, name, one in zip(panels, ("raw scores", "calibrated"), (check.before, check.after), strict=True):
        panel.plot([0, 1], [0, 1], color=_FAINT, linewidth=1.2, linestyle="--", zorder=1)
        count = np.asarray(one.count)
        full = count > 0
        if full.any():
            score, precision, iou = (np.asarray(values)[full] for values in (one.score, one.precision, one.iou))
            panel.plot(score, precision, color=EMPHASIS, linewidth=1.2, zorder=2)
            sizes = 12 + 260 * count[full] / count.max()
            panel.scatter(score, precision, s=sizes, color=EMPHASIS, alpha=0.75, zorder=3, label="correct")
            panel.plot(score, iou, color="#E69F00", linewidth=1.4, zorder=2, label="mean IoU, 0 if wrong")
            panel.legend(fontsize=8, loc="lower right", framealpha=0.85, edgecolor="none", markerscale=0.5)
        else:
            nothing_to_show(panel)
        style_panel(
            panel, "score", "fraction correct", f"{name}: ECE {decimals(one.ece, 3)}, LaECE {decimals(one.laece, 3)}"
        )
        panel.set(xlim=(0, 1), ylim=(0, 1.02))
    return figure


def new_panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side; width and height are those of a panel, in inches."""
    from matplotlib.figure import Figure  # slow to import, and rarely needed

    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, [figure.add_subplot(1, count, column + 1) for column in range(count)]


def style_panel(panel: Axes, xlabel: str, ylabel: str, title: str) -> None:
    """Sets the texts and the style of a panel."""
    panel.set_title(title, fontsize=11, color=_INK, loc="left")
    panel.set_xlabel(xlabel, color=_INK)
    panel.set_ylabel(ylabel, color=_INK)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(_FAINT)
    panel.tick_params(colors=_INK, labelsize=9)
    panel.grid(True, color="#eeeeee", linewidth=0.8)
    panel.set_axisbelow(True)


def nothing_to_show(panel: Axes) -> None:
    """Says so in an empty panel."""
    panel.text(0.5, 0.5, "nothing to show", transform=panel.transAxes, ha="center", va="center", color=_FAINT)
