"""Old name of :mod:`rankwise.config.settings`, kept for one version."""

import warnings

from rankwise.config.settings import (  # noqa: F401
    DataSettings,
    OptimizerSettings,
    ScheduleSettings,
    ShapesSettings,
    TrainSettings,
)
from rankwise.criterion import BoxSettings  # noqa: F401

warnings.warn("rankwise.training.settings is now rankwise.config.settings", FutureWarning, stacklevel=2)
