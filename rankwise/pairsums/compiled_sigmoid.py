"""The tables of `SigmoidCells`, compiled by numba for the CPU: the same sums in a few calls instead of hundreds."""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankwise.pairsums.distances import Sigmoid
from rankwise.pairsums.expansion import Expansion, reading, writing
from rankwise.pairsums.jit import compiled, compiled_sum
from rankwise.pairsums.samples import Sums
from rankwise.pairsums.sigmoid import SigmoidCells

#: Positives that are neighbours in quality are compared pair by pair, at least so many.
BLOCK = 32


class CompiledSigmoidCells(SigmoidCells):
    """`SigmoidCells` on the CPU.

    Args:
        positives: Logits, float64 [P], at least one.
        distance: Sigmoid or SigmoidCrossEntropy.
        dtype: float32 or float64: how precisely to compute.
    """

    def __init__(self, positives: Tensor, distance: Sigmoid, dtype: torch.dtype) -> None:
        super().__init__(positives, distance, dtype)
        self.units = (positives * distance.lam).numpy()
        self.kernels, self.back_kernels = _kernels(self.expansion, self.with_error)

    def read(self, table: Tensor, block: Tensor | None = None) -> Sums:
        if block is not None:
            return super().read(table, block)
        result = np.empty((2, len(self.units)))
        _read(table[0].numpy(), *self._lattice, *self._positives, self.kernels, result)
        return self._scaled(table[0, :, 0].sum().expand(len(self.units)), result)

    def polynomials(self, table: Tensor, index: Tensor, block: Tensor | None = None) -> Tensor:
        if block is not None:
            return super().polynomials(table, index, block)
        result = np.empty((self.size, self.n))
        _polynomials(table[0].numpy(), *self._lattice, self.back_kernels, result)
        return torch.from_numpy(result)[index]

    def over_lower(self, quality: Tensor, values: Tensor) -> Sums:
        """For each positive u, the sums over the positives v with lower quality, each counting ``values`` times."""
        ordered, order = quality.sort()
        lower = torch.searchsorted(ordered, quality)
        number = torch.nn.functional.pad(values[order].cumsum(0), (1, 0))[lower]
        result = np.empty((2, len(self.units)))
        _over_lower(
            *(order.numpy(), lower.numpy(), values.numpy(), self._step, self.units),
            *(*self._lattice, *self._positives, self.kernels, result),
        )
        return self._scaled(number, result)

    def over_higher(self, quality: Tensor, weights: Tensor) -> Tensor:
        """For each positive v, the sum of weight · rank over the positives u with higher quality, [P]."""
        ordered, order = (-quality).sort()
        higher = torch.searchsorted(ordered, -quality)
        result = np.empty(len(self.units))
        _over_higher(
            *(order.numpy(), higher.numpy(), weights.numpy(), self._step, self.units),
            *(*self._lattice, *self._positives, self.back_kernels, result),
        )
        return torch.from_numpy(result)

    def _scaled(self, number: Tensor, result: np.ndarray) -> Sums:
        rank, error = torch.from_numpy(result)
        return Sums(number, rank, error / self.distance.lam if len(self.kernels) > 1 else rank)

    @property
    def _step(self) -> int:
        """Positives a block of quality: making a table ready for a block must not cost more than its pairs."""
        return max(BLOCK, math.isqrt(self.size))

    @cached_property
    def _lattice(self) -> tuple[Any, ...]:
        """What describes the lattice: positions, how e^-distance falls from cell to cell, open cells, e^±f, numbers."""
        rising, falling = self.expansion.rising.numpy(), self.expansion.falling.numpy()
        if len(self.lattice.low) == 1:  # nearly always: with no more work than that needs
            position, falls = np.arange(self.size, dtype=np.float64), np.full(self.size, math.exp(-self.width))
            is_open = np.zeros(self.size, np.bool_)
            is_open[0] = is_open[-1] = True
        else:
            position, is_open = self.position.numpy(), self.is_open.numpy()
            falls = np.exp(-self.width * np.diff(position, prepend=position[:1]))
        return position, falls, is_open, rising, falling, self.width, self.reach

    @cached_property
    def _positives(self) -> tuple[Any, ...]:
        return self.cell.numpy(), self.place.numpy(), self.powers.numpy()


