"""Evaluation: COCO metrics, correlation of score and IoU, calibration, thresholds and figures."""

# ruff: noqa: F403, F405 - for type checkers; programs import a name when it is first used

from typing import TYPE_CHECKING

from rankwise.lazily import lazily

if TYPE_CHECKING:
    from rankwise.evaluation.public import *

__all__ = [
    "Calibration",
    "Correlation",
    "Curves",
    "DetectionTable",
    "Evaluation",
    "Matches",
    "ObjectTable",
    "Reliability",
    "ReliabilityCheck",
    "Seen",
    "Sweep",
    "Threshold",
    "Thresholds",
    "best_thresholds",
    "calibrated",
    "check_reliability",
    "contact_sheet",
    "correlate",
    "detection_table",
    "draw_detections",
    "evaluate",
    "localized",
    "match",
    "object_table",
    "read_results",
    "results_json",
    "sweep",
    "with_intervals",
    "write_results",
]

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, [*__all__, "localised"])  # the spelling of earlier versions
