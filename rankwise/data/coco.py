"""Finds, reads and writes COCO JSON files, and reports all faults."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from PIL import Image

from rankwise.data.collector import AnnotationCollector, Reading, labels_of
from rankwise.data.dataset import DetectionDataset
from rankwise.data.folder import Folder
from rankwise.data.splits import role
from rankwise.errors import DataError
from rankwise.files.names import escaped, shortened
from rankwise.files.parsing import ParseError, open_regular, read_json
from rankwise.files.writing import explained, make_folder, write_text
from rankwise.images.reading import MAX_PIXELS

#: Prefix of files that list images without annotations.
_UNSEEN = "image_info_"
#: Words in file names that do not name a split.
_NO_SPLIT = ("instances", "annotations", "annotation", "coco", "labels", "result", "results", "default", "")
#: Folders with more JSON files than this are not searched.
_MOST_FILES = 50
#: Candidate image folders are tried with this many images.
_TRIED = 50
#: Image folders next to an annotation file.
_IMAGE_FOLDERS = ("images", "data", "img", "imgs", "JPEGImages")


class CocoSource:
    """A folder with COCO annotations, or a single annotation ``file``.

    Either ``annotations/instances_<split>.json`` (or ``annotations/<split>.json``) with the images in ``<split>/``,
    ``images/<split>/`` or ``images/``, or ``_annotations.coco.json`` next to the images of each split. Images without
    annotations, as in COCO's test sets, are splits too: ``annotations/image_info_<split>.json``, such as test-dev2017
    with the images in ``test2017/``. With ``anywhere``, any COCO file in the folder or in the folder of a split counts,
    such as Label Studio's ``result.json``.
    """

    name = "COCO"

    def __init__(
        self, folder: Folder, max_pixels: int = MAX_PIXELS, file: Path | None = None, anywhere: bool = False
    ) -> None:
        self.folder = folder
        self.max_pixels = max_pixels
        if file is not None:
            self._files = {_split_name(file): file}
        else:
            self._files = _other_files(folder) if anywhere else _annotation_files(folder.root)

    @property
    def splits(self) -> list[str]:
        """Names of the splits that have annotations."""
        return list(self._files)

    def read(self, split: str) -> Reading:
        """Reads one split, with its faults; a file that cannot be read at all is a DataError."""
        path = self._files[split]
        file = self.folder.relative(path)
        content = _load(path, file)
        collector = AnnotationCollector(self.folder, "annotation", self.max_pixels)
        names = _categories(content["categories"], file, collector)
        notes = _without_group(content, names)
        classes, category_ids, labels = labels_of(names, file, collector.faults)
        images = self._images(content["images"], split, path, file, collector)
        _annotations(content["annotations"], images, labels, file, collector)
        return collector.reading(classes, category_ids, notes)

    def _images(
        self, entries: list[Any], split: str, path: Path, file: str, collector: AnnotationCollector
    ) -> dict[int, int | None]:
        """The index of each image by its id, None for unusable images."""
        base = self._image_folder(entries, split, path)
        images: dict[int, int | None] = {}
        for position, entry in enumerate(entries):
            image_id = _integer(entry.get("id")) if isinstance(entry, dict) else None
            todo = "give each image a unique integer"
            if image_id is None:
                where = f"entry {position} of images"
                collector.add_fault("bad entry", file, "has an id that is not an integer", todo, where)
                continue
            name = entry.get("file_name")
            label = f"image {image_id} ({name})"
            if image_id in images:
                collector.add_fault("duplicate id", file, "has the same id as another image", todo, label)
                continue
            images[image_id] = None
            found = collector.find_image(name, base, file, label)
            if found is None:
                continue
            width, height = (_integer(entry.get(side, 0)) for side in ("width", "height"))
            if width is None or height is None or width < 0 or height < 0:
                what = f"has the size {shortened(entry.get('width'))} × {shortened(entry.get('height'))}"
                todo = "give width and height in pixels, or remove both"
                collector.add_fault("bad entry", file, what, todo, label)
                continue
            images[image_id] = collector.add_image(image_id, found, width, height, file, label)
        return images

    def _image_folder(self, entries: list[Any], split: str, path: Path) -> Path:
        """The folder with most of the first images."""
        root, home = self.folder.root, path.parent
        own = [root / split, root / "images" / split, root / split / "images"]
        candidates = [*own, *_test_folders(root, split)]
        if home not in (root, root / "annotations"):
            candidates = [home, *(home / name for name in _IMAGE_FOLDERS)]
        candidates += [*(root / name for name in _IMAGE_FOLDERS), root]
        candidates = [folder for folder in dict.fromkeys(candidates) if folder.is_dir()] or candidates
        names = [entry.get("file_name") for entry in entries[:_TRIED] if isinstance(entry, dict)]
        usable = [name for name in names if isinstance(name, str) and "\0" not in name]
        hits = {folder: sum(self.folder.locate(name, folder) is not None for name in usable) for folder in candidates}
        if not any(hits.values()):
            for folder in candidates:
                hits[folder] = sum(self.folder.locate_by_end(name, folder) is not None for name in usable)
        return max(candidates, key=lambda folder: hits[folder])


def _without_group(content: dict[str, list[Any]], names: dict[int, str]) -> list[str]:
    """Removes and reports a category that only groups the others, as Roboflow writes it."""
    entries = [entry for entry in content["categories"] if isinstance(entry, dict)]
    for entry in entries:
        number, name = _integer(entry.get("id")), entry.get("name")
        others = [other for other in entries if other is not entry]
        groups = others and all(other.get("supercategory") == name for other in others)
        top = entry.get("supercategory") in (None, "", "none")
        if number in names and groups and top and not any(_is_of(row, number) for row in content["annotations"]):
            del names[number]
            return [f"the category {escaped(name)!r} groups the others and has no box: it is not a class"]
    return []


def _is_of(row: Any, category: int) -> bool:
    return isinstance(row, dict) and _integer(row.get("category_id")) == category


def _load(path: Path, file: str) -> dict[str, list[Any]]:
    """Reads the three lists of the file."""
    try:
        content = read_json(path, limit=2**34)
    except ParseError as error:
        raise DataError(f"{file}: {error}; export it again") from error
    if not isinstance(content, dict):
        raise DataError(
            f"{file}: contains a {type(content).__name__} instead of an object; export it as COCO instances"
        )
    if path.stem.startswith(_UNSEEN):
        content.setdefault("annotations", [])
    for key in ("images", "annotations", "categories"):
        if not isinstance(content.get(key), list):
            raise DataError(f"{file}: has no list {key!r}; export it as COCO instances")
    return content


def _categories(entries: list[Any], file: str, collector: AnnotationCollector) -> dict[int, str]:
    """Category names by id."""
    names: dict[int, str] = {}
    for position, entry in enumerate(entries):
        number = _integer(entry.get("id")) if isinstance(entry, dict) else None
        name = entry.get("name") if isinstance(entry, dict) else None
        if number is None or not isinstance(name, str) or not name:
            what = f"entry {position} of categories has no name or no integer id"
            collector.add_fault("bad entry", file, what, "give each category both")
        elif number in names:
            what = f"the categories {shortened(names[number])} and {shortened(name)} both have the id {number}"
            collector.add_fault("duplicate id", file, what, "give each category a unique integer")
        else:
            names[number] = name
    if not names:
        raise DataError(f"{file}: has no categories; list each class under 'categories' with id and name")
    return names


def _annotations(
    entries: list[Any], images: dict[int, int | None], labels: dict[int, int], file: str, collector: AnnotationCollector
) -> None:
    seen: set[int] = set()
    for position, entry in enumerate(entries):
        if not isinstance(entry, dict):
            what = f"entry {position} of annotations is not an object"
            collector.add_fault("bad entry", file, what, "export the file again")
            continue
        number = _integer(entry.get("id", -1 - position))
        image_id = _integer(entry.get("image_id"))
        category = _integer(entry.get("category_id"))
        image = images.get(image_id) if image_id is not None else None
        label = labels.get(category) if category is not None else None
        box = _corners(entry.get("bbox"))
        crowd = _flag(entry.get("iscrowd"))
        kind, todo = "bad entry", "give each annotation a unique integer"
        if number is None:
            what = "has an id that is not an integer"
        elif number in seen:
            kind, what = "duplicate id", "has the same id as another annotation"
        elif image_id not in images:
            what = f"belongs to image {shortened(entry.get('image_id'))}, which the file does not list"
            kind, todo = "unknown image", "add the image or remove the annotation"
        elif label is None:
            what = "has no category_id"
            if "category_id" in entry:
                what = f"has category {shortened(entry['category_id'])}, which the file does not list"
            kind, todo = "unknown category", "add the category or remove the annotation"
        elif box is None:
            what = f"has {shortened(entry['bbox'])} as bbox" if "bbox" in entry else "has no bbox"
            todo = "give four numbers: left, top, width, height"
            todo += "; outlines alone are not read" if "bbox" not in entry and "segmentation" in entry else ""
        elif crowd is None:
            what, todo = f"has {shortened(entry.get('iscrowd'))} as iscrowd", "give 0, or 1 for a crowd"
        else:
            seen.add(number)
            if image is not None:  # otherwise the image itself is at fault
                area = entry.get("area")
                area = float(area) if isinstance(area, int | float) and 0 < area < 1e300 else 0.0
                collector.add_box(image, number, box, label, crowd, area)
            continue
        which = f"annotation {shortened(entry['id']) if 'id' in entry else f'at position {position}'}"
        where = f"image {image_id}" if image_id in images else ""
        collector.add_fault(kind, file, what, todo, where, which)


def _corners(box: Any) -> tuple[float, float, float, float] | None:
    """Converts COCO's left, top, width, height to xyxy."""
    if not isinstance(box, list) or len(box) != 4 or any(isinstance(value, bool) for value in box):
        return None
    try:
        left, top, width, height = map(float, box)
    except (TypeError, ValueError, OverflowError):
        return None
    return left, top, left + width, top + height


