"""Finds the YOLO files of a folder, with or without ``data.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankwise.data.folder import Folder, is_image
from rankwise.errors import DataError
from rankwise.files.names import shown
from rankwise.files.parsing import ParseError, read_text, read_yaml

#: Files that list the classes, one per line.
_CLASS_FILES = ("classes.txt", "obj.names", "labels/classes.txt", "predefined_classes.txt")
#: Folder names of splits and the names of the splits.
_SPLIT_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


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


def found_content(folder: Folder) -> tuple[str, dict[str, Any]]:
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
    for name, split in _SPLIT_NAMES.items():
        for images, labels in ((f"images/{name}", f"labels/{name}"), (f"{name}/images", f"{name}/labels")):
            if (root / images).is_dir() and (root / labels).is_dir():
                found.setdefault(split, images)
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
        raise DataError(f"{shown(folder.relative(path))}: {error}; save it as text in UTF-8") from error
