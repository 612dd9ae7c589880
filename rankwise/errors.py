"""Errors that the command line answers with a message and no traceback."""


class DataError(ValueError):
    """Something is wrong with a dataset or an image; the message says what, where, and what to do about it."""


class ModelError(ValueError):
    """Something about a detector's settings, weights or input is wrong; the message says what and what to do."""


class SettingsError(ValueError):
    """Settings that do not go together, or not with this machine or this run."""


class UserError(Exception):
    """A mistake on the command line that the user can put right."""
