"""Equal bins of the score range: sums over the negatives in each bin, and gradients from a value per bin."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rankwise.losses.blocks import Block, over_blocks, total
from rankwise.losses.inputs import Samples


def bin_sums(samples: Samples, bins: int, softplus: bool = False) -> Tensor:
    """Number and sum of the scores p = sigmoid(x) of the negatives in each of ``bins`` equal bins, float64 [2, bins].

    Args:
        samples: The samples.
        bins: Number of bins of the score range [0, 1].
        softplus: Whether to sum the cross entropy softplus(x) = −log(1 − p) instead of the scores.
    """

    def of_block(block: Block) -> Tensor:
        scores = block.logits.sigmoid()
        values = F.softplus(block.logits) if softplus else scores
        both = torch.stack([torch.ones_like(values), values], -1).view(-1, 2)
        return histogram(_negative_bins(block, scores, bins), bins + 1, both)[:-1].T

    def of_compiled(block: Block) -> Tensor:
        from rankwise.losses import scores_numba

        tables = np.zeros((scores_numba.TABLES, bins + 1, 2))
        edges = _edges(bins, torch.float32)
        scores_numba.bin_sums(block.negatives(), edges, softplus, scores_numba.buffers(), tables)
        return torch.from_numpy(tables.sum(0)[:-1].T)

    return total(over_blocks(samples, of_block, of_compiled), like=samples.logits.new_zeros(2, bins))


def bin_gradient(samples: Samples, table: Tensor, both: bool) -> Tensor:
    """p · table[bin] of each negative, times 1 − p if ``both``, [A, C]; 0 for other samples.

    Args:
        samples: The samples.
        table: A value per bin of the score range, [bins].
        both: Whether the factor is the derivative of the score, p · (1 − p), instead of p.
    """
    gradient = torch.empty_like(samples.values, memory_format=torch.contiguous_format)
    table = table.to(gradient.dtype)

    def of_block(block: Block) -> None:
        p = block.logits.sigmoid()
        values = F.pad(table, (0, 1)).index_select(0, _negative_bins(block, p, len(table))).view_as(p)
        target = torch.mul(values, p, out=gradient[block.rows])
        if both:
            target.mul_(torch.neg(block.logits, out=p).sigmoid_())  # 1 - p would be 0 near 1

    def of_compiled(block: Block) -> None:
        from rankwise.losses import scores_numba

        out, edges = gradient[block.rows].view(-1).numpy(), _edges(len(table), torch.float32)
        scores_numba.bin_gradient(block.negatives(), edges, table.numpy(), both, scores_numba.buffers(), out)

    over_blocks(samples, of_block, of_compiled)
    return gradient


def histogram(numbers: Tensor, bins: int, weights: Tensor) -> Tensor:
    """The sum of the weights [n] or [n, K] in each of ``bins`` bins, float64, without a host sync."""
    return weights.new_zeros(bins, *weights.shape[1:], dtype=torch.float64).index_add_(0, numbers, weights.double())


def score_bin(logits: Tensor, scores: Tensor, bins: int) -> Tensor:
    """The bin of each score, of ``bins`` equal bins over [0, 1].

    On a GPU, a score next to an edge may be rounded into the neighboring bin.
    """
    if logits.device.type != "cpu":
        return scores.mul(bins).int().clamp_(max=bins - 1)
    return torch.bucketize(logits, torch.from_numpy(_edges(bins, logits.dtype))[1:-1], right=True, out_int32=True)


def _negative_bins(block: Block, scores: Tensor, bins: int) -> Tensor:
    """The bin of the score of each negative of a block, flat; other samples get ``bins``."""
    return block.only_negatives(score_bin(block.logits, scores, bins), bins).flatten()


@cache
def _edges(bins: int, dtype: torch.dtype) -> np.ndarray:
    """The logits where the bins start and end, -infinity to infinity: a rounded score may be on the wrong side."""
    below = np.arange(bins + 1)
    with np.errstate(divide="ignore"):
        exact = np.log(below / (bins - below))
    edges = exact.astype(np.float64 if dtype == torch.float64 else np.float32)
    return np.where(edges < exact, np.nextafter(edges, edges.dtype.type(np.inf)), edges)
