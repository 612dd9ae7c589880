"""Passes over all samples in cache-sized blocks, on several threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from rankwise.losses.inputs import Samples
from rankwise.threads import in_parts

if TYPE_CHECKING:
    from rankwise.losses.scores_numba import Negatives

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

    def negatives(self) -> Negatives:
        """Its negatives for compiled passes."""
        from rankwise.losses.scores_numba import Negatives

        ignored = np.zeros((0, 1), np.bool_) if self.ignored is None else self.ignored.contiguous().numpy()
        return Negatives(self.logits.view(-1).numpy(), self.logits.shape[1], self.positives.numpy(), ignored)


def over_blocks(
    samples: Samples, work: Callable[[Block], Result], compiled: Callable[[Block], Result] | None = None
) -> list[Result]:
    """Runs ``work`` for all blocks of rows and returns the results in order; on a GPU there is only one block.

    Args:
        samples: The samples.
        work: Called with each block, on several threads at once.
        compiled: The same compiled by numba, for float32 on a CPU. It is called with one large block per thread.
    """
    logits = samples.values.contiguous()
    count, classes = logits.shape
    if logits.device.type != "cpu":
        return [work(_whole(samples, logits))] if count else []
    step, blocks_per_thread = max(1, ENTRIES_PER_BLOCK // classes), BLOCKS_PER_THREAD
    if compiled is not None and logits.dtype == torch.float32 and find_spec("numba") is not None:
        work, blocks_per_thread = compiled, 1
        step = max(step * BLOCKS_PER_THREAD, -(-count // torch.get_num_threads()))
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

    return list(itertools.chain.from_iterable(in_parts(some, len(starts), blocks_per_thread)))


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
