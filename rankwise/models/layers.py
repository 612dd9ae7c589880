"""The one building block that neck and head share."""

from __future__ import annotations

import math

from torch import nn


def normalisation(kind: str, channels: int) -> nn.Module:
    """A normalisation by its name in the settings: none, gn or bn. Groups are 32, or fewer where 32 do not divide."""
    if kind == "gn":
        return nn.GroupNorm(math.gcd(32, channels), channels)
    return nn.BatchNorm2d(channels) if kind == "bn" else nn.Identity()
