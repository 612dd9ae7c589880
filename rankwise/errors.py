"""Errors that the command line answers with a message and no traceback."""

from __future__ import annotations

import sys


class DataError(ValueError):
    """Something is wrong with a dataset or an image; the message says what, where, and what to do about it."""


class ModelError(ValueError):
    """Something about a detector's settings, weights or input is wrong; the message says what and what to do."""


class SettingsError(ValueError):
    """Settings that do not go together, or not with this machine or this run."""


class MeetingError(SettingsError):
    """Processes did not find each other; every one of them says whom it waited for."""


class UserError(Exception):
    """A mistake on the command line that the user can put right."""


def user_errors() -> list[type[BaseException]]:
    """What is answered by a message alone. Imported late: `rankwise --help` must be quick."""
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