@lru_cache(maxsize=16)
def _kernels(expansion: Expansion, with_error: bool) -> tuple[np.ndarray, np.ndarray]:
    """Polynomials of the positive's place, [kernels, n, offsets · n], and of the sample's place, [n, offsets · n]."""
    forth, back, n = reading(expansion, with_error), writing(expansion), len(expansion.rising)
    return forth.T.reshape(-1, n, len(forth)).contiguous().numpy(), back.T.contiguous().numpy()


@compiled
def _ready(
    table: Any, position: Any, falls: Any, is_open: Any, rising: Any, tail: Any, passed: Any, total: Any
) -> None:
    """Running sums of a table of samples: of e^-distance from below, of number and position from above."""
    running = 0.0
    for cell in range(len(table)):
        running *= falls[cell]
        if table[cell, 0] != 0.0 and not is_open[cell]:
            for a in range(table.shape[1]):
                running += table[cell, a] * rising[a]
        tail[cell] = running
    number = places = 0.0
    for cell in range(len(table) - 1, -1, -1):
        number += table[cell, 0]
        places += table[cell, 0] * position[cell] + table[cell, 1]
        passed[cell], total[cell] = number, places


@compiled_sum
def _dot(window: Any, kernel: Any) -> Any:
    result = 0.0
    for j in range(len(window)):
        result += window[j] * kernel[j]
    return result


@compiled_sum
def _weighed(window: Any, kernel: Any, powers: Any) -> Any:
    """The sum over a window of cells of their numbers times the kernel's polynomials at one place."""
    result = 0.0
    for b in range(len(kernel)):
        result += _dot(window, kernel[b]) * powers[b]
    return result


@compiled
def _far(tail: Any, passed: Any, total: Any, position: Any, width: Any, reach: Any, cell: Any, place: Any) -> Any:
    """What samples too far away for polynomials add to rank and error of a positive."""
    low = tail[cell - reach - 1] * np.exp(-width * (reach + 1 + place))
    above = passed[cell + reach + 1]
    return low + above, low + width * (total[cell + reach + 1] - (position[cell] + place) * above)


@compiled
def _read(
    table: Any, position: Any, falls: Any, is_open: Any, rising: Any, falling: Any, width: Any, reach: Any, cell: Any,
    place: Any, powers: Any, kernels: Any, result: Any,
) -> None:  # fmt: skip
    n = table.shape[1]
    flat, length = table.reshape(-1), (2 * reach + 1) * n
    tail, passed, total = np.empty((3, len(table)))
    _ready(table, position, falls, is_open, rising, tail, passed, total)
    known = np.zeros(len(table), np.bool_)
    near = np.empty((len(table), len(kernels), n))  # polynomials over the cells that have positives
    for u in range(len(cell)):
        at = cell[u]
        if not known[at]:
            known[at] = True
            window = flat[(at - reach) * n : (at - reach) * n + length]
            for kind in range(len(kernels)):
                for b in range(n):
                    near[at, kind, b] = _dot(window, kernels[kind, b])
        far = _far(tail, passed, total, position, width, reach, at, place[u])
        for kind in range(len(kernels)):
            result[kind, u] = far[kind] + _dot(near[at, kind], powers[u])


