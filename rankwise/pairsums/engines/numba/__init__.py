"""The engine for CPUs: passes over the samples compiled by numba, on all of torch's threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankwise.pairsums.distances import Sigmoid, SigmoidCrossEntropy, Step
from rankwise.pairsums.engines.by_sums import SumsEngine
from rankwise.pairsums.engines.groups import Group, Read, working
from rankwise.pairsums.engines.numba import many, passes, sigmoid, step, wide
from rankwise.pairsums.engines.numba.vectors import MOMENTS
from rankwise.pairsums.formula import Array, Over, PairSums, Sums
from rankwise.pairsums.spec import ROUNDING, RankingSpec, Samples
from rankwise.threads import in_parts

#: A thread gets at least so many samples.
MIN_SAMPLES_PER_THREAD = 1 << 16

#: Tables of all threads together hold no more numbers than this, if need be with fewer threads.
TABLES = 1 << 23

#: Sums over samples beyond it overflow in the tables.
HUGE = 1e27


class NumbaEngine(SumsEngine):
    """Fused passes on a CPU."""

    name = "numba"
    on_host = True

    def unsupported(self, spec: RankingSpec, samples: Samples) -> str | None:
        """It leaves floors and other distances to other engines."""
        if samples.logits.device.type != "cpu":
            return f"it needs tensors on a CPU, got {samples.logits.device}"
        if type(spec.distance) not in (Step, Sigmoid, SigmoidCrossEntropy):
            return f"it does not know the distance {type(spec.distance).__name__}"
        return "it cannot drop pairs by a margin or a cut" if spec.has_floor else None

    def read(self, samples: Samples) -> Read:
        """The positives among the samples, and what is not negative."""
        logits = working(samples.logits)
        values, columns = logits.view(-1), logits.shape[1]
        given = values[:0] if samples.quality is None else working(samples.quality)
        *arrays, faults = passes.find_positives(
            values.numpy(), samples.labels.numpy(), columns, given.numpy(), ROUNDING
        )
        skip, rows, where, positives, qualities = map(torch.from_numpy, arrays)
        return Read(values, columns, skip, rows, where, positives, qualities, faults)

    def array(self, tensor: Tensor) -> Array:
        """A tensor as what this engine's sums are made of."""
        return tensor.numpy()

    def sums(self, group: Group, spec: RankingSpec) -> PairSums:
        """The sums over the pairs of a group."""
        arrays = _Arrays(group, spec)
        if isinstance(spec.distance, Step):
            ramps = step.layout(arrays.p, spec.distance.delta)
            return _WideSums(arrays) if ramps is None else _StepSums(arrays, *ramps)
        assert isinstance(spec.distance, Sigmoid)
        laid_out = sigmoid.layout(arrays.p, spec.distance.lam, arrays.flat.values.dtype)
        return _WideSums(arrays) if laid_out is None else _SigmoidSums(arrays, *laid_out)


