"""The two datasets of a run: what it learns from and what it is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankwise.config.reading import read_section
from rankwise.config.settings import DataSettings
from rankwise.data import DataError, DetectionDataset, EvalTransform, ShapesDataset, TrainTransform, open_dataset
from rankwise.data.finding import find_source
from rankwise.data.formats import shared_images
from rankwise.data.splits import matching_splits
from rankwise.from_dict import from_dict
from rankwise.images.settings import InputSettings


def open_split(
    data: DataSettings, split: str, classes: Sequence[str] | None = None, named: bool = False
) -> DetectionDataset:
    """One split of a recipe's dataset, without a transform.

    Args:
        data: The recipe's section.
        split: "train" or "val" for the recipe's training and validation split, or the name of another split.
        classes: The detector's classes; labels are matched with them by name.
        named: Whether a user named the split: "train" and "val" then are the dataset's own splits of these names, and
            the recipe's only where there are none.

    Raises:
        DataError: When there is no such dataset or split, or something is wrong with it.
    """
    builtin = data.path == "shapes"
    if not builtin and not Path(data.path).exists():
        raise DataError(
            f"{data.path}: there is no such folder; name the folder of a dataset, or 'shapes' for the built-in one"
        )
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
    """The data settings of a run and one split of its dataset, without a transform.

    Args:
        run: Folder of the run.
        data: Another dataset than the run's own, or where it is now.
        split: Another split than the run's validation split.
        classes: The detector's classes; labels are matched with them by name.

    Raises:
        FileNotFoundError: When the folder holds no run.
        DataError: When there is no such dataset or split, or something is wrong with it.
    """
    settings = from_dict(DataSettings, read_section(run, "data"), "data")
    if data is not None:
        settings = replace(settings, path=data)
    elif settings.path != "shapes" and not Path(settings.path).exists():
        raise DataError(f"{settings.path}: the dataset of {run} is not there any more; say where it is now: --data DIR")
    return settings, open_split(settings, split or "val", classes, named=split is not None)


def open_datasets(data: DataSettings, size: InputSettings) -> tuple[DetectionDataset, DetectionDataset]:
    """Training and validation images of a recipe, with their transforms.

    Args:
        data: The recipe's section.
        size: The size the detector sees images in.
    """
    train_set = open_split(data, "train")
    val_set = open_split(data, "val", train_set.classes)
    if data.path != "shapes" and (shared := shared_images(train_set.records, val_set.records)):
        train_set.notes.append(
            f"WARNING: {len(shared):,} of the {len(val_set):,} validation images are training images as well (such as "
            f"{shared[0]}): AP does not say how good the detector is on new images. Give --data.val another split"
        )
    return train_set.with_transform(TrainTransform(size, data.augment)), val_set.with_transform(EvalTransform(size))


def results_subfolder(section: dict[str, Any], data: str | None, split: str | None, tta: bool = False) -> str:
    """Where in a run's folder results go: in itself for its own validation images and test-time augmentation.

    Args:
        section: The data section of its recipe.
        data: Another dataset than the run's own.
        split: Another split than the run's validation split.
        tta: Whether another test-time augmentation is used.
    """
    parts = []
    if data is not None and Path(data).resolve() != Path(str(section.get("path"))).resolve():
        parts.append(Path(data).resolve().name)
    if split is not None and split != section.get("val", "val"):
        parts.append(split)
    name = "-".join(["eval", *parts]) if parts else ""
    return f"{name}-tta".lstrip("-") if tta else name
