"""Which samples rank against each other: those of a batch, of each image by itself, or of all processes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, distributed

from rankwise.losses.inputs import Samples, check_finite, read_samples
from rankwise.pairsums import Negatives, gather_rows, world_size

Scope = Literal["batch", "image", "world"]


@dataclass(frozen=True)
class Group:
    """Samples that rank against each other.

    Attributes:
        negatives: Those of this process.
        positives: Logits, [P]; in the scope "world" those of all processes.
        quality: Of the positives, float64 [P]; zeros where none was given.
        place: Where the positives are in the flat logits, int64 [P]; -1 for those of another process.
    """

    negatives: Negatives
    positives: Tensor
    quality: Tensor
    place: Tensor


def make_groups(
    logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None, scope: Scope = "batch"
) -> list[Group]:
    """The groups of samples that have a positive, from what a loss is called with; raises ValueError on bad input.

    NaN and infinity among the negatives are only noticed when they are summed over.

    Args:
        logits: float [A, C].
        labels: int64 [A], 0 to C - 1 a positive's class, C background, -1 ignored.
        quality: float [A], read only at positives.
        image: int64 [A], which image each row is from; needed for scope "image".
        scope: "batch", "image" or "world".
    """
    logits = logits.detach()
    if scope == "world" and world_size() > 1:
        return _of_the_world(logits, labels, quality)
    by_image = scope == "image"  # images without positives are not summed over
    samples = _read(logits, labels, quality, image if by_image else None, finite=by_image)
    if len(samples.rows) == 0:
        check_finite(logits)
        return []
    return _by_image(samples) if by_image else [_group(samples)]


def _read(
    logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None = None, finite: bool = False
) -> Samples:
    samples = read_samples(
        logits,
        labels,
        quality,
        image,
        needs_quality=quality is not None,
        needs_image=finite,
        finite=finite,
    )
    if not bool(samples.logits[samples.rows, samples.classes].isfinite().all()):
        check_finite(logits)
    return samples


def _group(samples: Samples) -> Group:
    """All samples in one group."""
    classes = samples.logits.shape[1]
    flat = samples.logits.contiguous().view(-1)
    first = samples.marked * classes + samples.marks.clamp(min=0)
    length = torch.where(samples.marks < 0, classes, 1)
    place = first[samples.marks >= 0] if samples.has_ignored else first
    if samples.quality is None:
        quality = torch.zeros(len(place), dtype=torch.float64, device=place.device)
    else:
        quality = samples.quality.double()
    skip = torch.stack([first, first + length], 1)
    return Group(Negatives(flat, skip=skip, columns=classes), flat[place], quality, place)


def _by_image(samples: Samples) -> list[Group]:
    """A group for each image with positives."""
    assert samples.image is not None
    if bool((samples.image.diff() < 0).any()):
        return _mixed_images(samples)
    whole, classes = _group(samples), samples.logits.shape[1]
    _, lengths = samples.image.unique_consecutive(return_counts=True)
    ends = lengths.cumsum(0) * classes
    assert whole.negatives.skip is not None
    marks, positives = (
        torch.searchsorted(places, ends) for places in (whole.negatives.skip[:, 0].contiguous(), whole.place)
    )
    bounds = torch.nn.functional.pad(torch.stack([ends, marks, positives]), (1, 0)).T.tolist()
    groups = []
    for (start, mark, first), (end, last_mark, last) in pairwise(bounds):
        if first == last:
            continue
        skip = whole.negatives.skip[mark:last_mark] - start
        negatives = replace(whole.negatives, values=whole.negatives.values[start:end], start=start, skip=skip)
        groups.append(Group(negatives, whole.positives[first:last], whole.quality[first:last], whole.place[first:last]))
    return groups


def _mixed_images(samples: Samples) -> list[Group]:
    """A group for each image with positives, the images' rows in any order."""
    assert samples.image is not None
    order = samples.image.argsort(stable=True)
    quality = samples.logits.new_zeros(len(order))
    if samples.quality is not None:
        quality[samples.rows] = samples.quality
    in_order = read_samples(
        samples.logits[order],
        samples.labels[order],
        quality[order],
        samples.image[order],
        needs_quality=True,
        needs_image=True,
        finite=False,
    )
    classes = samples.logits.shape[1]

    def original(place: Tensor) -> Tensor:
        return order[place // classes] * classes + place % classes

    groups = []
    for group in _by_image(in_order):
        start, number = group.negatives.start, group.negatives.values.numel()
        index = original(torch.arange(start, start + number, device=order.device))
        negatives = replace(group.negatives, start=0, index=index)
        groups.append(replace(group, negatives=negatives, place=original(group.place)))
    return groups


def _of_the_world(logits: Tensor, labels: Tensor, quality: Tensor | None) -> list[Group]:
    """One group with the positives of all processes. A mistake in one process is an error in all: none must wait."""
    mistake: ValueError | None = None
    try:
        mine = _group(_read(logits, labels, quality))
        rows = torch.stack([mine.positives.double(), mine.quality], 1)
    except ValueError as error:
        mistake = error
        rows = torch.full((1, 2), torch.nan, dtype=torch.float64, device=logits.device)
    everyone = gather_rows(rows)
    if mistake:
        raise mistake
    positives, all_quality = torch.cat(everyone).T.contiguous()
    if bool(positives.isnan().any()):
        raise ValueError("another process was called with bad values; its own message says which")
    if len(positives) == 0:
        check_finite(logits)
        return []
    others = [torch.full((len(part),), -1, device=logits.device) for part in everyone]
    others[distributed.get_rank()] = mine.place
    negatives = replace(mine.negatives, world=True)
    return [Group(negatives, positives.to(mine.positives.dtype), all_quality, torch.cat(others))]
