"""The tables that can be reproduced: each row is a recipe and what differs in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        name: What the row is called, also its folder.
        flags: What differs from the table's recipe, as on the command line.
    """

    name: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes:
        title: What it shows.
        recipe: The recipe that all rows share, on the built-in dataset.
        rows: The rows.
        columns: What is measured, in the order it is printed in.
    """

    title: str
    recipe: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = ("AP", "AP50", "AP75", "PCC")


def _by_flag(flag: str, *names: str) -> tuple[Row, ...]:
    return tuple(Row(name, (flag, name)) for name in names)


TABLES: dict[str, Table] = {
    "assigners": Table(
        title="who is positive: three assigners with the same loss",
        recipe="shapes",
        rows=_by_flag("--assign", "IoUThreshold", "ATSS", "PAA"),
    ),
    "losses": Table(
        title="all losses with ATSS at equal budget",
        recipe="shapes",
        rows=(
            *_by_flag("--loss", "FocalLoss", "GHMLoss", "QualityFocalLoss", "VarifocalLoss"),
            Row(
                "GeneralizedFocalLoss",
                ("--loss", "GeneralizedFocalLoss", "--model.head.coding=ltrb", "--model.head.bins=8"),
            ),
            *_by_flag("--loss", "DRLoss", "APLoss"),
            # These two balance the box loss by themselves.
            Row("ALRPLoss", ("--loss", "ALRPLoss", "--box.weight=1")),
            Row("RankSortLoss", ("--loss", "RankSortLoss", "--box.weight=1", "--box.weighting=score")),
            *_by_flag("--loss", "RankDetLoss", "PELoss", "APELoss"),
        ),
        columns=("AP", "AP50", "AP75", "PCC", "loss ms"),
    ),
}
