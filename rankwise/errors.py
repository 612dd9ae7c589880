"""Errors that the command line reports by a message, without a traceback."""


class UserError(Exception):
    """An error that the user can fix; the message says what is wrong, where, and what to do."""


class DataError(UserError, ValueError):
    """A dataset or an image is invalid."""


class ModelError(UserError, ValueError):
    """The settings, weights or input of a detector are invalid."""


class SettingsError(UserError, ValueError):
    """Settings that are incompatible with each other, with this machine or with this run."""


class RendezvousError(SettingsError):
    """Processes could not connect; every process says which ones it waited for."""
