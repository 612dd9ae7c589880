"""Repeat-factor sampling: images of rare classes appear more often (LVIS, https://arxiv.org/abs/1908.03195)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rankwise.data.dataset import DetectionDataset
from rankwise.files.names import short_name


def class_shares(dataset: DetectionDataset) -> NDArray[np.float64]:
    """The fraction of images that contain each class, without crowd boxes."""
    images = np.zeros(len(dataset.classes))
    for record in dataset.records:
        images[np.unique(record.labels[~record.iscrowd])] += 1
    return images / max(1, len(dataset))


def repeat_factors(dataset: DetectionDataset, balance: bool | float) -> list[float] | None:
    """How often each image appears in an epoch: max(1, √(t / f)), f the fraction of images with its rarest class.

    The threshold t is ``balance``; True uses the f of the median class. None if ``balance`` is False or 0, or no image
    has a box.
    """
    if not balance:
        return None
    shares = class_shares(dataset)
    present = shares[shares > 0]
    if not len(present):
        return None
    threshold = float(np.median(present)) if balance is True else float(balance)
    factors = np.ones(len(shares))
    factors[shares > 0] = np.maximum(1, np.sqrt(threshold / present))
    return [float(factors[np.unique(record.labels[~record.iscrowd])].max(initial=1.0)) for record in dataset.records]


def repeated_order(factors: Sequence[float], generator: torch.Generator) -> list[int]:
    """The images of an epoch in random order, each ⌊factor⌋ or ⌈factor⌉ times, and on average exactly factor times.

    Every epoch has the same number of images: the rounded sum of the factors.
    """
    values = torch.tensor(factors, dtype=torch.float64)
    total = epoch_images(factors)
    shuffled = torch.randperm(len(values), generator=generator)
    ends = (values[shuffled] * (total / values.sum())).cumsum(0)
    ends[-1] = total  # exactly, despite rounding errors
    offset = torch.rand((), dtype=torch.float64, generator=generator)
    counts = (ends + offset).floor().diff(prepend=torch.zeros(1, dtype=torch.float64)).long()
    order = shuffled.repeat_interleave(counts)
    return order[torch.randperm(total, generator=generator)].tolist()


def epoch_images(factors: Sequence[float]) -> int:
    """Number of images per epoch."""
    return round(sum(factors))


def balance_lines(dataset: DetectionDataset, balance: bool | float) -> list[str]:
    """The start-up line about repeated images, if there are any."""
    factors = repeat_factors(dataset, balance)
    if factors is None:
        return []
    if epoch_images(factors) == len(dataset):
        return ["balance   no class is rare enough for its images to be repeated"]
    shares = class_shares(dataset)
    rare = int(np.argmin(np.where(shares > 0, shares, np.inf)))
    return [
        f"balance   an epoch has {epoch_images(factors):,} images instead of {len(dataset):,}: images of rare "
        f"classes are repeated, those with '{short_name(dataset.classes[rare])}' {max(factors):.1f} times"
    ]
