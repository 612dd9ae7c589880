"""Passes over all samples in cache-sized blocks, on several threads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from rankwise.losses.inputs import Samples
from rankwise.threads import in_parts

#: Entries per block on a CPU. With so few elements, torch runs an operator in the calling thread only. Our own threads
#: then synchronize once per pass instead of once per operator, which is faster on a busy machine.
ENTRIES_PER_BLOCK = 2**15 - 1

#: Minimum number of blocks per thread.
BLOCKS_PER_THREAD = 4

#: Largest relative error of a score in float32: a few roundings of 6e-8.
SCORE_ERROR = 2.0**-21

Result = TypeVar("Result")


@dataclass(frozen=True)
class Block:
    """Some rows of the samples.

    Attributes:
        rows: The slice of rows.
        logits: Their logits, detached, [rows, C].
        positives: Row in the block and class of each of its positives.
        ignored: Ignored entries, [rows, 1] or [rows, C], or None if there are none in the whole batch.
        weight: Weight of each entry, [rows, C], or None if all are 1.
    """

    rows: slice
    logits: Tensor
    positives: tuple[Tensor, Tensor]
    ignored: Tensor | None
    weight: Tensor | None = None

    def only_negatives(self, values: Tensor, otherwise: float = 0) -> Tensor:
        """Sets ``values`` [rows, C] of all samples that are not negative, in place."""
        if self.ignored is not None:
            values.masked_fill_(self.ignored, otherwise)
        if len(self.positives[0]):
            values[self.positives] = otherwise
        return values


def over_blocks(samples: Samples, work: Callable[[Block], Result]) -> list[Result]:
    """Runs ``work`` for all blocks of rows and returns the results in order; on a GPU there is only one block.

    Args:
        samples: The samples.
        work: Called with each block, on several threads at once.
    """
    logits = samples.values
    count, classes = logits.shape
    if logits.device.type != "cpu":
        return [work(_whole(samples))] if count else []
    step = max(1, ENTRIES_PER_BLOCK // classes)
    starts = list(range(0, count, step))
    first = torch.searchsorted(samples.rows, torch.tensor([*starts, count])).tolist()
    positives = list(itertools.starmap(slice, itertools.pairwise(first)))
    inference = torch.is_inference_mode_enabled()  # grad modes are per thread

    def one(number: int) -> Result:
        rows, mine = slice(starts[number], starts[number] + step), positives[number]
        own = samples.rows[mine] - rows.start, samples.classes[mine]
        ignored, weight = (None if part is None else part[rows] for part in (samples.ignored, samples.weight))
        return work(Block(rows, logits[rows], own, ignored, weight))

    def some(begin: int, end: int) -> list[Result]:
        with torch.inference_mode(inference):
            return [one(number) for number in range(begin, end)]

    return list(itertools.chain.from_iterable(in_parts(some, len(starts), BLOCKS_PER_THREAD)))


def _whole(samples: Samples) -> Block:
    """All samples as one block."""
    positives, ignored = (samples.rows, samples.classes), samples.ignored
    if samples.is_positive is not None:  # the number of positives is unknown, so a mask excludes them
        classes = torch.arange(samples.logits.shape[1], device=samples.logits.device)
        ignored = (samples.labels.unsqueeze(1) == classes) | (samples.labels < 0).unsqueeze(1)
        positives = samples.rows[:0], samples.classes[:0]
    return Block(slice(None), samples.values, positives, ignored, samples.weight)


def total(results: list[Tensor], like: Tensor) -> Tensor:
    """The sum of the results of all blocks in float64.

    Args:
        results: The results of all blocks.
        like: The result for zero blocks.
    """
    return torch.stack([like.double(), *(result.double() for result in results)]).sum(0)


def negative_regions(block: Block, p: Tensor, bins: int) -> Tensor:
    """The bin of the score of each negative of a block, 0 to ``bins`` - 1, flat; other samples get ``bins``.

    Args:
        block: The block.
        p: Its scores, [rows, C].
        bins: Number of bins.
    """
    return block.only_negatives(score_region(block.logits, p, bins), bins).flatten()


def histogram(regions: Tensor, bins: int, weights: Tensor | None = None) -> Tensor:
    """Number of values, or sum of their weights, in each of ``bins`` regions, without a host sync."""
    if regions.device.type == "cpu":
        return torch.bincount(regions, weights, minlength=bins)
    ones = torch.ones_like(regions, dtype=torch.int64) if weights is None else weights
    return ones.new_zeros(bins).index_add_(0, regions, ones)


def score_region(logits: Tensor, p: Tensor, bins: int) -> Tensor:
    """The bin of each score, of ``bins`` equal bins over [0, 1]; int32, because counting and look-up are faster.

    On a GPU, a score next to an edge may be rounded into the neighboring bin.

    Args:
        logits: Any shape.
        p: Their scores.
        bins: Number of bins.
    """
    if logits.device.type != "cpu":
        return p.mul(bins).int().clamp_(max=bins - 1)  # a search for scores near an edge would make the host wait
    low, high = (p.mul(bins * (1 + error)).floor_() for error in (-SCORE_ERROR, SCORE_ERROR))
    region, near = low.int(), high.sub_(low)
    if near.sum() > 0:
        near = near.bool()
        region[near] = _exact_region(logits[near], p[near], bins)
    return region


def _exact_region(logits: Tensor, p: Tensor, bins: int) -> Tensor:
    """The same by comparing logits with the nearest edge, because a rounded score may be on the wrong side of it."""
    nearest = p.mul(bins).round_().int()
    below = torch.arange(bins + 1, dtype=torch.float64)
    exact = torch.log(below / (bins - below))
    edges = exact.to(logits.dtype)
    edges = torch.where(edges < exact, torch.nextafter(edges, edges.new_tensor(math.inf)), edges)
    return nearest.sub_(logits.lt(edges.index_select(0, nearest.flatten()).view_as(logits)).int())