def _flag(value: Any) -> bool | None:
    """Whether a flag is set, None if it is neither 0 nor 1; a missing flag is not set."""
    if value is None or isinstance(value, bool):
        return bool(value)
    number = _integer(value)
    return bool(number) if number in (0, 1) else None


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if (isinstance(value, float) and value.is_integer()) or (
        isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20
    ):
        value = int(value)
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _annotation_files(root: Path) -> dict[str, Path]:
    """The annotation file of each split."""
    files: dict[str, Path] = {}
    for path in sorted(root.glob("annotations/*.json")):
        files.setdefault(path.stem, path)
    instances = {stem.removeprefix("instances_"): path for stem, path in files.items() if stem.startswith("instances_")}
    # COCO's captions_* and person_keypoints_* files are not splits. Its lists of test images are, if the images exist.
    unseen = {stem.removeprefix(_UNSEEN): path for stem, path in files.items() if stem.startswith(_UNSEEN)}
    if instances:
        with_images = {
            split: path for split, path in unseen.items() if any(map(Path.is_dir, _test_folders(root, split)))
        }
        files = instances | {split: path for split, path in with_images.items() if split not in instances}
    for path in sorted(root.glob("*/_annotations.coco.json")):
        files.setdefault(path.parent.name, path)
    if not files and (root / "_annotations.coco.json").is_file():
        files["train"] = root / "_annotations.coco.json"
    return files


