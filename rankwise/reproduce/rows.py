"""Rows of tables: their names and training flags."""

from __future__ import annotations

from dataclasses import dataclass

R512, A800, P800 = "coco_retinanet512", "coco_atss800", "coco_paa800"

#: Flags shared by several rows on COCO.
EPOCHS_12 = ("--epochs=12", "--schedule.milestones=[8,11]")
EPOCHS_18 = ("--epochs=18", "--schedule.milestones=[12,16]")
EPOCHS_24 = ("--schedule.milestones=[16,22]",)
AP_EPOCHS_100 = ("--lr=0.001", "--epochs=100", "--schedule.milestones=[60,80]")
# The score threshold for scores that are probabilities, and the NMS threshold of the papers of these rows.
USUAL_TEST = ("--model.postprocess.score_threshold=0.05",)
NMS_05 = ("--model.postprocess.nms_threshold=0.5",)
RETINANET_800 = (
    "--assign=IoUThreshold",
    "--box.weighting=none",
    "--model.anchors.base=4",
    "--model.anchors.scales=[1.0,1.25992105,1.58740105]",
    "--model.anchors.ratios=[0.5,1.0,2.0]",
    "--model.head.norm=none",
    "--model.head.level_scale=false",
    "--model.neck.extra_from=c5",
    *USUAL_TEST,
    *NMS_05,
)
RETINANET_500 = (*RETINANET_800, "--model.input.short_side=500", "--model.input.max_side=833")
MULTI_SCALE_TRAIN = ("--data.augment.short_range=[480,960]",)
# The sizes of the multi-scale test are our choice.
MULTI_SCALE_TEST_800 = (
    "--model.test.short_sides=[400,600,800,1000,1200]",
    "--model.test.max_side=2000",
    "--model.test.flip=true",
)
MULTI_SCALE_TEST_500 = (
    "--model.test.short_sides=[400,500,600,700,800]",
    "--model.test.max_side=1333",
    "--model.test.flip=true",
)
RESNET_101 = ("--model.backbone.name=resnet101.tv_in1k",)
RESNEXT_101 = ("--model.backbone.name=resnext101_64x4d.gluon_in1k",)
RES2NET_101 = ("--model.backbone.name=res2net101d.in1k",)
DCN = ("--model.backbone.deformable_stages=[3,4,5]",)
FROM_P5 = ("--model.neck.extra_from=p5",)

#: PAA* as in the code of the authors: ranking and box loss are weighted by quality, with score voting.
PAA_STAR = (
    "--assign=PAA",
    "--loss.weight_by_quality=true",
    "--box.weighting=quality",
    "--model.postprocess.score_voting=true",
)
#: The same for losses without `weight_by_quality`.
PAA_HEAD = ("--assign=PAA", "--box.weighting=quality", "--model.postprocess.score_voting=true")
#: What a base recipe with PAA* has, undone: it would change all rows without PAA*. Another loss drops the arguments.
WITHOUT_PAA_STAR = ("--loss=FocalLoss", "--box.weighting=none", "--model.postprocess.score_voting=false")
GENERALIZED = ("--loss=GeneralizedFocalLoss", "--model.head.coding=ltrb")

IOU, ATSS = "--assign=IoUThreshold", "--assign=ATSS"
# These two weight the box loss themselves.
ALRP = ("--loss=ALRPLoss", "--box.weight=1")
RANKSORT = ("--loss=RankSortLoss", "--box.weight=1", "--box.weighting=score")


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        name: The name of the row.
        small: Flags on small data: the built-in dataset or another folder.
        coco: Flags on COCO.
        recipe: The recipe on COCO.
        paper: Index of the row in the paper.
        rate: Factor on the learning rate, on small data.
        length: Factor on the epochs, on small data.
        size: Factor on the input size, on small data.
    """

    name: str
    small: tuple[str, ...]
    coco: tuple[str, ...] = ()
    recipe: str = R512
    paper: int | None = None
    rate: float = 1.0
    length: float = 1.0
    size: float = 1.0


def sigmoid(lam: int, *more: str) -> tuple[str, ...]:
    """Flags for a pairwise error of positives against negatives with the sigmoid as distance.

    Args:
        lam: Its steepness.
        more: Further flags.
    """
    distance = ("--loss.distance=Sigmoid", f"--loss.distance.lam={lam}")
    return ("--loss=PairwiseError", *distance, "--loss.pairs=PositiveVsNegative", *more)


def valid_negatives(margin: float) -> tuple[str, ...]:
    """Flags for the same with the number of valid negatives as balance constant."""
    return sigmoid(8, "--loss.balance=ValidNegatives", f"--loss.balance.margin={margin:g}")


def same(name: str, *flags: str, paper: int | None = None) -> Row:
    """A row with the same flags on COCO and elsewhere."""
    return Row(name, flags, flags, R512, paper)
