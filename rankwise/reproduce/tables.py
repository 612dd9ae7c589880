"""The tables of the paper, and three of our own: each row is a recipe and what differs in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from rankwise.reproduce.claims import Above, Alike, Best, Claim
from rankwise.reproduce.rows import (
    A800,
    AP_EPOCHS_100,
    DCN,
    EPOCHS_12,
    EPOCHS_18,
    EPOCHS_24,
    FROM_P5,
    GENERALIZED,
    MULTI_SCALE_TEST_500,
    MULTI_SCALE_TEST_800,
    MULTI_SCALE_TRAIN,
    NMS_05,
    P800,
    PAA_HEAD,
    PAA_STAR,
    R512,
    RES2NET_101,
    RESNET_101,
    RESNEXT_101,
    RETINANET_500,
    RETINANET_800,
    USUAL_TEST,
    Row,
    sigmoid,
    valid_negatives,
)

SIZES = ("APs", "APm", "APl")
IOU, ATSS = "--assign=IoUThreshold", "--assign=ATSS"


@dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes:
        title: What it shows.
        rows: The rows.
        columns: What is measured, in the order it is printed in.
        claims: What the paper concludes from it.
        note: What a reader of results on small data should know.
    """

    title: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = ("AP", "AP50", "AP75")
    claims: tuple[Claim, ...] = ()
    note: str = ""


