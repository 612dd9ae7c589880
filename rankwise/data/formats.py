"""Opens datasets of any supported format."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankwise.data.collector import Reading, left_out, refuse
from rankwise.data.dataset import DetectionDataset, ImageRecord, Transform
from rankwise.data.finding import find_source
from rankwise.data.splits import matching_splits, resolve_split
from rankwise.errors import DataError
from rankwise.files.names import join_names
from rankwise.images.reading import MAX_PIXELS

#: Fraction of the images held out if there is no validation split.
HELD_OUT = 0.1


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
    """Opens one split of a dataset in COCO, Pascal VOC or YOLO format.

    Without a validation split, a tenth of the training images is held out, always the same ones, and ``notes`` says so.
    Everything is checked except the pixels, which are checked when an image is read.

    Args:
        folder: The folder, or one or two folders above it, its format detected automatically; or a ``data.yaml`` or
            COCO file.
        split: ``"train"``, ``"val"``, ``"test"`` or another split of the folder; ``"all"`` for all images of a folder
            with a single split.
        skip_bad: Skip faulty images and boxes and count them in ``notes``, instead of raising an error.
        classes: The required classes, in the order of their labels: those of the training split when another split is
            opened.
        transform: Applied to each image and its target.
        max_pixels: Images with more pixels are refused.
        train: The training split, from which images are held out if necessary.
        val: The validation split. Images are only held out for ``"val"``; a split of another name must exist.

    Raises:
        DataError: If the split does not exist or is invalid.
    """
    source = find_source(folder, max_pixels)
    whole = split == "all" and len(source.splits) == 1  # nothing held out
    name = source.splits[0] if whole else resolve_split(split, source.splits)
    keeps = not whole and val == "val" and not matching_splits(val, source.splits)
    held_out = keeps and split == "val"
    if held_out:
        name = resolve_split(train, source.splits)
    if name is None:
        raise DataError(
            f"{folder}: has no {split} split, only {', '.join(source.splits)}; add its annotations, or choose another "
            f"split with {'--data.val' if split == val else '--data.train' if split == train else '--split'}"
        )
    reading = source.read(name)
    if reading.faults and not skip_bad:
        refuse(reading.faults, str(folder), name)
    notes = [left_out(reading.faults, name)] if reading.faults else []
    notes += reading.all_notes(name)
    if source.folder.root != Path(folder) and Path(folder).is_dir():
        notes.append(f"the dataset was found in {source.folder.root}")
    records = reading.records
    if held_out or (keeps and matching_splits(train, source.splits) == [name]):
        training, validation = hold_out(records)
        notes.append(
            f"{folder} has no validation split: {len(validation):,} of its {len(records):,} images are held out for "
            f"validation, always the same ones, chosen by their names (--split all evaluates on all images)"
        )
        records = validation if held_out else training
    if not records:
        raise DataError(f"{folder}: no usable images in the {split} split; rankwise data check {folder} says why")
    if classes is not None:
        if missing := [name for name in classes if name not in reading.classes]:
            notes.append(f"{name}: no objects of the classes {join_names(missing)}")
        reading, records = _with_classes(reading, records, list(classes), f"{folder}: {name}")
    return DetectionDataset(
        records, reading.classes, reading.category_ids, transform, notes, skip_bad=skip_bad, max_pixels=max_pixels
    )


def hold_out(records: Sequence[ImageRecord]) -> tuple[list[ImageRecord], list[ImageRecord]]:
    """Splits images 90 to 10 by a hash of their names: random, but reproducible."""

    def key(index: int) -> bytes:
        return hashlib.sha256(records[index].name.encode(errors="surrogateescape")).digest()

    count = max(1, round(len(records) * HELD_OUT)) if len(records) > 1 else 0
    chosen = set(sorted(range(len(records)), key=key)[:count])
    training = [record for index, record in enumerate(records) if index not in chosen]
    return training, [records[index] for index in sorted(chosen)]


def shared_images(one: Sequence[ImageRecord], other: Sequence[ImageRecord]) -> list[str]:
    """Names of the images that are in both datasets, compared by file."""
    folders: dict[Path, str] = {}  # resolves each folder only once, because there may be many images

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
    """The message about a split with classes that the training split does not have; None if it has none.

    The order may differ, and classes may be missing: other images need not show all of them.
    """
    if set(found) <= set(wanted):
        return None
    missing, unknown = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    return (
        f"{where} has the classes {join_names(found)}, but training has {join_names(wanted)}"
        + (f" (missing here: {join_names(missing)})" if missing else "")
        + (f" (unknown there: {join_names(unknown)})" if unknown else "")
        + "; use the same names in both"
    )


def _with_classes(
    reading: Reading, records: list[ImageRecord], classes: list[str], where: str
) -> tuple[Reading, list[ImageRecord]]:
    """The same records with labels in the order of these classes."""
    mismatch = class_mismatch(where, reading.classes, classes)
    if mismatch:
        raise DataError(mismatch)
    if reading.classes == classes:
        return reading, records
    new = np.array([classes.index(name) for name in reading.classes], np.int64)  # old label -> new one
    records = [replace(record, labels=new[record.labels]) for record in records]
    ids = dict(zip(reading.classes, reading.category_ids, strict=True))
    free = itertools.count(max(reading.category_ids, default=0) + 1)
    numbers = [ids[name] if name in ids else next(free) for name in classes]
    return replace(reading, classes=classes, category_ids=numbers), records
