"""The rows of the table `choose`: losses in use today, each with its best assigner."""

from __future__ import annotations

from rankwise.reproduce.rows import ATSS, IOU, PAA_HEAD, PAA_STAR, RANKSORT, same

#: PAA as published: positives from clusters of the losses.
PAA = (*PAA_HEAD, "--assign.clustering=losses")

CHOOSE = (
    same("Focal, ATSS", "--loss=FocalLoss", ATSS),
    same("Focal, PAA", "--loss=FocalLoss", *PAA),
    same("QualityFocal, ATSS", "--loss=QualityFocalLoss", ATSS),
    same("Varifocal, ATSS", "--loss=VarifocalLoss", ATSS),
    same("Varifocal, PAA", "--loss=VarifocalLoss", *PAA),
    same("MAL, ATSS", "--loss=MALoss", ATSS),
    same("IA-BCE, ATSS", "--loss=IABCELoss", ATSS),
    same(
        "RankSort, PAA",
        *RANKSORT,
        "--assign=PAA",
        "--assign.clustering=losses",
        "--model.postprocess.score_voting=true",
    ),
    same("AP, IoU threshold", "--loss=APLoss", IOU),
    same("PE, ATSS", "--loss=PELoss", ATSS),
    same("APE, ATSS", "--loss=APELoss", ATSS),
    same("APE, PAA*", "--loss=APELoss", *PAA_STAR),
)
