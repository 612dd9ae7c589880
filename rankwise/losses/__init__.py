"""Losses over the class logits of dense detectors, all with one call: ``loss(logits, labels, quality, image)``."""

from rankwise.losses.base import Loss, Outcome, PositiveBoxes
from rankwise.losses.focal import FocalLoss

__all__ = ["FocalLoss", "Loss", "Outcome", "PositiveBoxes"]
