"""Collects the annotations of any format and checks them in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from rankwise.data.dataset import ImageRecord
from rankwise.data.folder import Folder
from rankwise.errors import DataError
from rankwise.files.names import counted, escaped, shortened
from rankwise.images.reading import MAX_PIXELS, read_header

#: Boxes that extend beyond the image by less than this many pixels are clipped silently: it is rounding.
TOLERANCE = 1.0
#: Boxes that extend beyond the image by at most this many pixels, or this fraction of its side, are clipped and
#: counted.
CLIPPED_PIXELS, CLIPPED_SHARE = 2.0, 0.02
#: Number of faults that an error lists; the others are counted.
SHOWN = 10


@dataclass(frozen=True)
class Fault:
    """A fault of a dataset.

    Attributes:
        kind: The type of the fault, such as ``"missing image"``, for counting.
        file: The file with the fault, relative to the dataset folder.
        what: What is wrong.
        todo: How to fix it.
        image: The image, if the file covers several.
        box: The box.
    """

    kind: str
    file: str
    what: str
    todo: str
    image: str = ""
    box: str = ""

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.file, self.image) if part)
        return escaped(f"{where}: {f'{self.box} ' if self.box else ''}{self.what}; {self.todo}")


@dataclass(frozen=True)
class Reading:
    """The annotations of one split without faulty items, and all faults.

    Attributes:
        records: The images.
        classes: Names of the classes.
        category_ids: The number of each class in the files of the dataset.
        faults: All faults.
        clipped: Number of boxes that extended slightly beyond their image.
        notes: Other messages for the user.
    """

    records: list[ImageRecord]
    classes: list[str]
    category_ids: list[int]
    faults: list[Fault]
    clipped: int = 0
    notes: list[str] = field(default_factory=list)

    def all_notes(self, split: str) -> list[str]:
        """Messages about the split: the number of clipped boxes, if any, and its notes."""
        many = f"{self.clipped:,} boxes extended beyond their image by a few pixels and were clipped"
        clipped = "1 box extended beyond its image by a few pixels and was clipped" if self.clipped == 1 else many
        return [f"{split}: {note}" for note in ([clipped] if self.clipped else []) + self.notes]


def refuse(faults: Sequence[Fault], folder: str, split: str) -> None:
    """Raises a DataError with the first faults and their number."""
    lines = [f"{folder}: the {split} split has {counted(len(faults), 'fault')}:"]
    lines += [f"  {fault}" for fault in faults[:SHOWN]]
    if len(faults) > SHOWN:
        lines.append(f"  … and {len(faults) - SHOWN:,} more: rankwise data check {folder} lists them all")
    lines.append("Fix them, or set --data.skip_bad (in Python skip_bad=True) to skip such images and boxes.")
    raise DataError("\n".join(lines))


def left_out(faults: Sequence[Fault], split: str) -> str:
    """The message about skipped items."""
    kinds = ", ".join(f"{count:,} × {kind}" for kind, count in Counter(fault.kind for fault in faults).most_common())
    return f"{split}: {counted(len(faults), 'fault')} skipped or clipped ({kinds})"


def labels_of(names: dict[int, str], file: str, faults: list[Fault]) -> tuple[list[str], list[int], dict[int, int]]:
    """The class names in the order of their numbers, these numbers, and the label of each number.

    Duplicate names are merged and added to ``faults``.
    """
    first: dict[str, int] = {}
    for number in sorted(names):
        name = names[number]
        if first.setdefault(name, number) != number:
            what = f"the classes {first[name]} and {number} are both called {shortened(name)}"
            faults.append(Fault("duplicate name", file, what, "give each a unique name, or merge them"))
    labels = {name: label for label, name in enumerate(first)}
    return list(first), list(first.values()), {number: labels[name] for number, name in names.items()}


@dataclass(frozen=True)
class _Image:
    image_id: int
    name: str
    path: Path
    width: int
    height: int
    file: str
    label: str


@dataclass
class AnnotationCollector:
    """Collects images and boxes of one split while its files are read.

    ``box_word`` is the name of a box in messages: "annotation", "object" or "line".
    """

    folder: Folder
    box_word: str
    max_pixels: int = MAX_PIXELS
    faults: list[Fault] = field(default_factory=list)
    clipped: int = 0
    _by_end: dict[Path, str] = field(default_factory=dict)  # images found by the end of their path, and the given name
    _images: list[_Image] = field(default_factory=list)
    _boxes: list[tuple[float, float, float, float]] = field(default_factory=list)
    _rest: list[tuple[int, int, int, bool, float]] = field(default_factory=list)  # image, number, label, crowd, area

    def add_fault(self, kind: str, file: str, what: str, todo: str, image: str = "", box: str = "") -> None:
        """Adds a :class:`Fault`."""
        self.faults.append(Fault(kind, file, what, todo, image, box))

    def find_image(self, name: object, base: Path, file: str, image: str = "") -> Path | None:
        """The image file of a name from ``file``, relative to ``base``; None and a fault if it is unusable.

        ``image`` names the image in messages.
        """
        if not isinstance(name, str) or not name or "\0" in name:
            self.add_fault("bad entry", file, "has no usable file name", "name the image file", image)
            return None
        path = self.folder.locate(name, base)
        if path is not None:
            return path
        path = self.folder.locate_by_end(name, base)
        if path is not None and path not in self._by_end:
            self._by_end[path] = name
            return path
        if path is not None:
            names = f"the names {shortened(self._by_end[path])} and {shortened(name)}"
            what = f"{names} both match the end of the path {self.folder.relative(path)}"
            self.add_fault("missing image", file, what, "name the images relative to the dataset folder", image)
        elif self.folder.leads_out(name, base):
            what = f"the file name {shortened(name)} leads out of the folder"
            todo = "put the image into the dataset folder and name it relative to that"
            self.add_fault("path leads out", file, what, todo, image)
        else:
            what = f"there is no file {shortened(name)} in {self.folder.relative(base)}/"
            self.add_fault("missing image", file, what, "put the image there or remove its entry", image)
        return None

    def reading(self, classes: list[str], category_ids: list[int], notes: Sequence[str] = ()) -> Reading:
        """The result: records, classes with their numbers in the files of the dataset, faults and notes."""
        records = self.records()
        said = list(notes)
        if self._by_end:
            path, name = next(iter(self._by_end.items()))
            said.append(
                f"{len(self._by_end):,} images were found by the end of their path, such as {escaped(name)!r} as "
                f"{escaped(self.folder.relative(path))}"
            )
        times = Counter(image.path for image in self._images)
        if twice := [path for path, count in times.items() if count > 1]:
            name = escaped(self.folder.relative(twice[0]))
            said.append(f"{counted(len(twice), 'image')} listed more than once, such as {name}: every entry is used")
        return Reading(records, classes, category_ids, self.faults, self.clipped, said)

    def add_image(self, image_id: int, path: Path, width: int, height: int, file: str, label: str = "") -> int | None:
        """Adds an image; if width or height is 0, the size is read from the file.

        Returns the index for :meth:`add_box`, or None if the image is unusable. ``label`` names the image in messages
        if the annotation file covers several.
        """
        if width <= 0 or height <= 0:
            try:
                header = read_header(path, self.max_pixels)
            except DataError as error:
                self.faults.append(unreadable(self.folder.relative(path), path, error))
                return None
            width, height = header.width, header.height
        name = escaped(self.folder.relative(path))
        self._images.append(_Image(image_id, name, path, width, height, file, label))
        return len(self._images) - 1

    def size(self, image: int) -> tuple[int, int]:
        """Width and height of an added image."""
        return self._images[image].width, self._images[image].height

    def add_box(
        self,
        image: int,
        number: int,
        box: tuple[float, float, float, float],
        label: int,
        crowd: bool = False,
        area: float = 0.0,
    ) -> None:
        """Adds a box of an image, xyxy in pixels; ``number`` names it in messages.

        An ``area`` of 0 stands for the area of the box.
        """
        self._boxes.append(box)
        self._rest.append((image, number, label, crowd, area))

    def records(self) -> list[ImageRecord]:
        """The images with their valid boxes; invalid boxes become faults."""
        boxes = np.array(self._boxes, np.float64).reshape(-1, 4)
        owner = np.array([row[0] for row in self._rest], np.int64)
        sizes = np.array([(image.width, image.height) for image in self._images], np.float64).reshape(-1, 2)
        clipped = np.clip(boxes, 0, np.tile(sizes[owner], 2))
        with np.errstate(invalid="ignore", over="ignore"):
            sides = boxes[:, 2:] - boxes[:, :2]
            finite = np.asarray(np.isfinite(boxes).all(axis=1))
            empty = np.asarray(finite & ~np.all(sides > 0, axis=1))
            beyond = np.max(np.abs(boxes - clipped), axis=1, initial=0)
            seen = np.asarray(np.all(clipped[:, 2:] - clipped[:, :2] > 0, axis=1))
            allowed = np.maximum(CLIPPED_PIXELS, CLIPPED_SHARE * np.tile(sizes[owner], 2))
            little = np.asarray(np.all(np.abs(boxes - clipped) <= allowed, axis=1))
            outside = finite & ~empty & (~little | ~seen)
        if len(boxes) and self.box_word != "line" and boxes.max() <= 1:  # lines are relative, and were scaled
            what = (
                f"{counted(len(boxes), 'box', 'boxes')}, all within the first pixel: their corners look like fractions"
            )
            self.add_fault("boxes as fractions", self._images[owner[0]].file, what, "give them in pixels")
        if self.box_word == "annotation" and outside.any() and np.all((boxes[:, :2] < sides) & (sides <= sizes[owner])):
            what = f"all {len(boxes):,} boxes look like left, top, right, bottom"
            self.add_fault(
                "boxes as corners", self._images[owner[0]].file, what, "COCO has left, top, width, height: convert them"
            )
        for row in np.flatnonzero(~finite | empty | outside):
            self._box_fault(int(row), boxes[row], bool(finite[row]), bool(empty[row]), bool(seen[row]))
        self.clipped = int((finite & ~empty & ~outside & (beyond >= TOLERANCE)).sum())
        good = np.flatnonzero(finite & ~empty & seen)
        good = good[np.argsort(owner[good], kind="stable")]
        ends = np.searchsorted(owner[good], np.arange(len(self._images) + 1))
        labels = np.array([row[2] for row in self._rest], np.int64)[good]
        crowd = np.array([row[3] for row in self._rest], bool)[good]
        area = np.array([row[4] for row in self._rest], np.float64)[good]
        kept = clipped[good]
        area = np.where(area > 0, area, (kept[:, 2] - kept[:, 0]) * (kept[:, 3] - kept[:, 1]))
        kept = kept.astype(np.float32)
        records = []
        for image, (first, last) in zip(self._images, pairwise(ends), strict=True):
            rows = slice(first, last)
            columns = (column[rows] for column in (kept, labels, crowd, area))
            records.append(ImageRecord(image.image_id, image.name, image.path, image.width, image.height, *columns))
        return records

    def _box_fault(self, row: int, box: np.ndarray, finite: bool, empty: bool, seen: bool) -> None:
        image, number, *_ = self._rest[row]
        owner = self._images[image]
        corners = ", ".join(f"{value:g}" for value in box)
        if not finite:
            kind, what, todo = "not a number", f"has corners that are not numbers ({corners})", "correct or remove it"
        elif empty:
            kind = "box without area"
            what = f"has no area: it is {box[2] - box[0]:g} wide and {box[3] - box[1]:g} high"
            todo = "correct or remove it"
        else:
            kind = "box outside the image"
            how = "sticks out of" if seen else "lies outside"
            what = f"({corners}) {how} the image of {owner.width} × {owner.height}"
            todo = "correct it, or check that the annotations belong to this image"
        self.add_fault(kind, owner.file, what, todo, owner.label, f"{self.box_word} {number}")


def unreadable(name: str, path: Path, error: DataError) -> Fault:
    """The fault of an unreadable image."""
    what, _, todo = str(error).removeprefix(f"{escaped(path)}: ").partition("; ")
    kind = "image too large" if "pixels and the limit" in what else "unreadable image"
    return Fault(kind, name, what, todo)
