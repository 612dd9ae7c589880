"""The tables of the paper and a few of our own. Each row is a recipe with overrides."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from rankwise.reproduce.choose import CHOOSE
from rankwise.reproduce.claims import Above, Alike, Best, Claim
from rankwise.reproduce.rows import (
    A800,
    ALRP,
    AP_EPOCHS_100,
    ATSS,
    GENERALIZED,
    IOU,
    P800,
    PAA_STAR,
    R512,
    RANKSORT,
    Row,
    same,
    sigmoid,
    valid_negatives,
)
from rankwise.reproduce.state_of_the_art import CONTRIBUTIONS, STATE_OF_THE_ART

SIZES = ("APs", "APm", "APl")


@dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes:
        title: The title.
        rows: The rows.
        columns: The metrics, in the order of printing.
        claims: The claims of the paper, or of ours, about the table.
        note: A remark for results on small data.
        from_backbone: Whether rows on the built-in dataset start from a trained backbone.
    """

    title: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = ("AP", "AP50", "AP75")
    claims: tuple[Claim, ...] = ()
    note: str = ""
    from_backbone: bool = True


@cache
def paper_tables() -> dict[str, Any]:
    """The numbers of the paper's tables."""
    text = (resources.files("rankwise.reproduce") / "paper_tables.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables


def paper_row(table: str, row: Row) -> dict[str, Any]:
    """The values of a row in the paper; empty if the paper does not have the row."""
    return {} if row.paper is None else paper_tables()[table]["rows"][row.paper]


def _losses_with_atss() -> tuple[Row, ...]:
    names = (
        "FocalLoss", "GHMLoss", "QualityFocalLoss", "VarifocalLoss", "GeneralizedFocalLoss", "DRLoss", "APLoss",
        "ALRPLoss", "RankSortLoss", "RankDetLoss", "PELoss", "APELoss",
    )  # fmt: skip
    special = {
        "GeneralizedFocalLoss": (*GENERALIZED, "--model.head.bins=8"),
        "ALRPLoss": ALRP,
        "RankSortLoss": RANKSORT,
    }
    return tuple(same(name, *special.get(name, (f"--loss={name}",)), ATSS) for name in names)


TABLES: dict[str, Table] = {
    "distance": Table(
        title="distance functions (Table 1)",
        rows=(
            same("Step(0.5)", "--loss=APLoss", IOU, paper=0),
            same("Sigmoid(8)", *sigmoid(8), IOU, paper=1),
            same("SigmoidCrossEntropy(8)", "--loss=PELoss", IOU, paper=2),
        ),
        claims=(Alike("the distance function hardly matters"),),
    ),
    "balance": Table(
        title="balance constants (Table 2)",
        rows=(
            same("Rank", *sigmoid(8), IOU, paper=0),
            same("ValidNegatives(0.25)", *valid_negatives(0.25), IOU, paper=1),
        ),
        claims=(Alike("the balance constant hardly matters"),),
    ),
    "sampling": Table(
        title="assigners with pairwise error (Table 3)",
        rows=(
            same("IoU threshold", "--loss=PELoss", IOU, paper=0),
            same("ATSS", "--loss=PELoss", ATSS, paper=1),
        ),
        columns=("AP", "AP50", "AP75", *SIZES),
        claims=(Above("ATSS above the IoU threshold", "ATSS", "IoU threshold"),),
    ),
    "contributions": Table(
        title="what each part contributes (Table 4)",
        rows=CONTRIBUTIONS,
        claims=(
            Above("APE above AP", "APE, IoU threshold", "AP, IoU threshold"),
            Above("APE above AP at an IoU of 0.75", "APE, IoU threshold", "AP, IoU threshold", "AP75"),
            Above("ATSS above the IoU threshold", "APE, ATSS", "APE, IoU threshold"),
            Above("PAA* above ATSS", "APE, PAA*", "APE, ATSS"),
            Best("PAA* on top", "APE, PAA*"),
        ),
    ),
    "correlation": Table(
        title="score against IoU of detections with an IoU above 0.5 (Table 5)",
        rows=(
            same("PE", "--loss=PELoss", IOU, paper=0),
            same("APE", "--loss=APELoss", IOU, paper=1),
        ),
        columns=("PCC", "SCC", "KCC"),
        claims=tuple(
            Above(f"APE raises {name}", "APE", "PE", column)
            for name, column in (("Pearson's", "PCC"), ("Spearman's", "SCC"), ("Kendall's", "KCC"))
        ),
    ),
    "clustering": Table(
        title="clustering scores of PAA, with APE (Table 6)",
        rows=(
            same("focal + GIoU losses", "--loss=APELoss", *PAA_STAR, "--assign.clustering=losses", paper=0),
            same("ranking + localization", "--loss=APELoss", *PAA_STAR, "--assign.normalize=false", paper=1),
            same("ranking + localization, normalized", "--loss=APELoss", *PAA_STAR, paper=2),
            same("ranking, normalized", "--loss=APELoss", *PAA_STAR, "--assign.clustering=ranking", paper=3),
            same("localization, normalized", "--loss=APELoss", *PAA_STAR, "--assign.clustering=localization", paper=4),
        ),
        claims=(
            Above("normalized above plain scores", "ranking + localization, normalized", "ranking + localization"),
            Above("plain scores above losses", "ranking + localization", "focal + GIoU losses"),
            Above("both scores above ranking alone", "ranking + localization, normalized", "ranking, normalized"),
            Above(
                "both scores above localization alone", "ranking + localization, normalized", "localization, normalized"
            ),
        ),
    ),
    "detectors": Table(
        title="detectors, APE with PAA* (Table 7)",
        rows=(
            Row("RetinaNet(512)", CONTRIBUTIONS[3].small, CONTRIBUTIONS[3].coco, R512, 0),
            Row("FCOS(800)", (*CONTRIBUTIONS[3].small, "--model.head.coding=ltrb"), (), P800, 1, size=1.5),
        ),
        columns=("AP", "AP50", "AP75", *SIZES),
        claims=(Above("FCOS at the larger size above RetinaNet", "FCOS(800)", "RetinaNet(512)"),),
        note="On small data, FCOS is the same detector with distances instead of deltas, and a 1.5 times larger input.",
    ),
    "schedule": Table(
        title="learning rates and epochs (Table 8; the paper gives no AP)",
        rows=(
            Row(
                "AP, a quarter of the rate, twice as long",
                ("--loss=APLoss", IOU),
                ("--loss=APLoss", *AP_EPOCHS_100),
                R512,
                0,
                rate=0.25,
                length=2,
            ),
            Row("AP", ("--loss=APLoss", IOU), ("--loss=APLoss", IOU), R512, 1),
            Row("APE", ("--loss=APELoss", IOU), ("--loss=APELoss", IOU), R512, 2),
            Row("APE, ATSS, 2.5 times the rate", ("--loss=APELoss", ATSS), (), A800, 3, rate=2.5),
        ),
        claims=(Above("APE above AP with twice the epochs", "APE", "AP, a quarter of the rate, twice as long"),),
        note="On COCO, the first row has a learning rate of 0.001 and 100 epochs, the next two 0.004 and 48, and the "
        "last 0.01 and 24, at 800 pixels.",
    ),
    "state_of_the_art": Table(
        title="all losses and detectors (Table 9)",
        rows=STATE_OF_THE_ART,
        columns=("AP", "AP50", "AP75", *SIZES),
        claims=(
            *(
                Above(f"APE above {name} with ATSS", "APE, ATSS(800)", row)
                for name, row in (
                    ("focal loss", "Focal, ATSS(800)"),
                    ("quality focal loss", "QualityFocal, ATSS(800)"),
                    ("varifocal loss", "Varifocal, ATSS(800)"),
                    ("RankDetNet", "RankDetNet, ATSS(800)"),
                )
            ),
            Above("APE with PAA* above focal loss with PAA", "APE, PAA*(800)", "Focal, PAA(800)"),
            Above("APE with PAA* above RankSort with PAA", "APE, PAA*(800)", "RankSort, PAA(800)"),
        ),
        note="On small data, all rows have the same backbone, input size and number of epochs. Rows that only differ "
        "in these show the same runs.",
    ),
    "delta": Table(
        title="δ of the step function (appendix)",
        rows=tuple(
            same(f"{value:g}", "--loss=APLoss", *(f"--loss.delta={value:g}",) * (value != 0.5), IOU, paper=index)
            for index, value in enumerate((1, 0.5, 0.25, 0.125))
        ),
        claims=(Best("0.5 is best", "0.5"), Above("0.125 is too steep", "0.5", "0.125")),
    ),
    "lambda": Table(
        title="λ of the sigmoid (appendix)",
        rows=tuple(same(f"{value}", *sigmoid(value), IOU, paper=index) for index, value in enumerate((2, 4, 8, 16))),
        claims=(Best("8 is best", "8"),),
    ),
    "margin": Table(
        title="threshold T of valid negatives (appendix)",
        rows=tuple(
            same(f"{value:g}", *valid_negatives(value), IOU, paper=index)
            for index, value in enumerate((0, 0.2, 0.25, 0.3, 0.5))
        ),
        claims=(Best("0.25 is best", "0.25"), Above("0.5 is too wide", "0.25", "0.5")),
    ),
    "max_negatives": Table(
        title="Q, the maximum number of negatives (appendix)",
        rows=tuple(
            Row(
                f"{paper:,}",
                ("--loss=APELoss", ATSS, f"--loss.max_negatives={small}"),
                (f"--loss.max_negatives={paper}", "--epochs=20", "--schedule.milestones=[16,18]"),
                A800,
                index,
            )
            for index, (paper, small) in enumerate(
                ((10_000, 1_500), (50_000, 7_500), (100_000, 15_000), (200_000, 30_000))
            )
        ),
        claims=(
            Above("50,000 above 10,000", "50,000", "10,000"),
            Above("100,000 above 50,000", "100,000", "50,000"),
        ),
        note="On small data, Q is 1,500, 7,500, 15,000 and 30,000, because a batch has 150 positives there and some "
        "thousands on COCO.",
    ),
    "assigners": Table(
        title="assigners with APE",
        rows=tuple(same(name, "--loss=APELoss", f"--assign={name}") for name in ("IoUThreshold", "ATSS", "PAA")),
        columns=("AP", "AP50", "AP75", "PCC"),
        claims=(Above("PAA above the IoU threshold", "PAA", "IoUThreshold"), Above("PAA above ATSS", "PAA", "ATSS")),
    ),
    "focal": Table(
        title="focal loss and APE with the same positives",
        rows=tuple(
            Row(name, row.small, row.coco, row.recipe)
            for name, row in (
                ("Focal, ATSS", STATE_OF_THE_ART[2]),
                ("Focal, PAA", STATE_OF_THE_ART[5]),
                ("APE, ATSS", STATE_OF_THE_ART[13]),
                ("APE, PAA*", STATE_OF_THE_ART[16]),
            )
        ),
        columns=("AP", "AP50", "AP75", "PCC"),
        claims=(
            Above("APE above focal loss with ATSS", "APE, ATSS", "Focal, ATSS"),
            Above("APE with PAA* above focal loss with PAA", "APE, PAA*", "Focal, PAA"),
            Above("focal loss gains by PAA", "Focal, PAA", "Focal, ATSS"),
        ),
    ),
    "calibration": Table(
        title="calibration, fitted on validation images and measured on other images",
        rows=(
            same("APE", "--loss=APELoss", ATSS),
            same("AP", "--loss=APLoss", ATSS),
            same("RankSort", "--loss=RankSortLoss", ATSS),
            same("Focal", "--loss=FocalLoss", ATSS),
        ),
        columns=("AP", "ECE raw", "ECE", "LaECE raw", "LaECE", "AP change", "AP change, float32"),
        note="ECE: expected calibration error in 20 bins, over detections with a calibrated score above 0.05. LaECE: "
        "the same with the IoU of a match as the target. AP change: the largest change in the AP of a class caused by "
        "the calibration, in points, with scores in float64 and rounded to float32. On the built-in dataset, the other "
        "images are 2,000 images with another seed. On other datasets, each half of the validation images is measured "
        "with a map fitted to the other half.",
    ),
    "choose": Table(
        title="which loss to choose: those in use today, each with its best assigner, at equal budget",
        rows=CHOOSE,
        columns=("AP", "AP50", "AP75", "PCC", "ECE raw", "ECE"),
        claims=(
            *(
                Above(f"APE with PAA* above {name}", "APE, PAA*", name)
                for name in (row.name for row in CHOOSE if not row.name.startswith("APE"))
            ),
            Above("APE above focal loss with ATSS", "APE, ATSS", "Focal, ATSS"),
            Best("APE with PAA* on top", "APE, PAA*"),
        ),
        note="ECE: expected calibration error in 20 bins, of detections with a calibrated score above 0.05, "
        "cross-validated over the validation images.",
    ),
    "speed": Table(
        title="AP against minutes of training",
        rows=(same("Focal, ATSS", "--loss=FocalLoss", ATSS), same("APE, ATSS", "--loss=APELoss", ATSS)),
        columns=("AP", "AP50", "AP75", "minutes"),
        claims=(Above("APE above focal loss with the same steps", "APE, ATSS", "Focal, ATSS"),),
        note="The recipe from random weights. Minutes are those of the training steps, without the evaluations.",
        from_backbone=False,
    ),
    "losses": Table(
        title="all losses with ATSS at equal budget",
        rows=_losses_with_atss(),
        columns=("AP", "AP50", "AP75", "PCC", "loss ms"),
        claims=(
            Above("APE above focal loss", "APELoss", "FocalLoss"),
            Above("APE above AP", "APELoss", "APLoss"),
            Above("APE above PE", "APELoss", "PELoss"),
        ),
    ),
}
