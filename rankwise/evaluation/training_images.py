"""A contact sheet of training images."""

from __future__ import annotations

from pathlib import Path

from rankwise.config.datasets import open_datasets
from rankwise.config.recipe import Recipe
from rankwise.data.loader import build_loader
from rankwise.errors import SettingsError
from rankwise.evaluation.drawing import target_sheet
from rankwise.files.names import escaped
from rankwise.files.writing import make_folder, write_picture

_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}


def draw_training_images(recipe: Recipe, path: Path, images: int = 12) -> str:
    """Draws the first training images as the detector sees them, with their boxes, in the format of the file name;
    returns a description."""
    if path.suffix.lower() not in _FORMATS:
        raise SettingsError(f"--out {escaped(path)}: a picture can be written as {', '.join(_FORMATS)}")
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
    make_folder(path.parent)
    write_picture(path, sheet, _FORMATS[path.suffix.lower()], quality=90)
    return description
