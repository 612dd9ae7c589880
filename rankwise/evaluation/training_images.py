"""A contact sheet of training images."""

from __future__ import annotations

from pathlib import Path

from rankwise.config.datasets import open_datasets
from rankwise.config.recipe import Recipe
from rankwise.data.loader import build_loader
from rankwise.evaluation.drawing import target_sheet
from rankwise.files.writing import make_folder, write_picture


def draw_training_images(recipe: Recipe, path: Path, images: int = 12) -> str:
    """Draws the first training images as the detector sees them, with their boxes, as PNG or JPEG; returns a
    description."""
    size = recipe.model.input
    dataset, _ = open_datasets(recipe.data, size)
    loader = build_loader(
        dataset,
        1,
        shuffle=True,
        seed=recipe.train.seed,
        divisor=size.divisor,
        colour=size.mean_colour,
        balance=recipe.data.balance,
    )
    batches = [batch for _, batch in zip(range(images), loader.epoch(0), strict=False)]
    items = [(batch.images[0], batch.targets[0]) for batch in batches]
    augment = {name: value for name, value in vars(recipe.data.augment).items() if value}
    augmentation = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else name for name, value in augment.items()
    )
    boxes = sum(len(target["boxes"]) for _, target in items)
    description = (
        f"{len(items)} of {loader.images:,} training images with {boxes} boxes, as the detector sees them"
        + f" ({augmentation or 'no augmentation'})"
    )
    sheet = target_sheet(items, dataset.classes, description)
    format = "JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else "PNG"
    make_folder(path.parent)
    write_picture(path, sheet, format, quality=90)
    return description
