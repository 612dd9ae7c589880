"""What the splits of a dataset are for, by their names."""

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
    """The name under which a folder has a split: ``val`` may be called valid or val2017, a lone split is ``train``."""
    matches = matching_splits(split, available)
    if len(matches) > 1:
        raise DataError(f"there are several {split} splits: {', '.join(matches)}; name one of them")
    return matches[0] if matches else None


def matching_splits(split: str, available: Sequence[str]) -> list[str]:
    """The names in a folder that a split may go by; an exact name is the only one."""
    if split in available:
        return [split]
    names = _OTHER_NAMES.get(split, (split,))
    matches = [name for name in available if _without_year(name) in names]
    # A lone split is what there is to train on, unless it says that it is for something else.
    lone = split == "train" and len(available) == 1 and role(available[0]) is None
    return list(available) if not matches and lone else matches


def role(name: str) -> str | None:
    """What a split is for by its name; None if the name does not say."""
    plain = _without_year(name)
    return next((role for role, names in _OTHER_NAMES.items() if plain in names), None)


def _without_year(name: str) -> str:
    return re.sub(r"[-_]?\d{4}$", "", name.lower())
