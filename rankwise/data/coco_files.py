"""Finds the COCO annotation files of a folder and their splits."""

from __future__ import annotations

import re
from pathlib import Path

from rankwise.data.folder import Folder
from rankwise.data.splits import role
from rankwise.files.parsing import ParseError, open_regular

#: Prefix of files that list images without annotations.
UNSEEN = "image_info_"
#: Words in file names that do not name a split.
_NO_SPLIT = ("instances", "annotations", "annotation", "coco", "labels", "result", "results", "default", "")
#: Folders with more JSON files than this are not searched.
_MOST_FILES = 50


def annotation_files(root: Path) -> dict[str, Path]:
    """The annotation file of each split."""
    files: dict[str, Path] = {}
    for path in sorted(root.glob("annotations/*.json")):
        files.setdefault(path.stem, path)
    instances = {stem.removeprefix("instances_"): path for stem, path in files.items() if stem.startswith("instances_")}
    # COCO's captions_* and person_keypoints_* files are not splits. Its lists of test images are, if the images exist.
    unseen = {stem.removeprefix(UNSEEN): path for stem, path in files.items() if stem.startswith(UNSEEN)}
    if instances:
        there = {split: path for split, path in unseen.items() if any(map(Path.is_dir, test_folders(root, split)))}
        files = instances | {split: path for split, path in there.items() if split not in instances}
    for path in sorted(root.glob("*/_annotations.coco.json")):
        files.setdefault(path.parent.name, path)
    if not files and (root / "_annotations.coco.json").is_file():
        files["train"] = root / "_annotations.coco.json"
    return files


def other_files(folder: Folder) -> dict[str, Path]:
    """COCO files with any name, in the folder itself or one per split folder."""
    for pattern in ("*.json", "*/*.json"):
        found = [path for path in sorted(folder.root.glob(pattern)) if not folder.leads_out(folder.relative(path))]
        # Files with annotations of a single image are not COCO.
        found = found if len(found) <= _MOST_FILES else []
        usable = [path for path in found if path.parent == folder.root or role(path.parent.name)]
        files: dict[str, Path] = {}
        for path in filter(_looks_like_coco, usable):
            name = split_name(path) if path.parent == folder.root else path.parent.name
            files[name if name not in files else path.stem] = path
        if files:
            return files
    return {}


def split_name(path: Path) -> str:
    """The split name in a file name: ``train`` for ``instances_train.json`` or ``train_coco.json``."""
    words = [word for word in re.split(r"[-_.]", path.stem) if word.lower() not in _NO_SPLIT]
    return "_".join(words) or "train"


def _looks_like_coco(path: Path) -> bool:
    """Whether a file seems to have the three lists of COCO, without parsing it."""
    try:
        with open_regular(path) as file:
            text = file.read(2**30)
    except (ParseError, OSError):
        return False
    return text.lstrip()[:1] == b"{" and all(key in text for key in (b'"images"', b'"annotations"', b'"categories"'))


def test_folders(root: Path, split: str) -> list[Path]:
    """The image folders of a test split: test-dev2017 is a part of test2017."""
    names = dict.fromkeys((split, split.replace("-dev", "")))
    return [folder for name in names for folder in (root / name, root / "images" / name)]
