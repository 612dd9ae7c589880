"""Old name of :mod:`rankwise.types`, kept for one version."""

import warnings

from rankwise.types import Assignment, Batch, Detections, Predictions, Target  # noqa: F401

warnings.warn("rankwise.structures is now rankwise.types", FutureWarning, stacklevel=2)
