"""Old name of :mod:`rankwise.criterion`, kept for one version."""

import warnings

from rankwise.criterion import Criterion, Losses  # noqa: F401

warnings.warn("rankwise.training.criterion is now rankwise.criterion", FutureWarning, stacklevel=2)
