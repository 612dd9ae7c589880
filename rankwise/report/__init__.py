"""HTML reports of runs: recipe, curves, metrics, errors and images on one page."""

from rankwise.report.error_types import Errors, ErrorType, Kind, ap50_gains, classify
from rankwise.report.page import report_on, write_report
from rankwise.report.runs import ReportError

__all__ = ["ErrorType", "Errors", "Kind", "ReportError", "ap50_gains", "classify", "report_on", "write_report"]
