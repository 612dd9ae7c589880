"""A test process that dies ends the whole run: pytest-xdist would wait for ever for the files it had been given."""

from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport, sched: Any) -> None:
    """Reports the test as failed and stops."""
    sched.config.hook.pytest_runtest_logreport(report=report)
    pytest.exit(f"a test process died in {crashitem}: the remaining tests are not run", returncode=1)
