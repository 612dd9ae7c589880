"""Sums over the samples that come early in two orders at once, in P log² P steps and without a table.

In the first order the samples are cut into blocks of 1, 2, 4, … and each block is put into the second order. The first
n samples of the first order are then at most one block of each length, by the binary digits of n, and what a block has
before some place of the second order is a difference of two running sums.
"""

from __future__ import annotations

import torch
from torch import Tensor


def first_in_both(place: Tensor, rank: Tensor, limit: Tensor, ends: Tensor, values: Tensor) -> Tensor:
    """Sums of values over the samples with place < limit and rank < end, for each of P questions.

    Args:
        place: Each sample's place in the first order, int64 [P]: a permutation.
        rank: Each sample's place in the second order, int64 [P]: a permutation.
        limit: How many of the first order each question asks for, int64 [P].
        ends: How many of the second order it asks for, several ends at once, int64 [E, P].
        values: How much each sample counts, several sums at once, float64 [P, K].

    Returns:
        The sums, float64 [E, P, K].
    """
    number = len(place)
    result = values.new_zeros(*ends.shape, values.shape[1])
    for level in range(number.bit_length()):
        asking = (limit >> level & 1).nonzero().squeeze(1)
        keys, order = ((place >> level) * (number + 1) + rank).sort()  # by block, then by the second order
        before = torch.nn.functional.pad(values[order].cumsum(0), (0, 0, 1, 0))
        block = (limit[asking] >> level) - 1
        at = torch.searchsorted(keys, block * (number + 1) + ends[:, asking])
        result[:, asking] += before[at] - before[block << level]
    return result
