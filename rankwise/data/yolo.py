"""Reads YOLO datasets: ``data.yaml``, images, and one text file of boxes per image.

We do not use a library: supervision decodes every image while reading and stops at the first fault.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rankwise.data.collector import AnnotationCollector, Reading, labels_of
from rankwise.data.folder import Folder, is_image, path_ends
from rankwise.data.splits import role
from rankwise.errors import DataError
from rankwise.files.names import escaped, message_of, shortened
from rankwise.files.parsing import ParseError, read_bytes, read_text, read_yaml
from rankwise.images.reading import IMAGE_ENDINGS, MAX_PIXELS

#: Keys of ``data.yaml`` and folders that name splits.
_SPLITS = ("train", "val", "valid", "validation", "test")
#: Files that list the classes, one per line.
_CLASS_FILES = ("classes.txt", "obj.names", "labels/classes.txt", "predefined_classes.txt")
#: Coordinates are fractions; larger values are not even those of a box that extends beyond its image.
_FRACTION = 2.0
#: Values that mean "not given"; all values are read as text.
_EMPTY: tuple[Any, ...] = (None, "", "~", "null", "Null", "NULL", [], {})


class YoloSource:
    """A folder with YOLO annotations.

    ``data.yaml``, or ``file``, names the classes and the splits: a folder of images, a list of folders, or a text file
    with one image per line. The boxes of ``…/images/…/a.jpg`` are in ``…/labels/…/a.txt``, or next to the image if no
    folder is called ``images``. An image without such a file has no objects. Polygons become bounding boxes. Without
    ``data.yaml``, the classes come from ``obj.names`` or ``classes.txt``, and the splits are image folders.
    """

    name = "YOLO"

    def __init__(self, folder: Folder, max_pixels: int = MAX_PIXELS, file: Path | None = None) -> None:
        self.folder = folder
        self.max_pixels = max_pixels
        path = file or yaml_file(folder.root)
        if path is None:
            self.file, self._content = _found_content(folder)
        else:
            self.file = folder.relative(path)
            self._refuse_link(path)
            self._content = _load(path, self.file)
            if not any(self._content.get(split) not in _EMPTY for split in _SPLITS):
                self._content |= split_folders(folder.root)
        self._names = _names(self._content, self.file) if self.splits else {}
        self._notes = self._without_test()

    @property
    def splits(self) -> list[str]:
        """Names of the splits."""
        return [split for split in _SPLITS if self._content.get(split) not in _EMPTY]

    def read(self, split: str) -> Reading:
        """Reads one split, with its faults; images that ``data.yaml`` names but that do not exist are a DataError."""
        collector = AnnotationCollector(self.folder, "line", self.max_pixels)
        classes, category_ids, labels = labels_of(self._names, self.file, collector.faults)
        used: dict[Path, Path] = {}
        for number, path in enumerate(self._image_paths(split, collector), start=1):
            image_folder = path.parent.relative_to(self.folder.root)
            boxes = self.folder.root / _exchanged(image_folder, "images", "labels") / f"{path.stem}.txt"
            if (other := used.setdefault(boxes, path)) != path:
                what = f"{other.name} and {path.name} have the same label file, {self.folder.relative(boxes)}"
                collector.add_fault("shared labels", self.folder.relative(path), what, "rename one, with its labels")
                continue
            image = collector.add_image(number, path, 0, 0, self.folder.relative(boxes))
            if image is None or not self.folder.find(boxes.name, boxes.parent):
                continue
            if self.folder.leads_out(self.folder.relative(boxes)):
                file, what = self.folder.relative(boxes), "is a link, or below a link, that leads out of the folder"
                collector.add_fault("path leads out", file, what, "copy the labels into it")
            else:
                self._read_labels(boxes, image, labels, collector)
        self._labels_without_image(used, collector)
        return collector.reading(classes, category_ids, self._notes if split == self.splits[0] else ())

    def _without_test(self) -> list[str]:
        """Ignores a test split whose images do not exist: some exports name one without including it."""
        test = self._content.get("test")
        if test in _EMPTY or len(self.splits) == 1:
            return []
        try:
            for entry in test if isinstance(test, list) else [test]:
                self._location("test", entry)
        except DataError:
            del self._content["test"]
            return [f"{self.file} names a test split, {shortened(test)}, which does not exist"]
        return []

    def _image_paths(self, split: str, collector: AnnotationCollector) -> list[Path]:
        value = self._content[split]
        found: list[Path] = []
        for entry in value if isinstance(value, list) else [value]:
            location = self._location(split, entry)
            if location.is_dir():
                found += [path for path in self.folder.images(location) if self._stays(path, location, collector)]
            else:
                file = self.folder.relative(location)
                self._refuse_link(location)
                bases = [location.parent, self.folder.root, *self._above()]
                for line in _text(location, file).splitlines():
                    if line.strip():
                        base = next((base for base in bases if self.folder.locate(line.strip(), base)), location.parent)
                        path = collector.find_image(line.strip(), base, file)
                        found += [path] if path else []
        return found

    def _refuse_link(self, path: Path) -> None:
        """Refuses a file that is a link out of the dataset."""
        if self.folder.leads_out(self.folder.relative(path)):
            raise DataError(f"{escaped(path)}: is a link that leads out of the folder; copy the file into it")

    def _stays(self, path: Path, location: Path, collector: AnnotationCollector) -> bool:
        """Whether an image is not a link out of the dataset."""
        if self.folder.leads_out(os.path.relpath(path, location), location):
            file, todo = self.folder.relative(path), "copy the image into it"
            collector.add_fault("path leads out", file, "is a link that leads out of the folder", todo)
            return False
        return True

    def _location(self, split: str, entry: Any) -> Path:
        """The image folder or list of a split in ``data.yaml``."""
        if not isinstance(entry, str):
            raise DataError(
                f"{self.file}: {split} is {shortened(entry)}; give a folder of images, relative to this file"
            )
        root = self.folder.root
        tried = [*(above / entry for above in self._above()), root / entry]
        # Exports contain ../train/images, data/train.txt or an absolute path, but mean a path in the archive. A single
        # "images" may belong to another split.
        ends = list(path_ends(entry))
        tried += [root / end for end in ends if "/" in end or end == ends[0] or end.endswith(".txt")]
        inside = [self.folder.inside(path) for path in tried]
        for path in inside:
            if path is not None and path.exists():
                return path
        if not self._above():
            raise DataError(
                f"{self.file}: path is {shortened(self._content['path'])}, which leads out of the folder, and {split}, "
                f"{shortened(entry)}, is not in {root}; put this file into the folder of the dataset, or correct path"
            )
        if inside[0] is None:
            raise DataError(
                f"{self.file}: {split} is {shortened(entry)}, which leads out of the folder; put the images into "
                f"{root} and name them relative to it"
                + (f", or correct the name: {ends[0]} does not exist there" if ends else "")
            )
        raise DataError(
            f"{self.file}: {split} is {shortened(entry)}, which does not exist; give the folder of its images"
        )

    def _above(self) -> list[Path]:
        """The folder given by ``path`` in ``data.yaml``, if it is in the dataset."""
        above = self._content.get("path")
        path = self.folder.inside(self.folder.root / str("" if above in _EMPTY else above))
        return [] if path is None else [path]

    def _read_labels(self, path: Path, image: int, labels: dict[int, int], collector: AnnotationCollector) -> None:
        file = self.folder.relative(path)
        width, height = collector.size(image)
        try:
            lines = read_text(path).splitlines()
        except (ParseError, OSError) as error:
            collector.add_fault("unreadable file", file, message_of(error), "export it again")
            return
        for number, line in enumerate(lines, start=1):
            words = line.split()
            if not words:
                continue
            values = _numbers(words)
            if values is None or (len(values) != 5 and (len(values) < 7 or len(values) % 2 == 0)):
                kind, what = "bad entry", f"reads {line.strip()[:60]!r}"
                todo = "write class, center x, center y, width and height, or class and the corners of a polygon"
            elif not values[0].is_integer() or int(values[0]) not in labels:
                kind, what = "unknown category", f"has class {words[0]}, which {self.file} does not name"
                todo = "add the class there or correct the line"
            elif _FRACTION < max(map(abs, values[1:])) < math.inf:
                kind, what = "boxes as pixels", f"reads {line.strip()[:60]!r}, which looks like pixels"
                todo = "divide by width and height of the image: all but the class are from 0 to 1"
            else:
                left, top, right, bottom = _corners(values[1:])
                box = (left * width, top * height, right * width, bottom * height)
                collector.add_box(image, number, box, labels[int(values[0])])
                continue
            collector.add_fault(kind, file, what, todo, box=f"line {number}")

    def _labels_without_image(self, used: Collection[Path], collector: AnnotationCollector) -> None:
        """Label files without an image in any split, and those that another spelling of ``.txt`` hides."""
        root = self.folder.root
        folders = {path.parent for path in used if "labels" in path.relative_to(root).parts}
        for folder in sorted(folders):
            images = root / _exchanged(folder.relative_to(root), "labels", "images")
            stems = {path.stem for path in images.iterdir() if is_image(path)} if images.is_dir() else set()
            for path in sorted(folder.iterdir() if folder.is_dir() else ()):
                file = self.folder.relative(path)
                if path.suffix != ".txt" and path.suffix.lower() == ".txt":
                    collector.add_fault("bad entry", file, "is not read: label files end in .txt", "rename it")
                elif path.suffix == ".txt" and not (path in used or path.stem in stems or path.name == "classes.txt"):
                    todo = f"add it to the image folder ({', '.join(sorted(IMAGE_ENDINGS))}) or remove this file"
                    collector.add_fault("missing image", file, "there is no image with this name", todo)


def _load(path: Path, file: str) -> dict[str, Any]:
    try:
        content = read_yaml(path, as_text=True)  # class names may be yes, no or 1.0
    except ParseError as error:
        raise DataError(f"{file}: {error}; correct it") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: contains no settings; it should have train, val and names")
    return content


def _text(path: Path, file: str) -> str:
    try:
        text = read_bytes(path).decode("utf-8-sig", "replace")
    except ParseError as error:
        raise DataError(f"{file}: {error}; it should be a list of images") from error
    if "\0" in text:
        raise DataError(f"{file}: is not text; name a folder of images, or a text file with one image per line")
    return text


def _names(content: dict[str, Any], file: str) -> dict[int, str]:
    """Class names by number."""
    names = content.get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not names:
        raise DataError(f"{file}: has no 'names'; add the class names")
    for name in names.values():
        if not isinstance(name, str) or not name.strip():
            raise DataError(f"{file}: 'names' has {shortened(name)}; give each class a text as its name")
    try:
        numbered = {int(number): name for number, name in names.items()}
    except (TypeError, ValueError) as error:
        raise DataError(f"{file}: the keys of 'names' are not integers; number the classes from 0") from error
    count = content.get("nc")
    if len(numbered) < len(names):
        raise DataError(f"{file}: 'names' has a number twice, as in 1 and 01; number the classes from 0")
    if count not in _EMPTY and count != str(len(numbered)):
        raise DataError(f"{file}: nc is {escaped(count)}, but there are {len(numbered)} names; correct or remove nc")
    return numbered


def _exchanged(path: Path, one: str, other: str) -> Path:
    """A path with its last folder ``one`` replaced by ``other``."""
    parts = list(path.parts)
    for position in reversed(range(len(parts))):
        if parts[position] == one:
            parts[position] = other
            break
    return Path(*parts)


def _numbers(words: list[str]) -> list[float] | None:
    try:  # Python would read 0_1 as 1, and digits of other scripts
        return [float(word) for word in words] if all(word.isascii() and "_" not in word for word in words) else None
    except ValueError:
        return None


def _corners(values: list[float]) -> tuple[float, float, float, float]:
    """Relative xyxy from center and size, or from the corners of a polygon."""
    if len(values) == 4:
        x, y, width, height = values
        return x - width / 2, y - height / 2, x + width / 2, y + height / 2
    return min(values[0::2]), min(values[1::2]), max(values[0::2]), max(values[1::2])


def yaml_file(root: Path) -> Path | None:
    """The ``data.yaml`` of a folder, or its only YAML file with splits and classes."""
    for name in ("data.yaml", "data.yml", "dataset.yaml"):
        if (root / name).is_file():
            return root / name
    others = [path for path in sorted(root.glob("*.y*ml")) if _looks_like_yolo(path)]
    return others[0] if len(others) == 1 else None


def _looks_like_yolo(path: Path) -> bool:
    try:
        content = read_yaml(path, as_text=True)
    except (ParseError, OSError):
        return False
    return isinstance(content, dict) and "names" in content and "train" in content


def _found_content(folder: Folder) -> tuple[str, dict[str, Any]]:
    """The file with the class names, and the equivalent of ``data.yaml``, from files of other tools.

    These are darknet's and CVAT's ``obj.data`` with ``obj.names``, and ``classes.txt`` of Label Studio and labelImg.
    Both are empty if no file names the classes, or there are no labels.
    """
    root = folder.root
    darknet = next((path for path in sorted(root.glob("*.data")) if not _out(folder, path)), None)
    if darknet is not None:
        pairs = [line.partition("=") for line in _lines(darknet, folder) if "=" in line]
        content: dict[str, Any] = {key.strip(): value.strip() for key, _, value in pairs}
        names = folder.locate_by_end(content.get("names", ""), root)
        if names is not None:
            return folder.relative(names), {**content, "names": _lines(names, folder)}
    for name in _CLASS_FILES:
        path = root / name
        if path.is_file() and not _out(folder, path) and (splits := split_folders(root)):
            return folder.relative(path), {**splits, "names": _lines(path, folder)}
    return "", {}


def split_folders(root: Path) -> dict[str, Any]:
    """Image folders with labels: ``images/train``, ``train/images``, ``images`` or the folder itself."""
    found: dict[str, Any] = {}
    for name in _SPLITS:
        for images, labels in ((f"images/{name}", f"labels/{name}"), (f"{name}/images", f"{name}/labels")):
            if (root / images).is_dir() and (root / labels).is_dir():
                found.setdefault(role(name) or name, images)
    if found:
        return found
    if (root / "images").is_dir() and (root / "labels").is_dir() and any((root / "labels").glob("*.txt")):
        return {"train": "images"}
    beside = any(path.with_suffix(".txt").is_file() for path in root.glob("*.*") if is_image(path))
    return {"train": "."} if beside else {}


def _out(folder: Folder, path: Path) -> bool:
    return folder.leads_out(folder.relative(path))


def _lines(path: Path, folder: Folder) -> list[str]:
    """The non-empty lines of a text file."""
    try:
        return [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except (ParseError, OSError) as error:
        raise DataError(f"{escaped(folder.relative(path))}: {error}; save it as text in UTF-8") from error