class _Arrays:
    """A group's arrays, and passes over them on all threads.

    Args:
        group: The samples.
        spec: What is asked for.
    """

    def __init__(self, group: Group, spec: RankingSpec) -> None:
        self.distance = spec.distance
        self.flat, self.skip = passes.flat(group.values.numpy()), group.skip.numpy()
        self.p, self.quality = group.positives.numpy(), group.quality.numpy()
        self.with_error = isinstance(spec.distance, SigmoidCrossEntropy)

    def moments(self, cells: Any, number: int) -> tuple[np.ndarray, float]:
        """The moments of all negatives in so many cells, in several tables to be added, and their largest magnitude."""
        shape = passes.TABLES[type(cells)], number + 1, MOMENTS[type(cells).__name__]

        def work(begin: int, end: int) -> tuple[np.ndarray, Any]:
            table = np.zeros(shape)
            return table, passes.moments(self.flat, begin, end, self.skip, cells, table)

        values = self.flat.values
        parts = in_parts(work, values.size, max(MIN_SAMPLES_PER_THREAD, values.size * math.prod(shape) // TABLES))
        table = parts[0][0]
        for other, _ in parts[1:]:
            table += other
        largest = np.array(max(bits for _, bits in parts), self.flat.bits.dtype).view(values.dtype)
        return table, float(largest if largest <= HUGE else np.abs(self._negatives()).max(initial=0))

    def evaluate(self, cells: Any, coefficients: np.ndarray, out: Tensor) -> None:
        """Write the value of its cell's polynomial at each negative, and 0 elsewhere."""
        target = out.numpy()
        in_parts(
            lambda begin, end: passes.values(self.flat, begin, end, self.skip, cells, coefficients, target),
            len(target),
            MIN_SAMPLES_PER_THREAD,
        )

    def sums(self, rank: np.ndarray, error: np.ndarray | None) -> Sums:
        """Sums with their error: that of cross entropy is given times λ, other distances have no other than rank.

        Args:
            rank: [P], or [K, P] with one row for each of the values.
            error: [P].
        """
        if not self.with_error or error is None:
            return Sums(rank, rank if rank.ndim == 1 else rank[0])
        assert isinstance(self.distance, Sigmoid)
        return Sums(rank, error / self.distance.lam)

    def faults(self) -> int:
        """How many negatives are NaN or infinite."""
        return int((~np.isfinite(self._negatives())).sum())

    def _negatives(self) -> np.ndarray:
        """A copy of the values, with 0 for all that are not negatives."""
        values = self.flat.values.copy()
        for first, end in self.skip:
            values[first:end] = 0
        return values


class _SigmoidSums:
    """Sums of a sigmoid or its cross entropy from a lattice."""

    def __init__(self, arrays: _Arrays, lattice: passes.Lattice, kernels: sigmoid.Kernels, at: sigmoid.Located) -> None:
        self.arrays, self.lattice, self.kernels, self.at = arrays, lattice, kernels, at
        self.cells = int(lattice.high - lattice.low) + 1
        self.pairs: Any = sigmoid if len(arrays.p) <= sigmoid.MAX_PAIRWISE else many

    def over(self, values: Sequence[Array], lower: bool) -> Over:
        """Each positive's sums over its pairs; all values are 1, no formula has others with a sigmoid."""
        arrays = self.arrays
        tables, largest = arrays.moments(self.lattice, self.cells)
        if not largest <= HUGE:
            return _WideSums(arrays).over(values, lower)
        found = rank, error, among, low_rank, low_error = np.empty((5, len(arrays.p)))
        self.pairs.sums(tables, self.at, self.kernels, self._by_quality, arrays.with_error, lower, found)
        below = arrays.sums(low_rank[None], low_error) if lower else None
        return Over(arrays.sums(rank, error), among[None], below, 0)

    def push(self, weights: np.ndarray, lower: bool) -> np.ndarray:
        """For each positive v, Σ_u weights_u · S(p_v - p_u) over the positives u of higher quality."""
        assert lower, "no formula pushes all positives with a sigmoid"
        out = np.empty(len(self.arrays.p))
        self.pairs.higher(self.cells + 1, self.at, self.kernels, self._by_quality, weights, out)
        return out

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · S(x_v - p_u), and 0 elsewhere."""
        cubics = np.zeros((self.cells + 1, 4))
        sigmoid.adjoint(self.at, weights.numpy(), self.kernels, cubics)
        self.arrays.evaluate(self.lattice, cubics.astype(self.arrays.flat.values.dtype, copy=False), out)

    @cached_property
    def _by_quality(self) -> sigmoid.ByQuality:
        arrays = self.arrays
        assert isinstance(arrays.distance, Sigmoid)
        middle = float(arrays.p[self.at.order[0]] + arrays.p[self.at.order[-1]]) / 2
        order = np.argsort(arrays.quality)
        return sigmoid.by_quality(arrays.p, arrays.quality, order, middle, arrays.distance.lam)


class _StepSums:
    """Sums of a step from the cells between the ends of its ramps."""

    def __init__(self, arrays: _Arrays, cells: passes.Edges, ramps: step.Ramps) -> None:
        self.arrays, self.cells, self.ramps = arrays, cells, ramps
        self.number = 2 * len(arrays.p) + 1

    def over(self, values: Sequence[Array], lower: bool) -> Over:
        """Each positive's sums over its pairs."""
        arrays = self.arrays
        tables, largest = arrays.moments(self.cells, self.number)
        rank = np.empty(len(arrays.p))
        step.read(tables, self.ramps, rank)
        order = step.ordered(arrays.p, self.ramps.delta)
        everyone, below = step.among(order, arrays.quality, np.stack(values), True, lower)
        faults = 0 if largest < np.inf else arrays.faults()
        return Over(arrays.sums(rank, None), everyone, arrays.sums(below, None) if lower else None, faults)

    def push(self, weights: np.ndarray, lower: bool) -> np.ndarray:
        """For each positive v, Σ_u weights_u · H(p_v - p_u): over all u, or over those of higher quality."""
        arrays = self.arrays
        mirrored = step.ordered(-arrays.p, self.ramps.delta)  # H(p_v - p_u) = H((-p_u) - (-p_v))
        return step.among(mirrored, -arrays.quality, weights[None], not lower, lower)[int(lower)][0]

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · H(x_v - p_u), and 0 elsewhere."""
        lines = np.zeros((self.number + 1, 2))
        step.adjoint(self.ramps, weights.numpy(), lines)
        self.arrays.evaluate(self.cells, lines, out)


class _WideSums:
    """Sums for positives or samples that no table could hold."""

    def __init__(self, arrays: _Arrays) -> None:
        self.arrays = arrays
        self.order = np.argsort(arrays.p, kind="stable")
        self.p = arrays.p[self.order]
        self.kind = wide.kind(arrays.distance)

    def over(self, values: Sequence[Array], lower: bool) -> Over:
        """Each positive's sums over its pairs."""
        arrays, counts = self.arrays, np.stack(values)
        kinds, number = counts.shape

        def work(begin: int, end: int) -> np.ndarray:
            sums = np.zeros((2, number))
            wide.sums(arrays.flat.values, begin, end, arrays.skip, self.p, self.kind, *sums)
            return sums

        over_negatives = np.empty((2, number))
        over_negatives[:, self.order] = sum(in_parts(work, arrays.flat.values.size, MIN_SAMPLES_PER_THREAD))
        everyone, below, error = np.zeros((kinds, number)), np.zeros((kinds, number)), np.zeros(number)
        wide.among(arrays.p, arrays.quality, counts, self.kind, everyone, below, error)
        lower_sums = arrays.sums(below, error) if lower else None
        return Over(arrays.sums(*over_negatives), everyone, lower_sums, arrays.faults())

    def push(self, weights: np.ndarray, lower: bool) -> np.ndarray:
        """For each positive v, Σ_u weights_u · rank(p_v - p_u): over all u, or over those of higher quality."""
        number = len(self.arrays.p)
        everyone, below, error = np.zeros((1, number)), np.zeros((1, number)), np.zeros(number)
        wide.among(-self.arrays.p, -self.arrays.quality, weights[None], self.kind, everyone, below, error)
        return (below if lower else everyone)[0]

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · rank(x_v - p_u), and 0 elsewhere."""
        arrays, ordered, target = self.arrays, weights.numpy()[self.order], out.numpy()

        def work(begin: int, end: int) -> None:
            wide.gradient(arrays.flat.values, begin, end, arrays.skip, self.p, ordered, self.kind, target)

        in_parts(work, len(target), MIN_SAMPLES_PER_THREAD)
