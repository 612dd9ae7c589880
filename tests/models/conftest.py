"""Fixtures shared by the tests of detectors."""

from __future__ import annotations

import pytest
from small_detectors import KINDS, lively, small

from rankwise.models import Detector, DetectorSettings, atss


@pytest.fixture(params=list(KINDS))
def settings(request: pytest.FixtureRequest) -> DetectorSettings:
    """Each kind of detector in turn."""
    return KINDS[request.param]()


@pytest.fixture
def detector() -> Detector:
    """An ATSS detector that finds something."""
    return lively(small(atss()))
