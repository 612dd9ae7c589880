"""Assigners: which samples are positive, and for which object. One assigner per file, all called the same way."""

from rankwise.assign.atss import ATSS
from rankwise.assign.base import Assigner
from rankwise.assign.iou_threshold import IoUThreshold
from rankwise.assign.paa import PAA

__all__ = ["ATSS", "PAA", "Assigner", "IoUThreshold"]
