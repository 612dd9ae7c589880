"""The first lines of a training: device, data, weights and folder, and warnings about the data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import torch

from rankwise.config.recipe import Recipe
from rankwise.data.balance import balance_lines
from rankwise.data.checks import SUSPICIOUS
from rankwise.data.dataset import DetectionDataset
from rankwise.files.names import counted, join_names, short_name, wrapped
from rankwise.images.settings import InputSettings

#: Warn if the most frequent class has this many times the boxes of the rarest.
UNEVEN = 10
#: Boxes with a side below this many input pixels are hard to detect.
TINY = 8
#: Maximum number of class names in a line.
NAMES = 8


def announcement(
    recipe: Recipe, folder: Path, device: torch.device, train: DetectionDataset, val: DetectionDataset, weights: str
) -> list[str]:
    """The lines to print, in order, broken at 80 columns."""
    threads = f", {counted(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else ""
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    sizes = recipe.model.input
    lines = [
        f"device    {device}{name}{threads}, precision {recipe.train.precision}",
        f"images    {len(train):,} for training{_boxes(train)}, {len(val):,} for validation{_boxes(val)}",
        f"classes   {len(train.classes)}: {join_names(train.classes, NAMES)}",
        f"detector  {recipe.model.backbone.name} at {sizes.short_side} × {sizes.max_side} pixels at most, "
        f"{type(recipe.loss).__name__}, {type(recipe.assign).__name__}",
        f"weights   {weights}",
        f"run       {folder}/",
        *(["compile   torch.compile runs in the first step, which can take minutes"] if recipe.train.compile else []),
        *balance_lines(train, recipe.data.balance),
        *(warnings(train, sizes, bool(recipe.data.balance)) if isinstance(train.records, list) else []),
    ]
    return list(map(wrapped, lines))


def warnings(train: DetectionDataset, sizes: InputSettings, balanced: bool = False) -> list[str]:
    """Warnings about class imbalance, tiny boxes and probable annotation mistakes, one line each."""
    lines = []
    labels = Counter(int(label) for record in train.records for label in record.labels[~record.iscrowd])
    counts = sorted((labels.get(label, 0), name) for label, name in enumerate(train.classes))
    (few, rare), (many, frequent) = counts[0], counts[-1]
    if many >= UNEVEN * max(few, 1) or few == 0 < many:
        lines.append(
            f"uneven    '{short_name(frequent)}' has {many:,} boxes, '{short_name(rare)}' has {few:,}: expect a lower "
            "AP for rare classes" + ("" if balanced else "; --data.balance samples their images more often")
        )
    shorter, seen = [], []
    for record in train.records:
        height, width = sizes.input_size(record.height, record.width)
        sides = record.boxes[~record.iscrowd, 2:] - record.boxes[~record.iscrowd, :2]
        shorter.append(sides.min(axis=1))
        seen.append((sides * [width / record.width, height / record.height]).min(axis=1))
    if not any(map(len, shorter)):
        return [*lines, "boxes     no boxes found: the detector will learn to detect nothing"]
    pixels, visible = np.concatenate(shorter), np.concatenate(seen)
    if small := int((pixels < SUSPICIOUS).sum()):
        boxes = "box is" if small == 1 else "boxes are"
        lines.append(f"check     {small:,} {boxes} less than {SUSPICIOUS} pixels wide or high: annotation mistakes?")
    if (share := float((visible < TINY).mean())) >= 0.05:
        lines.append(
            f"tiny      {100 * share:.0f} % of the boxes have a side below {TINY} pixels at the input size: a larger "
            f"--size helps if the images are large enough"
        )
    return lines


def _boxes(dataset: DetectionDataset) -> str:
    """How many boxes there are, unless images would have to be drawn to count them."""
    if not isinstance(dataset.records, list):
        return ""
    count = sum(int((~record.iscrowd).sum()) for record in dataset.records)
    return f" with {counted(count, 'box', 'boxes')}"
