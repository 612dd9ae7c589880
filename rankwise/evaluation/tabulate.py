"""An evaluation as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from rankwise.evaluation.coco import Evaluation


def evaluation_table(evaluation: Evaluation) -> Table:
    """The summary, the correlations and the classes, one below the other.

    Args:
        evaluation: What to show.
    """
    from rich import box
    from rich.table import Table

    whole = Table.grid(padding=(0, 0, 1, 0))
    whole.add_row(
        f"{evaluation.images:,} images · {evaluation.objects:,} objects · {evaluation.detections:,} detections"
    )

    summary = Table(box=box.SIMPLE_HEAD, title="COCO", title_justify="left", title_style="bold")
    columns = {"AP": "ap", "AP50": "ap50", "AP75": "ap75", "APs": "aps", "APm": "apm", "APl": "apl"}
    for column in columns:
        summary.add_column(column, justify="right", style="bold" if column == "AP" else None)
    summary.add_row(*(shown(getattr(evaluation, name)) for name in columns.values()))
    whole.add_row(summary)

    correlation = Table(box=box.SIMPLE_HEAD, title="Score and IoU", title_justify="left", title_style="bold")
    for column in ("PCC", "SCC", "KCC", "detections with IoU > 0.5"):
        correlation.add_column(column, justify="right")
    values = evaluation.correlation
    correlation.add_row(*(shown(value, 3) for value in (values.pcc, values.scc, values.kcc)), f"{values.n:,}")
    whole.add_row(correlation)

    classes = Table(box=box.SIMPLE_HEAD, title="Classes", title_justify="left", title_style="bold")
    classes.add_column("class")
    for column in ("AP", "best F1", "precision", "recall", "at score"):
        classes.add_column(column, justify="right")
    thresholds = evaluation.thresholds
    rows = [(name, evaluation.per_class[name], cut) for name, cut in thresholds.per_class.items()]
    for name, ap, cut in [*rows, ("all", evaluation.ap, thresholds.overall)]:
        if name == "all" and cut is thresholds.overall:
            classes.add_section()
        percent = (None if value is None else 100 * value for value in (cut.f1, cut.precision, cut.recall))
        classes.add_row(name, shown(ap), *(shown(value) for value in percent), shown(cut.score, 3))
    whole.add_row(classes)
    return whole


def shown(value: float | None, digits: int = 1) -> str:
    """A number as text, a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"
