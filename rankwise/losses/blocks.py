"""Passes over all samples in cache-sized blocks, on several threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rankwise.losses.inputs import Samples
from rankwise.threads import in_parts

#: Entries per block on a CPU. With so few elements, torch runs an operator in the calling thread only. Our own threads
#: then synchronize once per pass instead of once per operator, which is faster on a busy machine.
ENTRIES_PER_BLOCK = 2**15 - 1

#: Minimum number of blocks per thread.
BLOCKS_PER_THREAD = 4

Result = TypeVar("Result")


@dataclass(frozen=True)
class Block:
    """Some rows of the samples.

    Attributes:
        rows: The slice of rows.
        logits: Their logits, detached, contiguous, [rows, C].
        positives: Where its positives are in its flat logits.
        ignored: Ignored entries, [rows, 1] or [rows, C], or None if there are none in the whole batch.
        weight: Weight of each entry, [rows, C], or None if all are 1.
    """

    rows: slice
    logits: Tensor
    positives: Tensor
    ignored: Tensor | None
    weight: Tensor | None = None

    def only_negatives(self, values: Tensor, otherwise: float = 0) -> Tensor:
        """Sets ``values`` [rows, C] of all samples that are not negative, in place."""
        if self.ignored is not None:
            values.masked_fill_(self.ignored, otherwise)
        if len(self.positives):
            values.view(-1).index_fill_(0, self.positives, otherwise)
        return values


def over_blocks(samples: Samples, work: Callable[[Block], Result]) -> list[Result]:
    """Runs ``work`` for all blocks of rows and returns the results in order; on a GPU there is only one block.

    Args:
        samples: The samples.
        work: Called with each block, on several threads at once.
    """
    logits = samples.values.contiguous()
    count, classes = logits.shape
    if logits.device.type != "cpu":
        return [work(_whole(samples, logits))] if count else []
    step = max(1, ENTRIES_PER_BLOCK // classes)
    starts = list(range(0, count, step))
    first = torch.searchsorted(samples.rows, torch.tensor([*starts, count])).tolist()
    positives = list(itertools.starmap(slice, itertools.pairwise(first)))
    where = samples.rows * classes + samples.classes
    inference = torch.is_inference_mode_enabled()  # grad modes are per thread

    def one(number: int) -> Result:
        rows = slice(starts[number], starts[number] + step)
        own = where[positives[number]] - rows.start * classes
        ignored, weight = (None if part is None else part[rows] for part in (samples.ignored, samples.weight))
        return work(Block(rows, logits[rows], own, ignored, weight))

    def some(begin: int, end: int) -> list[Result]:
        with torch.inference_mode(inference):
            return [one(number) for number in range(begin, end)]

    return list(itertools.chain.from_iterable(in_parts(some, len(starts), BLOCKS_PER_THREAD)))


def _whole(samples: Samples, logits: Tensor) -> Block:
    """All samples as one block."""
    classes, ignored = logits.shape[1], samples.ignored
    positives = samples.rows * classes + samples.classes
    if samples.is_positive is not None:  # the number of positives is unknown, so a mask excludes them
        own = samples.labels.unsqueeze(1) == torch.arange(classes, device=logits.device)
        ignored, positives = own | (samples.labels < 0).unsqueeze(1), positives[:0]
    return Block(slice(None), logits, positives, ignored, samples.weight)


def total(results: list[Tensor], like: Tensor) -> Tensor:
    """The sum of the results of all blocks in float64.

    Args:
        results: The results of all blocks.
        like: The result for zero blocks.
    """
    return torch.stack([like.double(), *(result.double() for result in results)]).sum(0)


def region_sums(block: Block, scores: Tensor, bins: int) -> Tensor:
    """Number and sum of the scores of the negatives of a block in each of ``bins`` equal bins, float64 [2, bins].

    Args:
        block: The block.
        scores: Its scores, [rows, C]; those of other samples are overwritten.
        bins: Number of bins of the score range [0, 1].
    """
    if _compiled(scores):
        from rankwise.losses import regions_numba

        block.only_negatives(scores, -1)
        tables = np.zeros((regions_numba.TABLES, 2, bins))
        regions_numba.sums(_flat(block.logits), _flat(scores), _edges(bins, scores.dtype), tables)
        return torch.from_numpy(tables.sum(0))
    both = torch.stack([torch.ones_like(scores), scores], -1).view(-1, 2)
    return histogram(_negative_regions(block, scores, bins), bins + 1, both)[:-1].T


def region_values(block: Block, scores: Tensor, table: Tensor) -> Tensor:
    """The value of ``table`` [bins] in the bin of each negative of a block, [rows, C]; 0 for other samples.

    Args:
        block: The block.
        scores: Its scores, [rows, C]; those of other samples are overwritten.
        table: A value per bin of the score range, in the dtype of the scores.
    """
    if _compiled(scores):
        from rankwise.losses import regions_numba

        block.only_negatives(scores, -1)
        values, edges = torch.empty_like(scores), _edges(len(table), scores.dtype)
        regions_numba.values(_flat(block.logits), _flat(scores), edges, table.numpy(), _flat(values))
        return values
    return F.pad(table, (0, 1)).index_select(0, _negative_regions(block, scores, len(table))).view_as(scores)


def histogram(regions: Tensor, bins: int, weights: Tensor) -> Tensor:
    """The sum of the weights [n] or [n, K] in each of ``bins`` regions, float64, without a host sync."""
    return weights.new_zeros(bins, *weights.shape[1:], dtype=torch.float64).index_add_(0, regions, weights.double())


def score_region(logits: Tensor, scores: Tensor, bins: int) -> Tensor:
    """The bin of each score, of ``bins`` equal bins over [0, 1].

    On a GPU, a score next to an edge may be rounded into the neighboring bin.
    """
    if logits.device.type != "cpu":
        return scores.mul(bins).int().clamp_(max=bins - 1)
    return torch.bucketize(logits, torch.from_numpy(_edges(bins, logits.dtype))[1:-1], right=True, out_int32=True)


def _negative_regions(block: Block, scores: Tensor, bins: int) -> Tensor:
    """The bin of the score of each negative of a block, flat; other samples get ``bins``."""
    return block.only_negatives(score_region(block.logits, scores, bins), bins).flatten()


@cache
def _edges(bins: int, dtype: torch.dtype) -> np.ndarray:
    """The logits where the bins start and end, -infinity to infinity: a rounded score may be on the wrong side."""
    below = np.arange(bins + 1)
    with np.errstate(divide="ignore"):
        exact = np.log(below / (bins - below))
    edges = exact.astype(np.float64 if dtype == torch.float64 else np.float32)
    return np.where(edges < exact, np.nextafter(edges, edges.dtype.type(np.inf)), edges)


def _compiled(values: Tensor) -> bool:
    """Whether passes over these values are compiled by numba."""
    return values.device.type == "cpu" and find_spec("numba") is not None


def _flat(values: Tensor) -> np.ndarray:
    return values.view(-1).numpy()
