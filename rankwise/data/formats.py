"""Opening a folder of images and boxes, whatever its format."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from rankwise.data.coco import CocoSource
from rankwise.data.collector import Reading
from rankwise.data.dataset import DetectionDataset, ImageRecord, Transform
from rankwise.data.faults import left_out, refuse
from rankwise.data.folder import Folder
from rankwise.data.voc import VocSource
from rankwise.data.yolo import YoloSource, yaml_file
from rankwise.errors import DataError
from rankwise.images.reading import MAX_PIXELS

#: Part of a folder without validation split that is kept for validation.
HELD_OUT = 0.1

_OTHER_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}


class Source(Protocol):
    """A folder in one of the formats."""

    name: str
    folder: Folder

    @property
    def splits(self) -> list[str]: ...
    def read(self, split: str) -> Reading: ...


def find_source(folder: str | Path, max_pixels: int = MAX_PIXELS) -> Source:
    """Find out the format of a folder.

    Args:
        folder: The folder.
        max_pixels: Images with more pixels are refused.

    Raises:
        DataError: When it is in none of the formats.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"{root}: there is no such folder; name the folder of a dataset")
    inside = Folder(root)
    kinds: list[type[CocoSource] | type[YoloSource] | type[VocSource]] = [CocoSource, VocSource]
    if yaml_file(root) is not None:
        kinds.insert(1, YoloSource)
    for kind in kinds:
        source = kind(inside, max_pixels)
        if source.splits:
            return source
    raise DataError(
        f"{root}: is in none of the known formats; expected annotations/instances_<split>.json or "
        "<split>/_annotations.coco.json (COCO), data.yaml (YOLO), or XML files in Annotations/, in annotations/ or "
        "beside the images (Pascal VOC)"
    )


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
    lone = split == "train" and len(available) == 1 and _role(available[0]) is None
    return list(available) if not matches and lone else matches


def _role(name: str) -> str | None:
    """What a split is for by its name; None if the name does not say."""
    plain = _without_year(name)
    return next((role for role, names in _OTHER_NAMES.items() if plain in names), None)


def _without_year(name: str) -> str:
    return re.sub(r"[-_]?\d{4}$", "", name.lower())


def open_dataset(
    folder: str | Path,
    split: str = "train",
    skip_bad: bool = False,
    classes: Sequence[str] | None = None,
    transform: Transform | None = None,
    max_pixels: int = MAX_PIXELS,
    train: str = "train",
    val: str = "val",
) -> DetectionDataset:
    """One split of a folder in COCO's, Pascal VOC's or YOLO's format.

    A folder without validation split gives a tenth of its training images for it, the same ones each time, and says so
    in the dataset's ``notes``. All is checked but the pixels: those show when an image is read.

    Args:
        folder: The folder; its format is found out.
        split: ``"train"``, ``"val"``, ``"test"`` or another name that the folder has; ``"all"`` for all images of a
            folder with one split.
        skip_bad: Leave faulty images and boxes out, and count them in ``notes``, instead of stopping at them.
        classes: The classes that the dataset must have, in the order of their labels: those of the training split when
            another one is opened.
        transform: Applied to each image and its target.
        max_pixels: Images with more pixels are refused.
        train: The split that is trained on, from which images are kept if they have to be.
        val: The split that is validated on. Images are kept for ``"val"`` alone: a split of another name must be there.

    Raises:
        DataError: When there is no such split, or something is wrong with it.
    """
    source = find_source(folder, max_pixels)
    whole = split == "all" and len(source.splits) == 1  # nothing kept for validation
    name = source.splits[0] if whole else resolve_split(split, source.splits)
    keeps = not whole and val == "val" and not matching_splits(val, source.splits)
    held_out = keeps and split == "val"
    if held_out:
        name = resolve_split(train, source.splits)
    if name is None:
        raise DataError(
            f"{folder}: has no {split} split, only {', '.join(source.splits)}; add its annotations, or name another "
            f"split by --data.{'val' if split == val else 'train'}"
        )
    reading = source.read(name)
    if reading.faults and not skip_bad:
        refuse(reading.faults, str(folder), name)
    notes = [left_out(reading.faults, name)] if reading.faults else []
    notes += reading.clipped_note(name)
    records = reading.records
    if held_out or (keeps and matching_splits(train, source.splits) == [name]):
        training, validation = hold_out(records)
        notes.append(
            f"{folder} has no validation split: {len(validation):,} of its {len(records):,} images are kept for "
            "validation, chosen by their names, the same ones each time (--split all evaluates on all of them)"
        )
        records = validation if held_out else training
    if not records:
        raise DataError(f"{folder}: no images are left in the {split} split; rankwise data check {folder} says why")
    if classes is not None:
        reading, records = _with_classes(reading, records, list(classes), f"{folder}: {name}")
    return DetectionDataset(
        records, reading.classes, reading.category_ids, transform, notes, skip_bad=skip_bad, max_pixels=max_pixels
    )


def hold_out(records: Sequence[ImageRecord]) -> tuple[list[ImageRecord], list[ImageRecord]]:
    """Split images 90 to 10 by a hash of their names: at random, but the same way each time."""

    def key(index: int) -> bytes:
        return hashlib.sha256(records[index].name.encode(errors="surrogateescape")).digest()

    count = max(1, round(len(records) * HELD_OUT)) if len(records) > 1 else 0
    chosen = set(sorted(range(len(records)), key=key)[:count])
    training = [record for index, record in enumerate(records) if index not in chosen]
    return training, [records[index] for index in sorted(chosen)]


def shared_images(one: Sequence[ImageRecord], other: Sequence[ImageRecord]) -> list[str]:
    """Names of the images that are in both, by their files."""
    folders: dict[Path, str] = {}  # where each folder really is: asked once, there may be many images

    def file(record: ImageRecord) -> tuple[str, str] | None:
        if record.path is None:
            return None
        folder = record.path.parent
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        return folders[folder], record.path.name

    files = {file(record) for record in one} - {None}
    return [record.name for record in other if file(record) in files]


def class_mismatch(where: str, found: Sequence[str], wanted: Sequence[str]) -> str | None:
    """What to say of a split whose classes are not those of the training split; None if they are, in any order."""
    if set(found) == set(wanted):
        return None
    missing, unknown = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    return (
        f"{where} has the classes {', '.join(found)}, but training has {', '.join(wanted)}"
        + (f" (missing here: {', '.join(missing)})" if missing else "")
        + (f" (unknown there: {', '.join(unknown)})" if unknown else "")
        + "; give both the same names"
    )


def _with_classes(
    reading: Reading, records: list[ImageRecord], classes: list[str], where: str
) -> tuple[Reading, list[ImageRecord]]:
    """The same with labels in the order of these classes."""
    mismatch = class_mismatch(where, reading.classes, classes)
    if mismatch:
        raise DataError(mismatch)
    if reading.classes == classes:
        return reading, records
    order = [reading.classes.index(name) for name in classes]  # new label -> old one
    new = np.argsort(np.array(order))
    records = [replace(record, labels=new[record.labels].astype(np.int64)) for record in records]
    return replace(reading, classes=classes, category_ids=[reading.category_ids[old] for old in order]), records
