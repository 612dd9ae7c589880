"""The one error of bad data."""


class DataError(ValueError):
    """Something is wrong with a dataset; the message says what, where, and what to do about it."""
