"""Train object detectors by ranking: exact pairwise ranking losses, pair selection, detectors and training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwise.integrations.calibration import calibrate as calibrate

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Loads ``rankwise.calibrate`` on first use, so that importing the package does not load torch."""
    if name == "calibrate":
        from rankwise.integrations.calibration import calibrate

        return calibrate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
