"""An evaluation as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise.evaluation.calibration import describe
from rankwise.evaluation.thresholds import WIDE
from rankwise.files.names import escaped, short_name

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rankwise.evaluation.coco import Evaluation
    from rankwise.evaluation.thresholds import Threshold


def evaluation_table(evaluation: Evaluation) -> Table:
    """The summary, and below it the classes, the rare ones first."""
    from rich.table import Table

    whole = Table.grid()
    correlation = evaluation.correlation
    whole.add_row(
        f"{evaluation.images:,} images · {evaluation.objects:,} objects · {evaluation.detections:,} detections, "
        f"{correlation.n:,} of them with IoU > 0.5"
    )
    whole.add_row(_summary(evaluation))
    whole.add_row(_classes(evaluation))
    return whole


def _summary(evaluation: Evaluation) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    numbers = ("AP", "AP50", "AP75", "APs", "APm", "APl")
    coefficients = ("PCC", "SCC", "KCC")
    for name in (*numbers, *coefficients):
        table.add_column(name, justify="right", style="bold" if name == "AP" else None)
    table.add_row(
        *(decimals(getattr(evaluation, name.lower())) for name in numbers),
        *(decimals(getattr(evaluation.correlation, name.lower()), 3) for name in coefficients),
    )
    return table


def _classes(evaluation: Evaluation) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # 80 columns are enough unless a class name is long; then the name is folded, never a number.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("class", overflow="fold")
    known = any(cut.interval for cut in (evaluation.thresholds.overall, *evaluation.thresholds.per_class.values()))
    f1 = "F1" if evaluation.given_thresholds else "best F1"
    for name in ("objects", "AP", f1, "precision", "recall", "at score", *(["95 %"] if known else [])):
        table.add_column(name, justify="right", no_wrap=True)
    thresholds = evaluation.thresholds
    counts = evaluation.matches.objects.per_class(len(evaluation.per_class)).tolist()
    rows = [
        (name, count, evaluation.per_class[name], cut)
        for (name, cut), count in zip(thresholds.per_class.items(), counts, strict=True)
    ]
    rows.sort(key=lambda row: row[1])  # rare classes first: their AP is the least reliable
    for row, (name, count, ap, cut) in enumerate([*rows, ("all", sum(counts), evaluation.ap, thresholds.overall)]):
        if row == len(rows):
            table.add_section()
        percent = (None if value is None else 100 * value for value in (cut.f1, cut.precision, cut.recall))
        # A run has one threshold per class, and none for all classes together.
        given = evaluation.given_thresholds and row == len(rows)
        last = ["–" if given else decimals(cut.score, 3)] + ([_interval(cut, "–")] if known else [])
        label = Text(short_name(name))
        table.add_row(label, f"{count:,}", decimals(ap), *(decimals(value) for value in percent), *last)
    return table


def _interval(threshold: Threshold, between: str = " to ") -> str:
    if threshold.interval is None:
        return "–"
    low, high = threshold.interval
    return f"{low:.2f}{between}{high:.2f}{' ?' if threshold.uncertain else ''}"


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Prints the table of an evaluation and the lines about its scores."""
    console.print(evaluation_table(evaluation))
    for line in score_lines(evaluation):
        console.print(escaped(line), soft_wrap=True, markup=False)


def score_lines(evaluation: Evaluation) -> list[str]:
    """Lines about the scores of an evaluation; empty if they are raw."""
    if evaluation.calibration is None or evaluation.reliability is None:
        return []
    thresholds, classes = evaluation.thresholds, list(evaluation.per_class)
    lines = [
        f"scores are probabilities: {describe(evaluation.calibration, classes)}",
        evaluation.reliability.describe(),
    ]
    if evaluation.given_thresholds:
        return lines
    chosen = {"best F1": thresholds.overall, "best LRP": thresholds.lrp}
    chosen |= {f"precision {percent} %": thresholds.by_precision.get(percent) for percent in (90, 95)}
    named = [f"{name} at {cut.score:.2f} ({_interval(cut)})" for name, cut in chosen.items() if cut and cut.f1]
    if named:
        lines.append(f"thresholds, all classes, with 95 % intervals: {'; '.join(named)}")
    unsure = [name for name, cut in thresholds.per_class.items() if cut.uncertain]
    if unsure or thresholds.overall.uncertain:
        lines.append(
            f"warning: thresholds marked ? are uncertain by more than {WIDE} (those of {len(unsure)} of {len(classes)} "
            f"classes): {evaluation.images:,} validation images are not enough to determine them"
        )
    return lines


def decimals(value: float | None, digits: int = 1) -> str:
    """A number as text, a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"
