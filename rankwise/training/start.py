"""What a run says before it trains: device, data, weights and folder, and what in the data deserves a look."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import torch

from rankwise.config.recipe import Recipe
from rankwise.data.dataset import DetectionDataset
from rankwise.images.settings import InputSettings

#: The most frequent class with this many times the boxes of the rarest is worth a line.
UNEVEN = 10
#: Boxes with fewer pixels than this on a side, as the detector sees them, are hardly found.
TINY = 8
#: Boxes below this many pixels in the file are more likely a slip than an object.
SLIP = 2
#: Class names that a line shows.
NAMES = 8


def announcement(
    recipe: Recipe, folder: Path, device: torch.device, train: DetectionDataset, val: DetectionDataset, weights: str
) -> list[str]:
    """The lines, in the order in which they are read.

    Args:
        recipe: What is trained.
        folder: Where the run goes.
        device: Where it is computed.
        train: The training images.
        val: The validation images.
        weights: Where the detector's first weights are from.
    """
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    names = ", ".join(train.classes[:NAMES]) + (", …" if len(train.classes) > NAMES else "")
    count = len(train.classes)
    sizes = recipe.model.input
    return [
        f"device    {device}{name}{threads}, precision {recipe.train.precision}",
        f"images    {len(train):,} to train on{_boxes(train)}, {len(val):,} to validate on{_boxes(val)}",
        f"classes   {count}: {names}",
        f"detector  {recipe.model.backbone.name} at {sizes.short_side} × {sizes.max_side} pixels at most, "
        f"{type(recipe.loss).__name__}, {type(recipe.assign).__name__}",
        f"weights   {weights}",
        f"run       {folder}/",
        *(warnings(train, sizes) if isinstance(train.records, list) else []),
    ]


def warnings(train: DetectionDataset, sizes: InputSettings) -> list[str]:
    """One line each on imbalance between classes, on tiny boxes and on slips, where there is reason to."""
    lines = []
    labels = Counter(int(label) for record in train.records for label in record.labels[~record.iscrowd])
    counts = sorted((labels.get(label, 0), name) for label, name in enumerate(train.classes))
    (few, rare), (many, frequent) = counts[0], counts[-1]
    if many >= UNEVEN * max(few, 1) or few == 0 < many:
        lines.append(f"uneven    {frequent!r} has {many:,} boxes, {rare!r} has {few:,}: expect a lower AP for the rare")
    shorter, seen = [], []
    for record in train.records:
        height, width = sizes.input_size(record.height, record.width)
        sides = record.boxes[~record.iscrowd, 2:] - record.boxes[~record.iscrowd, :2]
        shorter.append(sides.min(axis=1))
        seen.append((sides * [width / record.width, height / record.height]).min(axis=1))
    if not any(map(len, shorter)):
        return [*lines, "boxes     there are none: the detector learns that there is nothing to find"]
    pixels, visible = np.concatenate(shorter), np.concatenate(seen)
    if slips := int((pixels < SLIP).sum()):
        lines.append(f"slips     {slips:,} boxes are less than {SLIP} pixels wide or high: are they meant to be?")
    if (share := float((visible < TINY).mean())) >= 0.05:
        lines.append(
            f"tiny      {100 * share:.0f} % of the boxes have a side below {TINY} pixels at the detector's size: a "
            "larger --model.input.short_side helps, as far as the images have the pixels"
        )
    return lines


def _boxes(dataset: DetectionDataset) -> str:
    """How many boxes there are, unless images would have to be drawn to count them."""
    if not isinstance(dataset.records, list):
        return ""
    return f" with {sum(int((~record.iscrowd).sum()) for record in dataset.records):,} boxes"
