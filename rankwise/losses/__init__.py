"""Losses over the class logits of dense detectors, all called as ``loss(logits, labels, quality, image)``."""

from rankwise.losses.alrp import ALRPLoss
from rankwise.losses.ap import APLoss
from rankwise.losses.ape import APELoss
from rankwise.losses.balances import Rank, ValidNegatives
from rankwise.losses.base import Loss, Outcome, PositiveBoxes
from rankwise.losses.correlation import CorrelationLoss
from rankwise.losses.dr import DRLoss
from rankwise.losses.focal import FocalLoss
from rankwise.losses.generalized_focal import GeneralizedFocalLoss
from rankwise.losses.ghm import GHMLoss
from rankwise.losses.ia_bce import IABCELoss
from rankwise.losses.matching_aware import MALoss
from rankwise.losses.pairs import AdaptivePairs, PositiveVsNegative
from rankwise.losses.pairwise_error import PairwiseError
from rankwise.losses.pe import PELoss
from rankwise.losses.position_supervised import PositionSupervisedLoss
from rankwise.losses.quality_focal import QualityFocalLoss
from rankwise.losses.rankdet import RankDetLoss
from rankwise.losses.ranksort import RankSortLoss
from rankwise.losses.smooth_ap import SmoothAPLoss
from rankwise.losses.varifocal import VarifocalLoss
from rankwise.pairsums import Sigmoid, SigmoidCrossEntropy, Step

__all__ = [
    "ALRPLoss",
    "APELoss",
    "APLoss",
    "AdaptivePairs",
    "CorrelationLoss",
    "DRLoss",
    "FocalLoss",
    "GHMLoss",
    "GeneralizedFocalLoss",
    "IABCELoss",
    "Loss",
    "MALoss",
    "Outcome",
    "PELoss",
    "PairwiseError",
    "PositionSupervisedLoss",
    "PositiveBoxes",
    "PositiveVsNegative",
    "QualityFocalLoss",
    "Rank",
    "RankDetLoss",
    "RankSortLoss",
    "Sigmoid",
    "SigmoidCrossEntropy",
    "SmoothAPLoss",
    "Step",
    "ValidNegatives",
    "VarifocalLoss",
]
