"""Reads Pascal VOC XML files, one per image.

We do not use a library: supervision decodes every image while reading, stops at the first fault and treats "difficult"
objects, which should be ignored, as normal ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from rankwise.data.collector import AnnotationCollector, Fault, Reading
from rankwise.data.folder import Folder, folders, has_images
from rankwise.data.splits import role
from rankwise.errors import DataError
from rankwise.files.names import escaped, message_of, shortened
from rankwise.files.parsing import ParseError, read_bytes, read_text
from rankwise.images.reading import IMAGE_ENDINGS, MAX_PIXELS

#: Image folders next to a folder of XML files.
_IMAGE_FOLDERS = ("JPEGImages", "images", "Images", "imgs", "img")
#: Names of folders with XML files, case-insensitive.
_XML_FOLDERS = ("annotations", "annotation", "annots", "xmls", "xml", "labels", "label")
#: Candidate image folders are tried with this many images.
_TRIED = 50
_ENDINGS = sorted(IMAGE_ENDINGS | {ending.upper() for ending in IMAGE_ENDINGS})


@dataclass(frozen=True)
class _Object:
    name: str
    corners: tuple[float, float, float, float] | None  # None if the file does not have four numbers
    difficult: str


@dataclass(frozen=True)
class VocFile:
    """One XML file."""

    filename: str
    width: int
    height: int
    objects: list[_Object]


class VocSource:
    """A folder with Pascal VOC annotations.

    Either XML files in ``Annotations/``, ``annots/``, ``xmls/`` or ``labels/`` and the splits in ``ImageSets/Main/``,
    with the images in ``JPEGImages/`` or ``images/``, in the folder itself or next to the XML files; or such folders
    per split, ``train/Annotations`` or ``Annotations/train``; or XML files next to their images, in the folder itself
    or in one folder per split. "Difficult" objects become ignore regions. Classes are all names that occur, sorted.
    Coordinates start at 1, as in VOC, unless one of them is 0.
    """

    name = "Pascal VOC"

    def __init__(self, folder: Folder, max_pixels: int = MAX_PIXELS) -> None:
        self.folder = folder
        self.max_pixels = max_pixels
        self._homes: dict[str, list[Path]] = {}  # image folders of a split; empty if each image is next to its XML file
        self._files = self._find()
        self._voc_files: dict[Path, VocFile | Fault] = {}

    @property
    def splits(self) -> list[str]:
        """Names of the splits."""
        return list(self._files)

    def _find(self) -> dict[str, list[Path]]:
        """The XML files of each split."""
        root = self.folder.root
        annotations = _annotation_folder(root)
        if annotations is not None:
            home = annotations.parent
            lists = self._lists(annotations)
            files = lists or {"train": xml_files(annotations)}
            if not any(files.values()) and not lists:
                files = {path.name: xml_files(path) for path in folders(annotations)}
                for split in files:
                    images = [home / name / split for name in _IMAGE_FOLDERS]
                    self._homes[split] = [*images, home / split, annotations / split]
            files = {split: paths for split, paths in files.items() if paths or lists}
            self._homes = {split: [*self._homes.get(split, []), *_image_folders(annotations)] for split in files}
            return files
        files = {"train": xml_files(root)}
        for path in folders(root):
            inner = _annotations_in(path) if role(path.name) else None
            files[path.name] = xml_files(inner or path)
            if inner is not None:
                self._homes[path.name] = _image_folders(inner)
        found = {split: paths for split, paths in files.items() if paths}
        # Folders of other names are splits if all have XML files; otherwise they are separate datasets.
        alike = len(found) == len(files) - (not files["train"])
        return found if alike or any(map(role, found)) else {}

    def _lists(self, annotations: Path) -> dict[str, list[Path]]:
        """The XML files of each split by the lists in ``ImageSets/Main``."""
        splits = {}
        for path in sorted(annotations.parent.glob("ImageSets/Main/*.txt")):
            if self.folder.leads_out(self.folder.relative(path)):
                raise DataError(f"{escaped(path)}: is a link that leads out of the folder; copy the file into it")
            lines = [line.split() for line in read_bytes(path).decode("utf-8-sig", "replace").splitlines()]
            # Files such as cat_train.txt have a second column and are not splits.
            if lines and all(len(line) <= 1 for line in lines):
                splits[path.stem] = [annotations / f"{line[0]}.xml" for line in lines if line]
        return splits

    def _voc_file(self, path: Path) -> VocFile | Fault:
        if path not in self._voc_files:
            file = self.folder.relative(path)
            outside = Fault("path leads out", file, "leads out of the folder", "copy the file into it")
            self._voc_files[path] = outside if self.folder.leads_out(file) else _parse(path, file)
        return self._voc_files[path]

    def read(self, split: str) -> Reading:
        """Reads one split, with its faults. All XML files are read, because the classes are all names that occur."""
        every = {path for paths in self._files.values() for path in paths}
        files = (file for file in map(self._voc_file, every) if isinstance(file, VocFile))
        objects = [thing for file in files for thing in file.objects]
        classes = sorted({thing.name for thing in objects if thing.name})
        labels = {name: label for label, name in enumerate(classes)}
        first = 0 if any(0 in thing.corners[:2] for thing in objects if thing.corners) else 1
        collector = AnnotationCollector(self.folder, "object", self.max_pixels)
        images = self._image_folder(split)
        seen: set[Path] = set()
        for number, path in enumerate(self._files[split], start=1):
            file = self.folder.relative(path)
            if path in seen:
                collector.add_fault("duplicate id", file, f"is listed twice in the {split} split", "list it once")
                continue
            seen.add(path)
            voc_file = self._voc_file(path)
            if isinstance(voc_file, Fault):
                collector.faults.append(voc_file)
                continue
            base = images or path.parent
            found = self._image(voc_file, path, base) or collector.find_image(
                voc_file.filename or f"{path.stem}.jpg", base, file
            )
            if found is None:
                continue
            image = collector.add_image(number, found, voc_file.width, voc_file.height, file)
            if image is not None:
                _add_objects(voc_file, image, first, labels, file, collector)
        return collector.reading(classes, list(range(1, len(classes) + 1)))

    def _image_folder(self, split: str) -> Path | None:
        """The folder with most of the first images, None if each image is next to its XML file."""
        candidates = [folder for folder in self._homes.get(split, ()) if folder.is_dir()]
        paths = self._files[split]
        voc_files = [
            (voc_file, path) for path in paths[:_TRIED] if isinstance(voc_file := self._voc_file(path), VocFile)
        ]

        def hits(folder: Path) -> int:
            return sum(self._image(voc_file, path, folder) is not None for voc_file, path in voc_files)

        return max(candidates, key=hits, default=None)

    def _image(self, voc_file: VocFile, path: Path, base: Path) -> Path | None:
        """The image of an XML file, None if it is not in ``base``."""
        if self.folder.leads_out(voc_file.filename or path.stem, base):
            return None
        # The name of the XML file first: the one inside is often outdated by a renaming.
        names = [path.stem + ending for ending in _ENDINGS]
        for name in [*names, voc_file.filename] if voc_file.filename else names:
            found = self.folder.find(name, base)
            if found is not None and not self.folder.leads_out(name, base):
                return found
        return None


def _add_objects(
    voc_file: VocFile, image: int, first: int, labels: dict[str, int], file: str, collector: AnnotationCollector
) -> None:
    for number, thing in enumerate(voc_file.objects, start=1):
        if not thing.name:
            what, todo = "has no name", "give its class under <name>"
        elif thing.corners is None:
            what, todo = "has no box with four numbers", "give xmin, ymin, xmax and ymax under <bndbox>"
        elif thing.difficult not in ("0", "1"):
            what, todo = f"has {shortened(thing.difficult)} as <difficult>", "give 0, or 1 for an object to ignore"
        else:
            left, top, right, bottom = thing.corners
            collector.add_box(
                image, number, (left - first, top - first, right, bottom), labels[thing.name], thing.difficult == "1"
            )
            continue
        collector.add_fault("bad entry", file, what, todo, box=f"object {number}")


def _annotation_folder(root: Path) -> Path | None:
    """The folder of XML files, in the root or in the only VOC folder below it."""
    homes = [root, *sorted(root.glob("VOC*")), *sorted(root.glob("VOCdevkit/VOC*"))]
    found = [folder for home in homes if (folder := _annotations_in(home)) is not None]
    if len(found) > 1:
        raise DataError(
            f"{root}: contains several VOC folders ({', '.join(folder.parent.name for folder in found)}); "
            "choose one of them"
        )
    return found[0] if found else None


def _annotations_in(home: Path) -> Path | None:
    """``Annotations``, or else a folder of a similar name if XML files are in there: other formats use these too."""
    if (home / "Annotations").is_dir():
        return home / "Annotations"
    similar = [path for path in folders(home) if path.name.lower() in _XML_FOLDERS]
    for path in [*similar, *(path / "xmls" for path in similar)]:
        if xml_files(path) or any(xml_files(inner) for inner in folders(path)):
            return path
    lone = [path for path in folders(home) if not role(path.name) and xml_files(path) and not has_images(path)]
    return lone[0] if len(lone) == 1 else None


def _image_folders(annotations: Path) -> list[Path]:
    """Possible image folders for a folder of XML files, the usual ones first."""
    home = annotations.parent
    usual = [home / name for name in _IMAGE_FOLDERS]
    return list(dict.fromkeys([*usual, home, annotations, *folders(home)]))


def xml_files(folder: Path) -> list[Path]:
    """The XML files in a folder, sorted."""
    return sorted(folder.glob("*.xml"))


def _parse(path: Path, file: str) -> VocFile | Fault:
    try:
        text = read_text(path)
        # Checked as text, so that no declared encoding hides them: entities can expand to gigabytes or read other
        # files.
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            what = "declares a document type or entities, which are refused"
            return Fault("unreadable file", file, what, "remove them")
        root = ElementTree.fromstring(text)
    except FileNotFoundError:
        return Fault("missing annotations", file, "is missing", "add it, or remove the image from the split")
    except (ParseError, OSError) as error:
        return Fault("unreadable file", file, message_of(error), "save it as UTF-8")
    except ElementTree.ParseError as error:
        line, column = error.position
        return Fault("unreadable file", file, f"is not valid XML: line {line}, column {column}", "export it again")
    if root.tag == "annotations":
        todo = "export the task as COCO 1.0, Pascal VOC or Ultralytics YOLO"
        return Fault("unreadable file", file, "is CVAT's own XML", todo)
    if root.tag != "annotation":
        return Fault("unreadable file", file, f"has <{root.tag}> where VOC has <annotation>", "export it as Pascal VOC")
    objects = []
    for element in root.findall("object"):
        sides = (_number(element.findtext(f"bndbox/{name}")) for name in ("xmin", "ymin", "xmax", "ymax"))
        corners = tuple(side for side in sides if side is not None)
        box = corners if len(corners) == 4 else None
        name = (element.findtext("name") or "").strip()
        objects.append(_Object(name, box, (element.findtext("difficult") or "").strip() or "0"))
    width, height = (_number(root.findtext(f"size/{name}")) for name in ("width", "height"))
    filename = (root.findtext("filename") or "").strip()
    return VocFile(filename, _pixels(width), _pixels(height), objects)


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _pixels(value: float | None) -> int:
    return int(value) if value is not None and math.isfinite(value) else 0
