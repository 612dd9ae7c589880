"""Finds the dataset of a path and its format, with advice if there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rankwise.data.coco import CocoSource
from rankwise.data.collector import Reading
from rankwise.data.folder import Folder, folders
from rankwise.data.unknown_format import ARCHIVES, describe_folder
from rankwise.data.voc import VocSource
from rankwise.data.yolo import YoloSource, yaml_file
from rankwise.errors import DataError
from rankwise.files.names import escaped
from rankwise.images.reading import MAX_PIXELS

#: How many levels above the dataset the given folder may be.
_LEVELS = 2
#: Folders with more subfolders than this are not searched.
_MOST_FOLDERS = 100


class Source(Protocol):
    """A folder in one of the formats."""

    name: str
    folder: Folder

    @property
    def splits(self) -> list[str]: ...
    def read(self, split: str) -> Reading: ...


def find_source(path: str | Path, max_pixels: int = MAX_PIXELS) -> Source:
    """Finds the dataset of a folder, or of one or two folders below it, or of a ``data.yaml`` or COCO file.

    The format is detected automatically.

    Raises:
        DataError: If there is no dataset, or more than one.
    """
    root = Path(path)
    if root.is_file():
        return _by_file(root, max_pixels)
    if not root.is_dir():
        raise DataError(f"{escaped(root)}: no such folder; give the folder of a dataset")
    level = [root]
    for _ in range(_LEVELS + 1):
        found = [source for folder in level if (source := _in(folder, max_pixels)) is not None]
        if len(found) > 1:
            names = ", ".join(escaped(source.folder.root.relative_to(root)) for source in found)
            raise DataError(f"{escaped(root)}: contains several datasets ({names}); choose one of them")
        if found:
            return found[0]
        # Links may lead anywhere; only those that the user names are followed.
        level = [inner for folder in level for inner in folders(folder) if not inner.is_symlink()]
        if len(level) > _MOST_FOLDERS:
            break
    for above in root.absolute().parents[:_LEVELS]:
        # Only where it names its format by a file: an unrelated folder above may hold anything.
        if yaml_file(above) is not None and YoloSource(Folder(above), max_pixels).splits:
            raise DataError(f"{escaped(root)}: is part of the dataset in {escaped(above)}; give that folder")
    raise DataError(f"{escaped(root)}: unknown format; {describe_folder(root)}")


def _in(folder: Path, max_pixels: int) -> Source | None:
    """The dataset in exactly this folder."""
    inside = Folder(folder)
    # Other JSON files come last: other formats may contain one.
    for kind in (CocoSource, YoloSource, VocSource):
        source: Source = kind(inside, max_pixels)
        if source.splits:
            return source
    other = CocoSource(inside, max_pixels, anywhere=True)
    return other if other.splits else None


def _by_file(file: Path, max_pixels: int) -> Source:
    """The dataset of a given file."""
    home = file.parent
    ending = file.suffix.lower()
    if ending in (".yaml", ".yml"):
        source: Source = YoloSource(Folder(home), max_pixels, file)
        if not source.splits:
            raise DataError(f"{escaped(file)}: has no train or val; add a line such as train: images/train")
        return source
    if ending == ".json":
        return CocoSource(Folder(home.parent if home.name == "annotations" else home), max_pixels, file)
    if ending in ARCHIVES:
        raise DataError(f"{escaped(file)}: is an archive; unpack it and give the folder")
    raise DataError(
        f"{escaped(file)}: is a file; give the folder of a dataset, its data.yaml (YOLO) or its JSON file (COCO)"
    )