@cache
def paper_tables() -> dict[str, Any]:
    """The numbers of the paper's tables."""
    text = (resources.files("rankwise.reproduce") / "paper_tables.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables


def paper_row(table: str, row: Row) -> dict[str, Any]:
    """What the paper has in a row; empty for a row of our own."""
    return {} if row.paper is None else paper_tables()[table]["rows"][row.paper]


def _same(name: str, *flags: str, paper: int | None = None) -> Row:
    """A row with the same flags on COCO and elsewhere."""
    return Row(name, flags, flags, R512, paper)


def _losses_with_atss() -> tuple[Row, ...]:
    plain = ("FocalLoss", "GHMLoss", "QualityFocalLoss", "VarifocalLoss", "DRLoss", "APLoss")
    rows = [_same(name, f"--loss={name}", ATSS) for name in plain]
    rows.insert(4, _same("GeneralizedFocalLoss", *GENERALIZED, "--model.head.bins=8", ATSS))
    rows.append(_same("ALRPLoss", *ALRP, ATSS))
    rows.append(_same("RankSortLoss", *RANKSORT, ATSS))
    return (*rows, *(_same(name, f"--loss={name}", ATSS) for name in ("RankDetLoss", "PELoss", "APELoss")))


# These two balance the box loss by themselves.
ALRP = ("--loss=ALRPLoss", "--box.weight=1")
RANKSORT = ("--loss=RankSortLoss", "--box.weight=1", "--box.weighting=score")

CONTRIBUTIONS = (
    _same("AP, IoU threshold", "--loss=APLoss", IOU, paper=0),
    _same("APE, IoU threshold", "--loss=APELoss", IOU, paper=1),
    _same("APE, ATSS", "--loss=APELoss", ATSS, paper=2),
    _same("APE, PAA*", "--loss=APELoss", *PAA_STAR, paper=3),
)

#: Table 9. On small data there is one backbone and one input size: rows that differ in these alone are one run.
STATE_OF_THE_ART = (
    Row(
        "Focal, RetinaNet(500)",
        ("--loss=FocalLoss", IOU),
        ("--loss=FocalLoss", *RETINANET_500, *EPOCHS_12),
        A800,
        0,
    ),
    Row("GHM, RetinaNet(800)", ("--loss=GHMLoss", IOU), ("--loss=GHMLoss", *RETINANET_800, *EPOCHS_12), A800, 1),
    Row(
        "Focal, ATSS(800)",
        ("--loss=FocalLoss", ATSS),
        ("--loss=FocalLoss", "--box.weighting=none", *USUAL_TEST, *EPOCHS_12),
        A800,
        2,
    ),
    Row(
        "QualityFocal, ATSS(800)",
        ("--loss=QualityFocalLoss", ATSS),
        ("--loss=QualityFocalLoss", *USUAL_TEST, *EPOCHS_12),
        A800,
        3,
    ),
    Row(
        "Varifocal, ATSS(800)",
        ("--loss=VarifocalLoss", ATSS),
        ("--loss=VarifocalLoss", "--box.weighting=quality", "--box.weight=1.5", *USUAL_TEST, *EPOCHS_12),
        A800,
        4,
    ),
    Row(
        "Focal, PAA(800)",
        ("--loss=FocalLoss", *PAA_HEAD, "--assign.clustering=losses"),
        ("--loss=FocalLoss", "--assign.clustering=losses", "--box.weight=1.3", *FROM_P5, *USUAL_TEST, *EPOCHS_18),
        P800,
        5,
    ),
    Row(
        "AP, RetinaNet(512)",
        ("--loss=APLoss", IOU),
        ("--loss=APLoss", *AP_EPOCHS_100, *USUAL_TEST, *NMS_05),
        R512,
        6,
    ),
    Row("DR, RetinaNet(800)", ("--loss=DRLoss", IOU), ("--loss=DRLoss", *RETINANET_800, *EPOCHS_12), A800, 7),
    Row(
        "aLRP, ATSS(512)",
        (*ALRP, ATSS),
        (
            *ALRP,
            ATSS,
            "--lr=0.008",
            "--batch_size=32",
            "--epochs=100",
            "--schedule.milestones=[75,95]",
            *USUAL_TEST,
            *NMS_05,
        ),
        R512,
        8,
    ),
    Row(
        "RankDetNet, ATSS(800)",
        ("--loss=RankDetLoss", ATSS),
        ("--loss=RankDetLoss", "--box.weighting=none", *EPOCHS_24, *USUAL_TEST),
        A800,
        9,
    ),
    Row(
        "RankSort, PAA(800)",
        (*RANKSORT, "--assign=PAA", "--assign.clustering=losses", "--model.postprocess.score_voting=true"),
        (
            *RANKSORT,
            "--assign.clustering=losses",
            "--lr=0.008",
            "--model.anchors.base=4",
            "--model.anchors.scales=[1.0,1.25992105,1.58740105]",
            *FROM_P5,
            *USUAL_TEST,
            *EPOCHS_12,
        ),
        P800,
        10,
    ),
    Row("APE, RetinaNet(512)", CONTRIBUTIONS[1].small, CONTRIBUTIONS[1].coco, R512, 11),
    Row("APE, ATSS(512)", CONTRIBUTIONS[2].small, CONTRIBUTIONS[2].coco, R512, 12),
    Row("APE, ATSS(800)", CONTRIBUTIONS[2].small, (), A800, 13),
    Row("APE, PAA*(512)", CONTRIBUTIONS[3].small, CONTRIBUTIONS[3].coco, R512, 14),
    Row(
        "APE, PAA*(512), 96 epochs",
        CONTRIBUTIONS[3].small,
        (*CONTRIBUTIONS[3].coco, "--epochs=96", "--schedule.milestones=[64,88]"),
        R512,
        15,
    ),
    Row("APE, PAA*(800)", CONTRIBUTIONS[3].small, (), P800, 16),
    Row(
        "AP, RetinaNet(512), ResNet-101, multi-scale test",
        CONTRIBUTIONS[0].small,
        ("--loss=APLoss", *RESNET_101, *AP_EPOCHS_100, *USUAL_TEST, *NMS_05, *MULTI_SCALE_TEST_500),
        R512,
        17,
    ),
    Row(
        "DR, RetinaNet(800), ResNeXt-101, multi-scale",
        ("--loss=DRLoss", IOU),
        (
            "--loss=DRLoss",
            *RETINANET_800,
            *RESNEXT_101,
            *MULTI_SCALE_TRAIN,
            *EPOCHS_18,
            *MULTI_SCALE_TEST_800,
        ),
        A800,
        18,
    ),
    Row(
        "Focal, ATSS(800), ResNeXt-101-DCN",
        ("--loss=FocalLoss", ATSS),
        (
            "--loss=FocalLoss",
            "--box.weighting=none",
            *RESNEXT_101,
            *DCN,
            *MULTI_SCALE_TRAIN,
            *USUAL_TEST,
            *EPOCHS_24,
        ),
        A800,
        19,
    ),
    Row(
        "GeneralizedFocal, ATSS(800), ResNeXt-101-DCN",
        (*GENERALIZED, "--model.head.bins=8", ATSS),
        (
            *GENERALIZED,
            "--model.head.bins=16",
            *RESNEXT_101,
            *DCN,
            *MULTI_SCALE_TRAIN,
            *USUAL_TEST,
            *EPOCHS_24,
        ),
        A800,
        20,
    ),
    Row(
        "APE, PAA*(800), ResNeXt-101-DCN",
        CONTRIBUTIONS[3].small,
        (*RESNEXT_101, *DCN, *MULTI_SCALE_TRAIN, *FROM_P5),
        P800,
        21,
    ),
    Row(
        "APE, PAA*(800), Res2Net-101-DCN",
        CONTRIBUTIONS[3].small,
        (
            *RES2NET_101,
            *DCN,
            *MULTI_SCALE_TRAIN,
            *FROM_P5,
            "--epochs=36",
            "--schedule.milestones=[27,33]",
        ),
        P800,
        22,
    ),
)

TABLES: dict[str, Table] = {
    "distance": Table(
        title="distance functions (Table 1)",
        rows=(
            _same("Step(0.5)", "--loss=APLoss", IOU, paper=0),
            _same("Sigmoid(8)", *sigmoid(8), IOU, paper=1),
            _same("SigmoidCrossEntropy(8)", "--loss=PELoss", IOU, paper=2),
        ),
        claims=(Alike("the distance function hardly matters"),),
    ),
    "balance": Table(
        title="balance constants (Table 2)",
        rows=(
            _same("Rank", *sigmoid(8), IOU, paper=0),
            _same("ValidNegatives(0.25)", *valid_negatives(0.25), IOU, paper=1),
        ),
        claims=(Alike("the balance constant hardly matters"),),
    ),
    "sampling": Table(
        title="who is positive, with pairwise error (Table 3)",
        rows=(
            _same("IoU threshold", "--loss=PELoss", IOU, paper=0),
            _same("ATSS", "--loss=PELoss", ATSS, paper=1),
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
            _same("PE", "--loss=PELoss", IOU, paper=0),
            _same("APE", "--loss=APELoss", IOU, paper=1),
        ),
        columns=("PCC", "SCC", "KCC"),
        claims=tuple(
            Above(f"APE raises {name}", "APE", "PE", column)
            for name, column in (("Pearson's", "PCC"), ("Spearman's", "SCC"), ("Kendall's", "KCC"))
        ),
    ),
    "clustering": Table(
        title="what PAA clusters on, with APE (Table 6)",
        rows=(
            _same("focal + GIoU losses", "--loss=APELoss", *PAA_STAR, "--assign.clustering=losses", paper=0),
            _same("ranking + localization", "--loss=APELoss", *PAA_STAR, "--assign.normalize=false", paper=1),
            _same("ranking + localization, normalized", "--loss=APELoss", *PAA_STAR, paper=2),
            _same("ranking, normalized", "--loss=APELoss", *PAA_STAR, "--assign.clustering=ranking", paper=3),
            _same("localization, normalized", "--loss=APELoss", *PAA_STAR, "--assign.clustering=localization", paper=4),
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
            Row("FCOS(800)", (*CONTRIBUTIONS[3].small, "--model.head.coding=ltrb"), (), P800, 1),
        ),
        columns=("AP", "AP50", "AP75", *SIZES),
        claims=(Above("FCOS at the larger size above RetinaNet", "FCOS(800)", "RetinaNet(512)"),),
        note="On small data both have one input size, and FCOS is the same detector with distances instead of deltas.",
    ),
    "schedule": Table(
        title="learning rates and lengths (Table 8; the paper gives no AP there)",
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
        claims=(Above("APE above AP of twice the length", "APE", "AP, a quarter of the rate, twice as long"),),
        note="On COCO the first row has a rate of 0.001 and 100 epochs, the next two 0.004 and 48, the last 0.01 and "
        "24 at 800 pixels.",
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
        note="On small data there is one backbone, one input size and one length: rows that differ in these alone show "
        "the same runs.",
    ),
    "delta": Table(
        title="δ of the step (appendix)",
        rows=tuple(
            _same(f"{value:g}", "--loss=APLoss", *(f"--loss.delta={value:g}",) * (value != 0.5), IOU, paper=index)
            for index, value in enumerate((1, 0.5, 0.25, 0.125))
        ),
        claims=(Best("0.5 is best", "0.5"), Above("0.125 is too steep", "0.5", "0.125")),
    ),
    "lambda": Table(
        title="λ of the sigmoid (appendix)",
        rows=tuple(_same(f"{value}", *sigmoid(value), IOU, paper=index) for index, value in enumerate((2, 4, 8, 16))),
        claims=(Best("8 is best", "8"),),
    ),
    "margin": Table(
        title="threshold T of the valid negatives (appendix)",
        rows=tuple(
            _same(f"{value:g}", *valid_negatives(value), IOU, paper=index)
            for index, value in enumerate((0, 0.2, 0.25, 0.3, 0.5))
        ),
        claims=(Best("0.25 is best", "0.25"), Above("0.5 is too wide", "0.25", "0.5")),
    ),
    "max_negatives": Table(
        title="Q, the most negatives that count (appendix)",
        rows=tuple(
            Row(
                f"{paper:,}",
                ("--loss=APELoss", ATSS, f"--loss.max_negatives={small}"),
                (f"--loss.max_negatives={paper}", "--epochs=20", "--schedule.milestones=[16,18]"),
                A800,
                index,
            )
            for index, (paper, small) in enumerate(((10_000, 40), (50_000, 200), (100_000, 400), (200_000, 800)))
        ),
        claims=(
            Above("50,000 above 10,000", "50,000", "10,000"),
            Above("100,000 above 50,000", "100,000", "50,000"),
        ),
        note="On small data Q is 40, 200, 400 and 800: about the same share of all negatives of a batch.",
    ),
    "assigners": Table(
        title="who is positive, with APE: the assigner alone",
        rows=tuple(_same(name, "--loss=APELoss", f"--assign={name}") for name in ("IoUThreshold", "ATSS", "PAA")),
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
