"""The samples of a call, read and cut into groups that rank together."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from rankwise.distributed import all_gather_rows, rank
from rankwise.pairsums.spec import ROUNDING, Samples


class Limits(NamedTuple):
    """The lowest and highest of a group's positives, and bounds of its values: no negative is beyond them."""

    least: float
    most: float
    lowest: float
    highest: float


class Group(NamedTuple):
    """Samples that rank together.

    Attributes:
        values: Logits, float32 or float64, flat [n]: the negatives of this process, and what ``skip`` names.
        skip: Which of the values are not negatives: for the numba engine sorted disjoint intervals (first, one past the
            last), int64 [k, 2]. Not read by the others: their values are minus infinity where a positive is, and minus
            infinity or the lowest finite number in ignored rows; in the backward pass those of positives are as they
            are, for their gradient is written afterwards.
        positives: Logits, float64 [P], all finite; in the scope "world" those of all processes.
        quality: Of the positives, float64 [P]; zeros if the loss reads none.
        limits: The lowest and highest positive, and numbers that no value is below or above; None if not known.
        weight: How often each value counts, float64 [n]; None: once. The engines dense and torch read it.
    """

    values: Tensor
    skip: Tensor
    positives: Tensor
    quality: Tensor
    limits: Limits | None = None
    weight: Tensor | None = None


class Read(NamedTuple):
    """The samples, read.

    Attributes:
        values: Flat logits, float32 or float64, [n]; as in `Group`.
        columns: Number of classes.
        skip: What is not negative, as in `Saved`.
        rows: The rows of the positives, ascending, int64 [P].
        where: Where the positives are in the flat logits, ascending, int64 [P].
        positives: Their logits, float64 [P]; 0 for bad ones.
        quality: Their qualities, float64 [P]; 0 for bad ones, or if the loss reads none.
        faults: Number of bad labels, positives and qualities; also of bad negatives if they are known.
        limits: As in `Group`.
        known: Whether the faults of negatives are counted, and replaced in the values.
    """

    values: Tensor
    columns: int
    skip: Tensor
    rows: Tensor
    where: Tensor
    positives: Tensor
    quality: Tensor
    faults: Tensor | int
    limits: Limits | None = None
    known: bool = False


def read_samples(samples: Samples) -> Read:
    logits, labels = working(samples.logits), samples.labels
    columns, lowest = logits.shape[1], torch.finfo(logits.dtype).min
    rows = (labels.clamp(0, columns - 1) == labels).nonzero().squeeze(1)
    where = labels[rows].add_(rows, alpha=columns)
    kinds = labels.aminmax() if len(labels) else (labels.sum(), labels.sum())
    # Ignored rows are filled unseen where it would take waiting for the device to know that there are none.
    some = labels.device.type != "cpu" or int(kinds[0]) < 0
    ignored = labels < 0 if some else labels.new_empty(0, dtype=torch.bool)
    values = (logits.masked_fill(ignored[:, None], lowest) if some else logits.clone()).view(-1)
    found = values[where]
    quality = torch.zeros_like(found) if samples.quality is None else samples.quality[rows]
    both = torch.stack([found, quality], out=found.new_empty(2, len(rows), dtype=torch.float64))
    bounds = (*kinds, *(values.aminmax() if len(values) else kinds))
    ranges = both.aminmax(dim=1) if len(rows) else (both.sum(1), both.sum(1))
    seen = torch.cat([*(bound[None] for bound in bounds), *ranges]).tolist()
    (first, last, low, high), (least, worst, most, best) = seen[:4], seen[4:]
    values.index_fill_(0, where, -torch.inf)
    fine = first >= -1 and last <= columns and worst >= -ROUNDING and best <= 1 + ROUNDING
    faults = 0
    if not (fine and low - low == 0 == high - high and least - least == 0 == most - most):  # NaN is not zero
        wrong = [
            (labels < -1) | (labels > columns),
            ~both[0].isfinite(),
            both[1].clamp(-ROUNDING, 1 + ROUNDING) != both[1],
        ]
        faults = int(torch.cat([*wrong, ~values.index_fill(0, where, 0).isfinite()]).sum())
        values, both = values.nan_to_num_(0.0, 0.0, -torch.inf), both.nan_to_num_(0.0, 0.0, 0.0)
    elif least <= lowest and some:  # what is ignored must be below
        values = logits.masked_fill(ignored[:, None], -torch.inf).view(-1).index_fill_(0, where, -torch.inf)
    if not 0 <= worst <= best <= 1:
        both[1].clamp_(0, 1)
    limits = None if faults or not len(rows) else Limits(least, most, low, high)
    return Read(values, columns, ignored, rows, where, both[0], both[1], faults, limits, known=True)


