"""Object detectors trained by ranking: exact pairwise ranking losses, pair selection, detectors and their training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwise.integrations.calibration import calibrate as calibrate

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``rankwise.calibrate``, loaded when it is asked for: importing the package alone loads no torch."""
    if name == "calibrate":
        from rankwise.integrations.calibration import calibrate

        return calibrate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
