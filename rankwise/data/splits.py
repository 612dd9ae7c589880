"""Splits of a dataset and their roles by name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankwise.errors import DataError

_OTHER_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}


def resolve_split(split: str, available: Sequence[str]) -> str | None:
    """The actual name of a split: ``val`` may be called valid or val2017, and a single split is ``train``."""
    matches = matching_splits(split, available)
    if len(matches) > 1:
        raise DataError(f"there are several {split} splits: {', '.join(matches)}; choose one of them")
    return matches[0] if matches else None


def matching_splits(split: str, available: Sequence[str]) -> list[str]:
    """The names of a folder that match a split; an exact match is the only one."""
    if split in available:
        return [split]
    names = _OTHER_NAMES.get(split, (split,))
    matches = [name for name in available if _without_year(name) in names]
    # A single split is used for training, unless its name says otherwise.
    lone = split == "train" and len(available) == 1 and role(available[0]) is None
    return list(available) if not matches and lone else matches


def role(name: str) -> str | None:
    """The role of a split by its name; None if unknown."""
    plain = _without_year(name)
    return next((role for role, names in _OTHER_NAMES.items() if plain in names), None)


def _without_year(name: str) -> str:
    return re.sub(r"[-_]?\d{4}$", "", name.lower())
