"""The two datasets of a run: what it learns from and what it is measured on."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.data import DetectionDataset, EvalTransform, ShapesDataset, TrainTransform, open_dataset
from rankwise.models.settings import InputSettings
from rankwise.training.settings import DataSettings


def open_split(data: DataSettings, split: str, classes: Sequence[str] | None = None) -> DetectionDataset:
    """One split of a recipe's dataset, without a transform.

    Args:
        data: The recipe's section.
        split: "train" or "val" for the recipe's training and validation split, or the name of another split.
        classes: The detector's classes; labels are matched with them by name.
    """
    name = {"train": data.train, "val": data.val}.get(split, split)
    if data.path == "shapes":
        shapes = data.shapes
        images = shapes.train_images if name == "train" else shapes.val_images
        return ShapesDataset(name, size=shapes.size, images=images, seed=shapes.seed)
    return open_dataset(data.path, name, skip_bad=data.skip_bad, classes=classes)


def open_datasets(data: DataSettings, size: InputSettings) -> tuple[DetectionDataset, DetectionDataset]:
    """Training and validation images of a recipe, with their transforms.

    Args:
        data: The recipe's section.
        size: The size the detector sees images in.
    """
    train_set = open_split(data, "train")
    val_set = open_split(data, "val", train_set.classes)
    return train_set.with_transform(TrainTransform(size, data.augment)), val_set.with_transform(EvalTransform(size))
