"""The rows of Tables 4 and 9 of the paper: the contribution of each part, and the comparison with other losses."""

from __future__ import annotations

from dataclasses import replace

from rankwise.reproduce.rows import (
    A800,
    ALRP,
    AP_EPOCHS_100,
    ATSS,
    DCN,
    EPOCHS_12,
    EPOCHS_18,
    EPOCHS_24,
    FROM_P5,
    GENERALIZED,
    IOU,
    MULTI_SCALE_TEST_500,
    MULTI_SCALE_TEST_800,
    MULTI_SCALE_TRAIN,
    NMS_05,
    P800,
    PAA_HEAD,
    PAA_STAR,
    RANKSORT,
    RES2NET_101,
    RESNET_101,
    RESNEXT_101,
    RETINANET_500,
    RETINANET_800,
    USUAL_TEST,
    Row,
    same,
)

CONTRIBUTIONS = (
    same("AP, IoU threshold", "--loss=APLoss", IOU, paper=0),
    same("APE, IoU threshold", "--loss=APELoss", IOU, paper=1),
    same("APE, ATSS", "--loss=APELoss", ATSS, paper=2),
    same("APE, PAA*", "--loss=APELoss", *PAA_STAR, paper=3),
)

_TABLE_9 = (
    Row("Focal, RetinaNet(500)", ("--loss=FocalLoss", IOU), ("--loss=FocalLoss", *RETINANET_500, *EPOCHS_12), A800),
    Row("GHM, RetinaNet(800)", ("--loss=GHMLoss", IOU), ("--loss=GHMLoss", *RETINANET_800, *EPOCHS_12), A800),
    Row(
        "Focal, ATSS(800)",
        ("--loss=FocalLoss", ATSS),
        ("--loss=FocalLoss", "--box.weighting=none", *USUAL_TEST, *EPOCHS_12),
        A800,
    ),
    Row(
        "QualityFocal, ATSS(800)",
        ("--loss=QualityFocalLoss", ATSS),
        ("--loss=QualityFocalLoss", *USUAL_TEST, *EPOCHS_12),
        A800,
    ),
    Row(
        "Varifocal, ATSS(800)",
        ("--loss=VarifocalLoss", ATSS),
        ("--loss=VarifocalLoss", "--box.weighting=quality", "--box.weight=1.5", *USUAL_TEST, *EPOCHS_12),
        A800,
    ),
    Row(
        "Focal, PAA(800)",
        ("--loss=FocalLoss", *PAA_HEAD, "--assign.clustering=losses"),
        ("--loss=FocalLoss", "--assign.clustering=losses", "--box.weight=1.3", *FROM_P5, *USUAL_TEST, *EPOCHS_18),
        P800,
    ),
    Row("AP, RetinaNet(512)", ("--loss=APLoss", IOU), ("--loss=APLoss", *AP_EPOCHS_100, *USUAL_TEST, *NMS_05)),
    Row("DR, RetinaNet(800)", ("--loss=DRLoss", IOU), ("--loss=DRLoss", *RETINANET_800, *EPOCHS_12), A800),
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
    ),
    Row(
        "RankDetNet, ATSS(800)",
        ("--loss=RankDetLoss", ATSS),
        ("--loss=RankDetLoss", "--box.weighting=none", *EPOCHS_24, *USUAL_TEST),
        A800,
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
    ),
    Row("APE, RetinaNet(512)", CONTRIBUTIONS[1].small, CONTRIBUTIONS[1].coco),
    Row("APE, ATSS(512)", CONTRIBUTIONS[2].small, CONTRIBUTIONS[2].coco),
    Row("APE, ATSS(800)", CONTRIBUTIONS[2].small, (), A800),
    Row("APE, PAA*(512)", CONTRIBUTIONS[3].small, CONTRIBUTIONS[3].coco),
    Row(
        "APE, PAA*(512), 96 epochs",
        CONTRIBUTIONS[3].small,
        (*CONTRIBUTIONS[3].coco, "--epochs=96", "--schedule.milestones=[64,88]"),
    ),
    Row("APE, PAA*(800)", CONTRIBUTIONS[3].small, (), P800),
    Row(
        "AP, RetinaNet(512), ResNet-101, multi-scale test",
        CONTRIBUTIONS[0].small,
        ("--loss=APLoss", *RESNET_101, *AP_EPOCHS_100, *USUAL_TEST, *NMS_05, *MULTI_SCALE_TEST_500),
    ),
    Row(
        "DR, RetinaNet(800), ResNeXt-101, multi-scale",
        ("--loss=DRLoss", IOU),
        ("--loss=DRLoss", *RETINANET_800, *RESNEXT_101, *MULTI_SCALE_TRAIN, *EPOCHS_18, *MULTI_SCALE_TEST_800),
        A800,
    ),
    Row(
        "Focal, ATSS(800), ResNeXt-101-DCN",
        ("--loss=FocalLoss", ATSS),
        ("--loss=FocalLoss", "--box.weighting=none", *RESNEXT_101, *DCN, *MULTI_SCALE_TRAIN, *USUAL_TEST, *EPOCHS_24),
        A800,
    ),
    Row(
        "GeneralizedFocal, ATSS(800), ResNeXt-101-DCN",
        (*GENERALIZED, "--model.head.bins=8", ATSS),
        (*GENERALIZED, "--model.head.bins=16", *RESNEXT_101, *DCN, *MULTI_SCALE_TRAIN, *USUAL_TEST, *EPOCHS_24),
        A800,
    ),
    Row(
        "APE, PAA*(800), ResNeXt-101-DCN",
        CONTRIBUTIONS[3].small,
        (*RESNEXT_101, *DCN, *MULTI_SCALE_TRAIN, *FROM_P5),
        P800,
    ),
    Row(
        "APE, PAA*(800), Res2Net-101-DCN",
        CONTRIBUTIONS[3].small,
        (*RES2NET_101, *DCN, *MULTI_SCALE_TRAIN, *FROM_P5, "--epochs=36", "--schedule.milestones=[27,33]"),
        P800,
    ),
)

#: Table 9, in the order of the paper. On small data, rows that only differ in backbone or input size share a run.
STATE_OF_THE_ART = tuple(replace(row, paper=index) for index, row in enumerate(_TABLE_9))
