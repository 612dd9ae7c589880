"""Old name of :mod:`rankwise.config.recipe`, kept for one version."""

import warnings

from rankwise.config.recipe import Recipe, parse_recipe  # noqa: F401

warnings.warn("rankwise.training.recipe is now rankwise.config.recipe", FutureWarning, stacklevel=2)
