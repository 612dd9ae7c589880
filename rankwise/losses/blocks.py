"""Passes over all samples: block by block, so that temporaries stay in cache, on several threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from rankwise.losses.inputs import Samples
from rankwise.threads import in_parts

#: So many samples make a block on a CPU. Operators on no more than this run on the calling thread alone: the threads
#: are then ours, which meet once a pass and not once an operator, and so wait less for each other on a busy machine.
BLOCK = 2**15 - 1

#: A thread gets at least so many blocks.
SHARE = 4

Result = TypeVar("Result")


@dataclass(frozen=True)
class Block:
    """Some rows of the samples.

    Attributes:
        rows: Which.
        logits: Theirs, detached, [rows, C].
        positives: Row within the block and class of each of its positives.
        ignored: Which entries are left out, [rows, 1] or [rows, C], or None if none is in the whole batch.
        weight: How much each entry counts, [rows, C], or None if all count once.
    """

    rows: slice
    logits: Tensor
    positives: tuple[Tensor, Tensor]
    ignored: Tensor | None
    weight: Tensor | None = None

    def only_negatives(self, values: Tensor, otherwise: float = 0) -> Tensor:
        """``values`` [rows, C] with all samples that are no negatives set, in place."""
        if self.ignored is not None:
            values.masked_fill_(self.ignored, otherwise)
        if len(self.positives[0]):
            values[self.positives] = otherwise
        return values


def over_blocks(samples: Samples, work: Callable[[Block], Result]) -> list[Result]:
    """The results of ``work`` for all blocks of rows, in order; on a GPU there is but one block.

    Args:
        samples: The samples.
        work: Called with each block, on several threads at once.
    """
    logits = samples.logits.detach()
    count, classes = logits.shape
    on_cpu = logits.device.type == "cpu"
    step = max(1, BLOCK // classes) if on_cpu else max(1, count)
    starts = list(range(0, count, step))
    first = torch.searchsorted(samples.rows, torch.tensor([*starts, count], device=logits.device)).tolist()
    positives = list(itertools.starmap(slice, itertools.pairwise(first)))
    inference = torch.is_inference_mode_enabled()  # threads have modes of their own

    def one(number: int) -> Result:
        rows, mine = slice(starts[number], starts[number] + step), positives[number]
        place = samples.rows[mine] - rows.start, samples.classes[mine]
        ignored, weight = (None if part is None else part[rows] for part in (samples.ignored, samples.weight))
        return work(Block(rows, logits[rows], place, ignored, weight))

    def some(begin: int, end: int) -> list[Result]:
        with torch.inference_mode(inference):
            return [one(number) for number in range(begin, end)]

    parts = in_parts(some, len(starts), SHARE) if on_cpu else [some(0, len(starts))]
    return list(itertools.chain.from_iterable(parts))


def total(results: list[Tensor], like: Tensor) -> Tensor:
    """The sum of the blocks' results in float64, whatever their number.

    Args:
        results: Of all blocks.
        like: What the sum over no blocks at all would be.
    """
    return torch.stack([like.double(), *(result.double() for result in results)]).sum(0)


def negative_regions(block: Block, p: Tensor, bins: int) -> Tensor:
    """Which of ``bins`` equal parts of [0, 1] the score of each negative of a block is in, flat; others get ``bins``.

    Args:
        block: The block.
        p: Its scores, [rows, C].
        bins: Number of parts.
    """
    return block.only_negatives(score_region(p, bins), bins).flatten()


def score_region(p: Tensor, bins: int) -> Tensor:
    """Which of ``bins`` equal parts of [0, 1] each score is in; int32, since counting and look-up by it are faster."""
    return p.mul(bins).int().clamp_(max=bins - 1)
