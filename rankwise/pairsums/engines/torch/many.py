"""Sums of sigmoid and softplus for many positives, at a cost per positive that does not depend on their number.

The sums are smooth functions of the positive. They are computed at the Chebyshev points of the intervals that contain
positives, and interpolated. As a sample, a positive adds to the weights of the points of its interval. For sums by
quality, the positives are sorted and cut into blocks: whole blocks are summed at the points, the rest pair by pair.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from rankwise.pairsums.formula import Over, Sums

if TYPE_CHECKING:
    from rankwise.pairsums.engines.torch.sigmoid import SigmoidSums

#: Most entries of a matrix [points, points].
MAX_ENTRIES = 1 << 21

#: Positives per block: at least this many, or the number of points divided by the second, which balances the cost of
#: pairs and of products with the matrix.
MIN_BLOCK, POINTS_PER_POSITIVE = 32, 8

#: Of differences in units: rank, and the error of cross entropy.
FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = torch.sigmoid, partial(softplus, threshold=40.0)


def is_possible(sums: SigmoidSums) -> bool:
    """Whether the matrix is small enough, and the loss has no cutoff."""
    occupied = sums.grid.occupied
    points = (occupied.stop - occupied.start) * sums.precision.points
    return sums.floors is None and points * len(sums.points) <= MAX_ENTRIES


class ManyPositives:
    """The positives of a group, interpolated between points.

    Args:
        sums: The sums that use them.
    """

    def __init__(self, sums: SigmoidSums) -> None:
        # A proxy, because a cycle of references would keep the samples until the garbage collector runs.
        self.sums: SigmoidSums = weakref.proxy(sums)
        self.number, occupied = sums.precision.points, sums.grid.occupied
        # In intervals; exact, since scale and length are powers of two.
        position = (sums.group.positives * sums.grid.scale - sums.grid.low) / sums.length - occupied.start
        self.interval = position.long()
        angle = position.frac().mul_(2).sub_(1).acos_()
        orders = torch.arange(self.number, device=angle.device)
        self.basis = torch.outer(angle, orders).cos_() @ sums.lagrange  # weights of the points, [P, points]
        self.intervals = occupied.stop - occupied.start
        self.here = slice(occupied.start * self.number, occupied.stop * self.number)
        self.block = max(MIN_BLOCK, self.intervals * self.number // POINTS_PER_POSITIVE)

    @cached_property
    def ranks(self) -> Tensor:
        return self._between_points(torch.sigmoid)

    def _between_points(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """A function of the distances from points in the occupied intervals to all, [points there, points].

        It is computed once for each distance between two intervals.
        """
        sums, device, occupied = self.sums, self.basis.device, self.sums.grid.occupied
        every = len(sums.points) // self.number
        points = sums.points[: self.number]
        apart = torch.arange(1 - occupied.stop, every - occupied.start, device=device)
        values = function(apart[:, None, None] * (sums.length * sums.width) + points - points[:, None])
        index = torch.arange(every, device=device) + torch.arange(self.intervals - 1, -1, -1, device=device)[:, None]
        return values[index].transpose(1, 2).reshape(-1, len(sums.points))

    def over(self, negatives: Tensor, values: Tensor, lower: bool) -> Over:
        """Each positive's sums over its pairs.

        Args:
            negatives: Weights of all points, [points].
            values: How much each positive counts as a sample, [P].
            lower: Whether to sum over the positives of lower quality too.
        """
        kernels = [self.ranks]
        if self.sums.with_error:
            kernels.append(self._between_points(FUNCTIONS[1]))
        positives = self._scattered(values).flatten()
        given = (self.ranks, negatives), (kernels[-1], negatives), (self.ranks[:, self.here], positives)
        rank, error, everyone = (self._at_positives(kernel @ weights) for kernel, weights in given)
        below = None
        if lower:
            found = self._lower(self.sums.group.quality, values, [kernel[:, self.here].T for kernel in kernels])
            below = Sums(found[:1], found[-1] / self._scale)
        return Over(Sums(rank, error / self._scale), everyone[None], below, 0)

    @property
    def _scale(self) -> float:
        """What errors are divided by: cross entropy is summed in units."""
        return self.sums.lam if self.sums.with_error else 1.0

    def push(self, weights: Tensor) -> Tensor:
        """For each positive v, Σ_u weights_u · S(p_v - p_u) over the positives u of higher quality."""
        return self._lower(-self.sums.group.quality, weights, [self.ranks[:, self.here]], mirrored=True)[0]

    def at_points(self, weights: Tensor) -> Tensor:
        """Σ_u weights_u · S(x - p_u) at all points x, [points]."""
        return self._scattered(weights).flatten() @ self.ranks

    def _scattered(self, values: Tensor, block: Tensor | None = None, blocks: int = 1) -> Tensor:
        """Weights of the points for the positives of each block, [blocks, points in occupied intervals]."""
        row = self.interval if block is None else block * self.intervals + self.interval
        table = values.new_zeros(blocks * self.intervals, self.number)
        return table.index_add_(0, row, self.basis * values[:, None]).view(blocks, -1)

    def _at_positives(self, values: Tensor, row: Tensor | None = None) -> Tensor:
        """Functions given at the points, [points] or [rows, points], at each positive, [P]: of the function ``row``."""
        index = self.interval if row is None else row * self.intervals + self.interval
        return (values.view(-1, self.number)[index] * self.basis).sum(1)

    def _lower(self, quality: Tensor, values: Tensor, kernels: Sequence[Tensor], mirrored: bool = False) -> Tensor:
        """For each positive u, Σ_v values_v · S(p_v - p_u) over those of lower quality, and of softplus if asked for.

        Args:
            quality: [P].
            values: [P].
            kernels: S, and maybe softplus, between points v and u, [points v, points u].
            mirrored: Whether it is of p_u - p_v instead.
        """
        ordered, order = quality.sort()
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        end = torch.searchsorted(ordered, quality)  # number of positives of lower quality
        block, blocks = end // self.block, -(-len(order) // self.block)
        tables = self._scattered(values, place // self.block, blocks).cumsum(0)
        tables = pad(tables[:-1], (0, 0, 1, 0))  # of the blocks below
        found = torch.stack([self._at_positives(tables @ kernel, block) for kernel in kernels])
        # The rest: positives in the block where those of lower quality end.
        u = self.sums.units.neg_() if mirrored else self.sums.units
        fill = (0, blocks * self.block - len(order))
        others, counts = (pad(x[order], fill).view(blocks, -1) for x in (u, values))
        left, offsets = end - block * self.block, torch.arange(self.block, device=order.device)
        for part in self.sums.chunks(len(u), self.block):
            z = others[block[part]] - u[part, None]
            weight = counts[block[part]] * (offsets < left[part, None])
            for total, function in zip(found, FUNCTIONS, strict=False):
                total[part] += torch.linalg.vecdot(function(z), weight)
        return found
