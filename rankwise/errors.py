"""Errors that the command line reports by a message, without a traceback."""

from __future__ import annotations

import sys


class DataError(ValueError):
    """A dataset or an image is invalid; the message says what is wrong, where, and what to do."""


class ModelError(ValueError):
    """The settings, weights or input of a detector are invalid; the message says what to do."""


class SettingsError(ValueError):
    """Settings that are incompatible with each other, with this machine or with this run."""


class RendezvousError(SettingsError):
    """Processes could not connect; every process says which ones it waited for."""


class UserError(Exception):
    """An error on the command line that the user can fix."""


def user_errors() -> list[type[BaseException]]:
    """All errors reported by a message only. Imported late to keep `rankwise --help` fast."""
    errors: list[type[BaseException]] = [UserError, OSError]
    for module, names in {
        "rankwise.errors": ["DataError", "ModelError", "SettingsError"],
        "rankwise.files.parsing": ["ParseError"],
        "rankwise.files.writing": ["WriteError"],
        "rankwise.report.runs": ["ReportError"],
        "rankwise.reproduce.plans": ["ReproduceError"],
        "rankwise.training.checkpoint": ["CheckpointError"],
        "rankwise.training.diagnostics": ["TrainingStopped"],
    }.items():
        if module in sys.modules:
            errors += [getattr(sys.modules[module], name) for name in names]
    return errors
