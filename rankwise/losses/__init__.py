"""Losses over the class logits of dense detectors, all with one call: ``loss(logits, labels, quality, image)``."""

from rankwise.losses.base import Loss, Outcome, PositiveBoxes
from rankwise.losses.dr import DRLoss
from rankwise.losses.focal import FocalLoss
from rankwise.losses.generalized_focal import GeneralizedFocalLoss
from rankwise.losses.ghm import GHMLoss
from rankwise.losses.quality_focal import QualityFocalLoss
from rankwise.losses.varifocal import VarifocalLoss

__all__ = [
    "DRLoss",
    "FocalLoss",
    "GHMLoss",
    "GeneralizedFocalLoss",
    "FocalLoss",
    "Loss",
    "Outcome",
    "PositiveBoxes",
    "QualityFocalLoss",
    "VarifocalLoss",
]
