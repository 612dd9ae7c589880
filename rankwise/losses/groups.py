"""Which samples rank against each other: those of a batch, of each image by itself, or of all processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rankwise.losses.inputs import read_samples
from rankwise.pairsums import Negatives

Scope = Literal["batch", "image", "world"]


@dataclass(frozen=True)
class Group:
    """Samples that rank against each other.

    Attributes:
        negatives: Those of this process.
        positives: Logits, [P].
        quality: Of the positives, float64 [P]; zeros where none was given.
        place: Where the positives are in the flat logits, int64 [P].
    """

    negatives: Negatives
    positives: Tensor
    quality: Tensor
    place: Tensor


def make_groups(
    logits: Tensor,
    labels: Tensor,
    quality: Tensor | None,
    image: Tensor | None,
    scope: Scope = "batch",
) -> list[Group]:
    """The groups of samples that have a positive, from what a loss is called with; raises ValueError on bad input.

    Args:
        logits: float [A, C].
        labels: int64 [A], 0 to C - 1 a positive's class, C background, -1 ignored.
        quality: float [A], read only at positives.
        image: int64 [A], which image each row is from; needed for scope "image".
        scope: "batch", "image" or "world".
    """
    samples = read_samples(
        logits, labels, quality, image, needs_quality=quality is not None, needs_image=scope == "image"
    )
    flat = samples.logits.detach().contiguous().view(-1)
    if scope == "image":
        assert image is not None
        return _by_image(flat, logits.shape[1], labels, quality, image)
    rows = (labels != logits.shape[1]).nonzero().squeeze(1)
    return [_group(flat, logits.shape[1], rows, labels[rows].long(), quality)] if len(samples.rows) else []


def _group(flat: Tensor, classes: int, rows: Tensor, kinds: Tensor, quality: Tensor | None, start: int = 0) -> Group:
    """The group of a stretch of flat logits. ``rows`` are its positive and ignored ones, ``kinds`` their labels."""
    ignored = kinds < 0
    first = rows * classes + kinds.clamp(min=0)
    skip = torch.stack([first, first + torch.where(ignored, classes, 1)], 1)
    place, of = first[~ignored], rows[~ignored]
    q = flat.new_zeros(of.numel(), dtype=torch.float64) if quality is None else quality.detach()[of].double()
    return Group(Negatives(flat, start, skip=skip), flat[place], q, place + start)


def _by_image(flat: Tensor, classes: int, labels: Tensor, quality: Tensor | None, image: Tensor) -> list[Group]:
    groups = []
    for number in image.unique().tolist():
        rows = (image == number).nonzero().squeeze(1)
        mine = labels[rows]
        of = (mine != classes).nonzero().squeeze(1)
        index = (rows[:, None] * classes + torch.arange(classes, device=rows.device)).flatten()
        if not bool(((mine >= 0) & (mine != classes)).any()):
            continue
        group = _group(flat[index], classes, of, mine[of], None if quality is None else quality[rows])
        negatives = Negatives(group.negatives.values, index=index, skip=group.negatives.skip)
        groups.append(Group(negatives, group.positives, group.quality, index[group.place]))
    return groups