def _other_files(folder: Folder) -> dict[str, Path]:
    """COCO files with any name, in the folder itself or one per split folder."""
    for pattern in ("*.json", "*/*.json"):
        found = [path for path in sorted(folder.root.glob(pattern)) if not folder.leads_out(folder.relative(path))]
        # Files with annotations of a single image are not COCO.
        found = found if len(found) <= _MOST_FILES else []
        usable = [path for path in found if path.parent == folder.root or role(path.parent.name)]
        files: dict[str, Path] = {}
        for path in filter(_looks_like_coco, usable):
            name = _split_name(path) if path.parent == folder.root else path.parent.name
            files[name if name not in files else path.stem] = path
        if files:
            return files
    return {}


def _split_name(path: Path) -> str:
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


def _test_folders(root: Path, split: str) -> list[Path]:
    """The image folders of a test split: test-dev2017 is a part of test2017."""
    names = dict.fromkeys((split, split.replace("-dev", "")))
    return [folder for name in names for folder in (root / name, root / "images" / name)]


def write_coco(dataset: DetectionDataset, folder: Path, split: str) -> Path:
    """Writes the images and annotations of a dataset as a COCO folder.

    Args:
        dataset: The dataset; its transform is not applied.
        folder: Output folder: images go to ``<split>/``, annotations to ``annotations/instances_<split>.json``.
        split: Name of the split.

    Returns:
        The annotation file.
    """
    images = folder / split
    make_folder(images)
    truth = dataset.ground_truth()
    for index, entry in enumerate(truth["images"]):
        image, _ = dataset.load(index)
        entry["file_name"] = f"{entry['id']:06d}.png"
        # PNG is lossless; low compression is five times as fast and the files are slightly larger.
        picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        with explained(images / entry["file_name"]):
            picture.save(images / entry["file_name"], compress_level=1)
    path = folder / "annotations" / f"instances_{split}.json"
    make_folder(path.parent)
    write_text(path, json.dumps(truth))
    return path