@compiled
def _over_lower(
    order: Any, lower: Any, values: Any, step: Any, units: Any, position: Any, falls: Any, is_open: Any, rising: Any,
    falling: Any, width: Any, reach: Any, cell: Any, place: Any, powers: Any, kernels: Any, result: Any,
) -> None:  # fmt: skip
    n = powers.shape[1]
    table, length = np.zeros((len(position), n)), (2 * reach + 1) * n
    flat = table.reshape(-1)
    tail, passed, total = np.empty((3, len(position)))
    inside = 0
    for u in order:
        whole = lower[u] // step * step
        if whole > inside:
            for v in order[inside:whole]:
                for a in range(n):
                    table[cell[v], a] += values[v] * powers[v, a]
            inside = whole
            _ready(table, position, falls, is_open, rising, tail, passed, total)
        rank = error = 0.0
        if inside:
            window = flat[(cell[u] - reach) * n : (cell[u] - reach) * n + length]
            rank, error = _far(tail, passed, total, position, width, reach, cell[u], place[u])
            rank += _weighed(window, kernels[0], powers[u])
            if len(kernels) > 1:
                error += _weighed(window, kernels[1], powers[u])
        for v in order[inside : lower[u]]:
            z = units[v] - units[u]
            small = np.exp(-abs(z))
            rank += values[v] * ((1.0 if z >= 0 else small) / (1.0 + small))
            error += values[v] * (max(z, 0.0) + np.log1p(small))
        result[0, u], result[1, u] = rank, error


@compiled
def _ready_back(table: Any, falls: Any, falling: Any, coming: Any, passed: Any) -> None:
    """Running sums of a table of weights: of e^-distance from above, of the weights from below."""
    running = 0.0
    for cell in range(len(table) - 1, -1, -1):
        if cell + 1 < len(table):
            running *= falls[cell + 1]
        for b in range(table.shape[1]):
            running += table[cell, b] * falling[b]
        coming[cell] = running
    weight = 0.0
    for cell in range(len(table)):
        weight += table[cell, 0]
        passed[cell] = weight


@compiled
def _polynomials(
    table: Any, position: Any, falls: Any, is_open: Any, rising: Any, falling: Any, width: Any, reach: Any,
    kernels: Any, result: Any,
) -> None:  # fmt: skip
    size, n = table.shape
    flat = np.zeros((size + 2 * reach) * n)  # with empty cells before and after
    flat[reach * n : (reach + size) * n] = table.reshape(-1)
    coming, passed = np.empty((2, size))
    _ready_back(table, falls, falling, coming, passed)
    for cell in range(size):
        window = flat[cell * n : (cell + 2 * reach + 1) * n]
        for a in range(n):
            result[cell, a] = _dot(window, kernels[a])
        if cell > reach:
            result[cell, 0] += passed[cell - reach - 1]
        if cell + reach + 1 < size:
            far = coming[cell + reach + 1] * np.exp(-width * (position[cell + reach + 1] - position[cell]))
            for a in range(n):
                result[cell, a] += far * rising[a]
        if is_open[cell]:
            result[cell, 1:] = 0.0


@compiled
def _over_higher(
    order: Any, higher: Any, weights: Any, step: Any, units: Any, position: Any, falls: Any, is_open: Any, rising: Any,
    falling: Any, width: Any, reach: Any, cell: Any, place: Any, powers: Any, kernels: Any, result: Any,
) -> None:  # fmt: skip
    n = powers.shape[1]
    table, length = np.zeros((len(position), n)), (2 * reach + 1) * n
    flat = table.reshape(-1)
    coming, passed = np.empty((2, len(position)))
    inside = 0
    for v in order:
        whole = higher[v] // step * step
        if whole > inside:
            for u in order[inside:whole]:
                for b in range(n):
                    table[cell[u], b] += weights[u] * powers[u, b]
            inside = whole
            _ready_back(table, falls, falling, coming, passed)
        rank = 0.0
        if inside:
            window = flat[(cell[v] - reach) * n : (cell[v] - reach) * n + length]
            rank = passed[cell[v] - reach - 1] + _weighed(window, kernels, powers[v])
            rank += coming[cell[v] + reach + 1] * np.exp(-width * (reach + 1 - place[v]))
        for u in order[inside : higher[v]]:
            z = units[v] - units[u]
            small = np.exp(-abs(z))
            rank += weights[u] * ((1.0 if z >= 0 else small) / (1.0 + small))
        result[v] = rank
