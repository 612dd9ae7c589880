"""The public names of the package, imported when one of them is first used."""

# ruff: noqa: F401 - re-exported by the package

from rankwise.evaluation.calibration import Calibration
from rankwise.evaluation.coco import Curves, Evaluation, calibrated, evaluate
from rankwise.evaluation.correlation import Correlation, correlate, localised, localized
from rankwise.evaluation.drawing import Seen, contact_sheet, draw_detections
from rankwise.evaluation.matching import Matches, match
from rankwise.evaluation.reliability import Reliability, ReliabilityCheck, check_reliability
from rankwise.evaluation.results import read_results, results_json, write_results
from rankwise.evaluation.tables import DetectionTable, ObjectTable, detection_table, object_table
from rankwise.evaluation.thresholds import Sweep, Threshold, Thresholds, best_thresholds, sweep, with_intervals
