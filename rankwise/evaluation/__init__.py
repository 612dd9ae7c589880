"""Measure a detector: COCO's numbers, correlation of score and IoU, thresholds, figures and pictures."""

from rankwise.evaluation.coco import Curves, Evaluation, evaluate
from rankwise.evaluation.correlation import Correlation, correlate, localised
from rankwise.evaluation.drawing import Seen, contact_sheet, draw_detections, draw_truth
from rankwise.evaluation.matching import Matches, match
from rankwise.evaluation.results import read_results, results_json, write_results
from rankwise.evaluation.tables import DetectionTable, ObjectTable, detection_table, object_table
from rankwise.evaluation.thresholds import Sweep, Threshold, Thresholds, best_thresholds, sweep

__all__ = [
    "Correlation",
    "Curves",
    "DetectionTable",
    "Evaluation",
    "Matches",
    "ObjectTable",
    "Seen",
    "Sweep",
    "Threshold",
    "Thresholds",
    "best_thresholds",
    "contact_sheet",
    "correlate",
    "detection_table",
    "draw_detections",
    "draw_truth",
    "evaluate",
    "localised",
    "match",
    "object_table",
    "read_results",
    "results_json",
    "sweep",
    "write_results",
]
