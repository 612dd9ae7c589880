"""Opens the training and validation datasets of a recipe or run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankwise.config.reading import read_section
from rankwise.config.settings import DataSettings
from rankwise.data import DataError, DetectionDataset, EvalTransform, ShapesDataset, TrainTransform, open_dataset
from rankwise.data.combine import Combine
from rankwise.data.finding import find_source
from rankwise.data.formats import shared_images
from rankwise.data.splits import matching_splits
from rankwise.data.yolo import yaml_file
from rankwise.from_dict import from_dict
from rankwise.images.settings import InputSettings


def open_split(
    data: DataSettings, split: str, classes: Sequence[str] | None = None, named: bool = False
) -> DetectionDataset:
    """Opens one split of the dataset of a recipe, without a transform.

    "train" and "val" are the training and validation split of the recipe. If the user ``named`` the split, they are
    splits of the dataset; if it has none of that name, those of the recipe. Labels are matched with ``classes`` by
    name.

    Raises:
        DataError: If the dataset or split does not exist or is invalid.
    """
    builtin = data.path == "shapes"
    if not builtin and not Path(data.path).exists():
        what = "give that of a dataset (--data DIR), or 'shapes' for the built-in one"
        raise DataError(f"{data.path}: no such folder; {what}")
    name = {"train": data.train, "val": data.val}.get(split, split)
    if named and name != split and (builtin or len(matching_splits(split, find_source(data.path).splits)) == 1):
        name = split
    if builtin:
        shapes = data.shapes
        images = shapes.train_images if name == "train" else shapes.val_images
        return ShapesDataset(name, size=shapes.size, images=images, seed=shapes.seed)
    return open_dataset(data.path, name, skip_bad=data.skip_bad, classes=classes, train=data.train, val=data.val)


def open_run(
    run: Path, data: str | None = None, split: str | None = None, classes: Sequence[str] | None = None
) -> tuple[DataSettings, DetectionDataset]:
    """The data settings of a run, and one split of its dataset, by default the validation split, without a transform.

    ``data`` is another dataset, or the new location of that of the run. Labels are matched with ``classes`` by name.

    Raises:
        FileNotFoundError: If the folder is not a run.
        DataError: If the dataset or split does not exist or is invalid.
    """
    settings = from_dict(DataSettings, read_section(run, "data"), "data")
    moved = _has_moved(settings.path, data)
    notes = [f"{settings.path} no longer exists: {data} is taken as its new location"] if moved else []
    if data is not None:
        settings = replace(settings, path=data)
    elif settings.path != "shapes" and not Path(settings.path).exists():
        raise DataError(
            f"{settings.path}: the dataset of {run} no longer exists there; give its new location: --data DIR"
        )
    dataset = open_split(settings, split or "val", classes, named=split is not None)
    dataset.notes.extend(notes)
    return settings, dataset


def open_datasets(data: DataSettings, size: InputSettings) -> tuple[DetectionDataset, DetectionDataset]:
    """Opens the training and validation images of a recipe, with their transforms."""
    train_set = open_split(data, "train")
    val_set = open_split(data, "val", train_set.classes)
    if data.path != "shapes" and (shared := shared_images(train_set.records, val_set.records)):
        train_set.notes.append(
            f"WARNING: {len(shared):,} of the {len(val_set):,} validation images are also training images (such as "
            f"{shared[0]}): AP does not measure how well the detector works on new images. Set --data.val to another "
            f"split"
        )
    augment = data.augment
    combine = Combine(augment.mosaic, augment.mixup) if augment.mosaic or augment.mixup else None
    transform = TrainTransform(size, augment)
    return train_set.with_transform(transform, combine), val_set.with_transform(EvalTransform(size))


def results_subfolder(section: dict[str, Any], data: str | None, split: str | None, tta: bool = False) -> str:
    """The subfolder of a run for results: empty for its own validation images and test-time augmentation.

    ``section`` is the data section of its recipe; ``data`` another dataset, or the new location of that of the run.
    """
    parts = []
    known = section.get("path")
    if data is not None and _home(data) != _home(known) and not _has_moved(known, data):
        parts.append(home.stem if (home := _home(data)).is_file() else home.name)
    if split is not None and split != section.get("val", "val"):
        parts.append(split)
    name = "-".join(["eval", *parts]) if parts else ""
    return f"{name}-tta".lstrip("-") if tta else name


def _has_moved(known: object, data: str | None) -> bool:
    """Whether a dataset is that of a run in another place: of the same name, and no longer in its old place."""
    old = Path(str(known))
    if data is None or not old.is_absolute() or old.exists():
        return False
    folders = (path.parent if path.suffix in (".yaml", ".yml", ".json") else path for path in (old, Path(data)))
    return len({folder.absolute().name for folder in folders}) == 1


def _home(data: object) -> Path:
    """A dataset's folder; of a file that is not the one the folder is read by, the file."""
    path = Path(str(data)).resolve()
    return path.parent if path.is_file() and path == yaml_file(path.parent) else path
