"""Checks a dataset: its contents and all its faults."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankwise.data.collector import Fault, unreadable
from rankwise.data.dataset import ImageRecord, wrong_size
from rankwise.data.finding import Source, find_source
from rankwise.data.folder import Folder
from rankwise.data.formats import class_mismatch, shared_images
from rankwise.data.loader import usable_cores
from rankwise.data.splits import matching_splits
from rankwise.errors import DataError
from rankwise.files.names import counted, escaped, short_name
from rankwise.files.parsing import ParseError, read_bytes
from rankwise.images.reading import MAX_PIXELS, read_image

#: Edges of the histogram of box sizes (square root of the area in pixels). COCO's medium size is 32 to 96.
SIZE_EDGES = (0, 8, 16, 32, 64, 96, 128, 256, 512, 1024)

#: Boxes below this many pixels are probably annotation mistakes.
SUSPICIOUS = 2


@dataclass(frozen=True)
class SplitReport:
    """The contents of one split, without faulty items.

    Attributes:
        name: Name of the split.
        images: Number of images.
        empty: Number of images without boxes.
        boxes: Number of boxes, without crowd boxes.
        crowds: Number of crowd boxes.
        classes: Number of boxes per class, without crowd boxes.
        widths: Smallest and largest width of the images.
        heights: Smallest and largest height.
        sizes: Number of boxes between neighboring ``SIZE_EDGES``; the last bin has no upper limit.
    """

    name: str
    images: int
    empty: int
    boxes: int
    crowds: int
    classes: dict[str, int]
    widths: tuple[int, int]
    heights: tuple[int, int]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class CheckReport:
    """The contents and faults of a dataset.

    Attributes:
        folder: The folder of the dataset.
        format: The detected format; empty if none was detected.
        splits: The contents of each split.
        sizes: Like ``sizes`` of a split, with each image counted once even if it is in several splits.
        faults: All faults.
        notes: Other messages for the user.
    """

    folder: Path
    format: str = ""
    splits: list[SplitReport] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(
    folder: str | Path,
    max_pixels: int = MAX_PIXELS,
    progress: Callable[[int, int], None] | None = None,
) -> CheckReport:
    """Reads a whole dataset, decodes every image, and reports contents and faults.

    Args:
        folder: The folder; its format is detected automatically.
        max_pixels: Images with more pixels are faults.
        progress: Called with the number of decoded images and the total, for each split.
    """
    root = Path(folder)
    try:
        source = find_source(root, max_pixels)
    except DataError as error:
        return CheckReport(root, faults=[_unusable(error)])
    report = CheckReport(root, source.name)
    classes: dict[str, list[str]] = {}
    records: dict[str, list[ImageRecord]] = {}
    content: dict[str, list[bytes]] = {}
    for split in source.splits:
        try:
            reading = source.read(split)
        except DataError as error:
            report.faults.append(_unusable(error))
            continue
        known = set(report.faults)  # a file shared by several splits is faulty in each
        report.faults.extend(fault for fault in reading.faults if fault not in known)
        report.notes.extend(reading.all_notes(split))
        faults, content[split] = _decode(reading.records, source.folder, max_pixels, progress)
        report.faults.extend(faults)
        report.notes.extend(f"{split}: {note}" for note in _doubtful(reading.records))
        report.splits.append(_describe(split, reading.records, reading.classes))
        classes[split], records[split] = reading.classes, reading.records
    once = {record.path: record for split_records in records.values() for record in split_records}
    report = replace(report, sizes=_sizes(list(once.values())))
    if source.folder.root != root and root.is_dir():
        report.notes.append(f"The dataset was found in {source.folder.root}.")
    _compare_classes(source, classes, report)
    _compare_images(source, records, content, report)
    if not matching_splits("train", source.splits):
        what = f"there is no training split, only {', '.join(source.splits)}"
        todo = "add its annotations; to train on another split, set --data.train"
        report.faults.append(Fault("missing split", str(root), what, todo))
    for role in ("train", "val"):
        matches = matching_splits(role, source.splits)
        report.faults.extend(_nothing_in(split) for split in report.splits if split.name in matches and not split.boxes)
        if len(matches) > 1:
            report.notes.append(
                f"There are several {role} splits: {', '.join(matches)}; choose one with --data.{role}."
            )
    if not matching_splits("val", source.splits):
        report.notes.append("There is no validation split: training holds out a tenth of the images.")
    return report


def _nothing_in(split: SplitReport) -> Fault:
    """The fault of a split from which nothing can be learned or measured."""
    if not split.images:
        return Fault("empty split", f"{split.name} split", "has no usable images", "add some, or remove the split")
    what = f"has {counted(split.images, 'image')} but no boxes"
    return Fault("empty split", f"{split.name} split", what, "check that its annotations are in the right place")


def _unusable(error: DataError) -> Fault:
    """The fault of an unusable file or folder."""
    file, _, rest = str(error).partition(": ")
    what, _, todo = rest.partition("; ")
    return Fault("unreadable file", file, what, todo)


def _decode(
    records: Sequence[ImageRecord], folder: Folder, max_pixels: int, progress: Callable[[int, int], None] | None
) -> tuple[list[Fault], list[bytes]]:
    """Decodes every image, in threads, because decoders release the GIL; returns faults and a hash of each file."""

    def hashed(record: ImageRecord) -> bytes:
        try:
            return hashlib.blake2b(read_bytes(record.path or "", limit=2**32), digest_size=16).digest()
        except (ParseError, OSError):  # then decoding it failed, too
            return record.name.encode(errors="surrogateescape")

    def decode(record: ImageRecord) -> Fault | None:
        assert record.path is not None
        try:
            height, width = read_image(record.path, max_pixels).shape[-2:]
        except DataError as error:
            return unreadable(folder.relative(record.path), record.path, error)
        if (width, height) == (record.width, record.height):
            return None
        what, _, todo = wrong_size(record, width, height).removeprefix(f"{record.name}: ").partition("; ")
        return Fault("wrong size", record.name, what, todo)

    faults = []
    with ThreadPoolExecutor(usable_cores()) as threads:
        content = list(threads.map(hashed, records))
        for done, fault in enumerate(threads.map(decode, records), start=1):
            if fault is not None:
                faults.append(fault)
            if progress is not None:
                progress(done, len(records))
    return faults, content


def _doubtful(records: Sequence[ImageRecord]) -> list[str]:
    """Notes on boxes that are probably mistakes of the annotation."""
    rows = [np.column_stack([record.boxes, record.labels]) for record in records]
    twice = sum(len(boxes) - len(np.unique(boxes, axis=0)) for boxes in rows)
    sides = np.concatenate([boxes[:, 2:4] - boxes[:, :2] for boxes in rows] or [np.zeros((0, 2))])
    small = int((sides.min(axis=1, initial=np.inf) < SUSPICIOUS).sum())
    verb = "repeats" if twice == 1 else "repeat"
    notes = [f"{counted(twice, 'box', 'boxes')} {verb} another one of the same class exactly"] if twice else []
    return notes + ([f"{counted(small, 'box', 'boxes')} less than {SUSPICIOUS} pixels wide or high"] if small else [])


def _compare_classes(source: Source, classes: dict[str, list[str]], report: CheckReport) -> None:
    train = matching_splits("train", source.splits)
    if len(train) != 1 or train[0] not in classes:
        return
    for split, names in classes.items():
        mismatch = class_mismatch(split, names, classes[train[0]])
        if mismatch:
            what, _, todo = mismatch.removeprefix(f"{split} ").partition("; ")
            report.faults.append(Fault("unknown category", f"{split} split", what, todo))


def _compare_images(
    source: Source, records: dict[str, list[ImageRecord]], content: dict[str, list[bytes]], report: CheckReport
) -> None:
    train, val = (matching_splits(role, source.splits) for role in ("train", "val"))
    if len(train) != 1 or len(val) != 1 or train[0] not in records or val[0] not in records:
        return
    known = dict(zip(content[train[0]], records[train[0]], strict=True))
    copies = [(known[key], one) for key, one in zip(content[val[0]], records[val[0]], strict=True) if key in known]
    if shared := shared_images(records[train[0]], records[val[0]]):
        what = f"{len(shared):,} of its {len(records[val[0]]):,} images are also training images, such as {shared[0]}"
    elif copies:
        names = f"{copies[0][1].name} of {copies[0][0].name}"
        what = f"{len(copies):,} of its {len(records[val[0]]):,} images are copies of training images, such as {names}"
    else:
        return
    report.faults.append(Fault("shared image", f"{val[0]} split", what, "keep each image in only one split"))


def _describe(name: str, records: Sequence[ImageRecord], classes: Sequence[str]) -> SplitReport:
    crowd = np.concatenate([record.iscrowd for record in records] or [np.zeros(0, bool)])
    labels = np.concatenate([record.labels for record in records] or [np.zeros(0, np.int64)])[~crowd]
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    return SplitReport(
        name=name,
        images=len(records),
        empty=sum(len(record.boxes) == 0 for record in records),
        boxes=len(labels),
        crowds=int(crowd.sum()),
        classes=dict(zip(classes, counts, strict=True)),
        widths=_range([record.width for record in records]),
        heights=_range([record.height for record in records]),
        sizes=_sizes(records),
    )


def _sizes(records: Sequence[ImageRecord]) -> tuple[int, ...]:
    """Number of boxes between neighboring ``SIZE_EDGES``, without crowd boxes."""
    boxes = np.concatenate([record.boxes[~record.iscrowd] for record in records] or [np.zeros((0, 4), np.float32)])
    size = np.sqrt((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))
    bins = np.searchsorted(SIZE_EDGES, size, side="right") - 1
    return tuple(np.bincount(bins, minlength=len(SIZE_EDGES)).tolist())


def _range(values: list[int]) -> tuple[int, int]:
    return min(values, default=0), max(values, default=0)


def print_report(report: CheckReport, console: Console | None = None) -> None:
    """Prints a report: tables of the contents, then all faults.

    Args:
        report: The result of :func:`check`.
        console: The output; by default the terminal.
    """
    console = console or Console()
    if report.format:
        console.print(f"{report.format} dataset in {escaped(report.folder)}", markup=False, highlight=False)
    if any(split.images for split in report.splits):
        console.print(_overview(report.splits))
        console.print(_class_table(report.splits))
        console.print(_size_table(report.sizes))
    for note in report.notes:
        console.print(escaped(note), markup=False, highlight=False)
    if not report.faults:
        console.print(Text("No faults.", style="green"))
        return
    for fault in report.faults:
        # As plain text, because file names may contain rich markup.
        console.print(Text(str(fault)), soft_wrap=True)
    kinds = Counter(fault.kind for fault in report.faults)
    summary = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
    console.print(Text(f"{counted(len(report.faults), 'fault')}: {summary}", style="bold red"), soft_wrap=True)


def _overview(splits: Sequence[SplitReport]) -> Table:
    table = Table(title="Splits", title_justify="left")
    table.add_column("split")
    for name in ("images", "empty", "boxes", "crowd", "per image", "width", "height"):
        table.add_column(name, justify="right")
    for split in splits:
        ranges = (f"{low}–{high}" if low < high else f"{low}" for low, high in (split.widths, split.heights))
        table.add_row(
            Text(escaped(split.name)),
            f"{split.images:,}",
            f"{split.empty:,}",
            f"{split.boxes:,}",
            f"{split.crowds:,}",
            f"{split.boxes / max(1, split.images):.1f}",
            *ranges,
        )
    return table


def _class_table(splits: Sequence[SplitReport]) -> Table:
    table = Table(title="Boxes per class", title_justify="left")
    table.add_column("class")
    for split in splits:
        table.add_column(Text(escaped(split.name)), justify="right")
    names = dict.fromkeys(name for split in splits for name in split.classes)
    for name in names:
        table.add_row(Text(short_name(name)), *(f"{split.classes.get(name, 0):,}" for split in splits))
    return table


def _size_table(totals: Sequence[int]) -> Table:
    table = Table(title="Box sizes (square root of the area, in pixels)", title_justify="left")
    table.add_column("size", justify="right")
    table.add_column("boxes", justify="right")
    table.add_column("")
    used = [index for index, count in enumerate(totals) if count]
    for index in range(used[0], used[-1] + 1) if used else ():
        upper = f"–{SIZE_EDGES[index + 1]}" if index + 1 < len(SIZE_EDGES) else " and more"
        bar = "█" * round(40 * totals[index] / max(totals)) or "▏"
        table.add_row(f"{SIZE_EDGES[index]}{upper}", f"{totals[index]:,}", bar if totals[index] else "")
    return table
