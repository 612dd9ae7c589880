"""Describes a folder of unknown format: its contents, the closest format, and what to change."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from rankwise.data.folder import is_image
from rankwise.data.yolo import split_folders
from rankwise.files.names import escaped
from rankwise.files.parsing import ParseError, open_regular, read_text

EXPECTED = (
    "expected annotations/instances_<split>.json or <split>/_annotations.coco.json (COCO), data.yaml (YOLO), or XML "
    "files in Annotations/ or beside the images (Pascal VOC)"
)

#: Maximum depth of the search, and maximum number of files.
_DEPTH, _MOST_FILES = 3, 20_000
#: File extensions of archives.
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar")
#: Number of files of each type that are read.
_TRIED = 20


def describe_folder(root: Path) -> str:
    """Describes a folder of unknown format and what to do about it."""
    files = _files(root)
    return f"{_found(files, root)}; {_advice(files, root)}"


def _files(root: Path) -> list[Path]:
    found: list[Path] = []
    for folder, inner, names in os.walk(root):
        depth = len(Path(folder).relative_to(root).parts)
        inner[:] = sorted(name for name in inner if not name.startswith(".")) if depth < _DEPTH else []
        found += [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
        if len(found) > _MOST_FILES:
            break
    return found


def _found(files: list[Path], root: Path) -> str:
    """Such as "found 20 images in photos/, 20 .txt in photos/"."""
    counts = Counter(
        (path.parent.relative_to(root).as_posix(), "images" if is_image(path) else path.suffix.lower() or "other files")
        for path in files
    )
    if not counts:
        return "found no files"
    parts = [f"{count:,} {kind} in {escaped(folder)}/" for (folder, kind), count in counts.most_common(4)]
    more = f" and {len(counts) - 4} more kinds of files" if len(counts) > 4 else ""
    return f"found {', '.join(parts)}{more}"


def _advice(files: list[Path], root: Path) -> str:
    images = [path for path in files if is_image(path)]
    by_ending = {ending: [path for path in files if path.suffix.lower() == ending] for ending in (".txt", ".json")}
    if not images:
        archives = [path for path in files if path.suffix.lower() in ARCHIVES]
        if archives:
            return f"unpack {escaped(archives[0].name)} first"
        return f"there are no images; {EXPECTED}"
    labels = [path for path in by_ending[".txt"][: 10 * _TRIED] if _classes(path)]
    if labels:
        return _yolo_advice(labels, images, root)
    for path in by_ending[".json"][:_TRIED]:
        if advice := _json_advice(path, root):
            return advice
    if any(path.suffix.lower() == ".csv" for path in files):
        return "tables of boxes are not supported: convert the table to COCO, annotations/instances_train.json"
    if any(path.suffix.lower() == ".xml" for path in files):
        return "closest match: Pascal VOC: put the XML files into Annotations/ and the images into images/ next to it"
    return (
        "there are images but no boxes: annotate them, for example with CVAT, Label Studio or Roboflow, and export "
        "them as COCO, YOLO or Pascal VOC with images"
    )


def _yolo_advice(labels: list[Path], images: list[Path], root: Path) -> str:
    classes = max(max(_classes(path)) for path in labels) + 1
    names = ", ".join(f"name of class {number}" for number in range(min(classes, 3))) + (", …" if classes > 3 else "")
    home, beside = labels[0].parent, images[0].parent
    if home != beside and not (home.parts[len(root.parts) :].count("labels") and "images" in beside.parts):
        return (
            f"closest match: YOLO, which has the boxes of images/a.jpg in labels/a.txt: rename {_name(beside, root)} "
            f"to images/ and {_name(home, root)} to labels/, and add data.yaml with the lines train: images and "
            f"names: [{names}]"
        )
    splits = split_folders(root) or {"train": beside.relative_to(root).as_posix()}
    lines = ", ".join(f"{split}: {where}" for split, where in splits.items())
    return f"closest match: YOLO without class names: add data.yaml with the lines {lines} and names: [{names}]"


def _classes(path: Path) -> set[int]:
    """The class numbers in a text file of boxes; empty if it is not one."""
    try:
        rows = [line.split() for line in read_text(path, limit=2**20).splitlines() if line.strip()]
        numbers = [[float(word) for word in row] for row in rows]
    except (ParseError, OSError, ValueError):
        return set()
    return {int(row[0]) for row in numbers} if all(len(row) >= 5 for row in numbers) else set()


def _name(folder: Path, root: Path) -> str:
    return f"{escaped(folder.relative_to(root).as_posix())}/"


def _json_advice(path: Path, root: Path) -> str:
    file = escaped(path.relative_to(root))
    try:
        with open_regular(path) as stream:
            head = stream.read(2**20)
    except (ParseError, OSError):
        return ""
    if b'"shapes"' in head:
        return f"{file} is a LabelMe file: convert the files to COCO, for example with labelme2coco"
    if b'"rectanglelabels"' in head or b'"completions"' in head:
        return f"{file} is Label Studio's own JSON: export the project as COCO or YOLO with images"
    missing = [key for key in ("images", "annotations", "categories") if f'"{key}"'.encode() not in head]
    if len(missing) < 3:
        return f"closest match: COCO: {file} has no list {' and no list '.join(missing)}; export it as COCO instances"
    return ""