def sorted_by_class(read: Read, samples: Samples) -> Read:
    """The same with the samples of each class together: flat logits by class, then by row; positives in that order."""
    number = len(samples.labels)
    where, order = (read.where % read.columns * number + read.rows).sort()
    skip = read.skip
    if skip.dtype != torch.bool:
        ignored = (samples.labels < 0).nonzero()
        every = (torch.arange(read.columns, device=where.device) * number + ignored).flatten()
        start = torch.cat([where, every]).sort().values
        skip = torch.stack([start, start + 1], 1)
    values, rows = flat_logits(read.values.view(number, -1), by_class=True), read.rows[order]
    return read._replace(
        values=values, skip=skip, rows=rows, where=where, positives=read.positives[order], quality=read.quality[order]
    )


def flat_logits(logits: Tensor, by_class: bool) -> Tensor:
    return (working(logits).T.contiguous() if by_class else working(logits)).view(-1)


def working(logits: Tensor) -> Tensor:
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def sorted_by_image(samples: Samples) -> tuple[Samples, Tensor | None]:
    """The samples with the rows of each image together, and the order of the rows if it is another."""
    if samples.image is None or not bool((samples.image.diff() < 0).any()):
        return samples, None
    order = samples.image.argsort(stable=True)
    return Samples(*(None if part is None else part[order] for part in samples)), order  # type: ignore[arg-type]


def unsorted(rows: Tensor, samples: Samples) -> Tensor:
    """Rows in the samples' own order."""
    order = sorted_by_image(samples)[1]
    return rows if order is None else torch.empty_like(rows).index_copy_(0, order, rows)


def group_ends(read: Read, samples: Samples, by_class: bool) -> Tensor | None:
    """Where each group of samples ends in the flat logits, int64 [groups]; None if there is one group."""
    rows = len(samples.labels)
    if by_class:
        return torch.arange(1, read.columns + 1, device=read.where.device) * rows
    if samples.image is None:
        return None
    _, lengths = samples.image.sort().values.unique_consecutive(return_counts=True)
    return lengths.cumsum(0) * read.columns


def group_slices(read: Read, ends: Tensor | None, number: int) -> list[tuple[slice, slice, slice]]:
    """For each group with positives, where it is in the flat logits, in ``skip`` and in the positives."""
    if number == 0:
        return []
    if ends is None:
        return [(slice(0, len(read.values)), slice(0, len(read.skip)), slice(0, number))]
    ours = torch.searchsorted(read.where, ends)
    by_rows = read.skip.dtype == torch.bool
    skips = torch.zeros_like(ends) if by_rows else torch.searchsorted(read.skip[:, 0].contiguous(), ends)
    bounds = torch.nn.functional.pad(torch.stack([ends, skips, ours]), (1, 0)).T.tolist()
    groups = ([slice(a, b) for a, b in zip(*edges, strict=True)] for edges in pairwise(bounds))
    return [(flat, skip, ours) for flat, skip, ours in groups if ours.start < ours.stop]


def highest_negatives(group: Group, number: int, shared: bool) -> tuple[Group, Tensor]:
    """Only the ``number`` highest negatives of a group, and where they are in its values.

    Shared means over all processes; of equal ones at the end those of the first processes are taken.
    """
    where = (~skipped(group.skip, group.values)).nonzero().squeeze(1)
    values, which = group.values[where].topk(min(number, len(where)), sorted=False)
    if shared:
        shares = [share[:, 0] for share in all_gather_rows(values[:, None])]
        everyone = torch.cat(shares)
        if len(everyone) > number:
            least = everyone.topk(number).values[-1]
            left = number - int((everyone > least).sum())  # equal ones still to take, process by process
            before = sum(int((share == least).sum()) for share in shares[: rank()])
            equal = (values == least).nonzero().squeeze(1)[: max(0, left - before)]
            which = torch.cat([which[values > least], which[equal]])
    where = where[which]
    return group._replace(values=group.values[where], skip=group.skip[:0]), where


def moved(skip: Tensor, start: int) -> Tensor:
    """What is not negative, counted from the start of a group."""
    return skip if skip.dtype == torch.bool or start == 0 else skip - start


def skipped(skip: Tensor, values: Tensor) -> Tensor:
    """Which of the values are not negatives, bool [n]."""
    if skip.dtype == torch.bool:
        return values <= torch.finfo(values.dtype).min
    lengths = skip[:, 1] - skip[:, 0]
    before = lengths.cumsum(0) - lengths
    which = (skip[:, 0] - before).repeat_interleave(lengths) + torch.arange(int(lengths.sum()))
    return torch.zeros_like(values, dtype=torch.bool).index_fill_(0, which, True)
