"""The engine for CPUs: passes over the samples compiled by numba, on all of torch's threads."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankwise.pairsums.distances import Sigmoid, SigmoidCrossEntropy, Step
from rankwise.pairsums.engines.by_sums import Group, Read, SumsEngine, working
from rankwise.pairsums.engines.numba import passes, sigmoid, step, wide
from rankwise.pairsums.formula import Over, PairSums, Sums
from rankwise.pairsums.spec import ROUNDING, RankingSpec, Samples
from rankwise.threads import in_parts

#: A thread gets at least so many samples.
SHARE = 1 << 16

#: Tables of all threads together hold no more numbers than this, if need be with fewer threads.
TABLES = 1 << 23

#: Sums over samples beyond it overflow in the tables.
HUGE = 1e27


class NumbaEngine(SumsEngine):
    """Fused passes on a CPU."""

    name = "numba"

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
        quality = values[:0] if samples.quality is None else working(samples.quality)
        *arrays, faults = passes.find_positives(
            values.numpy(), samples.labels.numpy(), columns, quality.numpy(), ROUNDING
        )
        skip, rows, where, positives, qualities = map(torch.from_numpy, arrays)
        return Read(values, columns, skip, rows, where, positives, qualities, torch.tensor(faults))

    def sums(self, group: Group, spec: RankingSpec) -> PairSums:
        """The sums over the pairs of a group."""
        arrays = _Arrays(group, spec)
        if isinstance(spec.distance, Step):
            ramps = step.place(arrays.p, spec.distance.delta)
            return _WideSums(arrays) if ramps is None else _StepSums(arrays, *ramps)
        assert isinstance(spec.distance, Sigmoid)
        placed = sigmoid.place(arrays.p, spec.distance.lam, arrays.flat.values.dtype)
        return _WideSums(arrays) if placed is None else _SigmoidSums(arrays, *placed)


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

    def moments(self, add: Any, cells: Any, shape: tuple[int, int]) -> tuple[np.ndarray, float]:
        """The moments of all negatives in a table of this shape, and the largest magnitude of them."""

        def work(begin: int, end: int) -> tuple[np.ndarray, Any]:
            table = np.zeros(shape)
            return table, add(self.flat, begin, end, self.skip, cells, table)

        values = self.flat.values
        parts = in_parts(work, values.size, max(SHARE, values.size * shape[0] * shape[1] // TABLES))
        table = parts[0][0]
        for other, _ in parts[1:]:
            table += other
        return table, float(np.array(max(bits for _, bits in parts), self.flat.bits.dtype).view(values.dtype))

    def evaluate(self, write: Any, cells: Any, coefficients: np.ndarray, out: Tensor) -> None:
        """Write the value of its cell's polynomial at each negative, and 0 elsewhere."""
        target = out.numpy()
        in_parts(
            lambda begin, end: write(self.flat, begin, end, self.skip, cells, coefficients, target), len(target), SHARE
        )

    def sums(self, rank: np.ndarray, error: np.ndarray | None) -> Sums:
        """Sums as tensors: the error is that of cross entropy times λ; other distances have no other error than rank.

        Args:
            rank: [P], or [K, P] with one row for each of the values.
            error: [P].
        """
        ranks = torch.from_numpy(rank)
        if not self.with_error or error is None:
            return Sums(ranks, ranks if ranks.ndim == 1 else ranks[0])
        assert isinstance(self.distance, Sigmoid)
        return Sums(ranks, torch.from_numpy(error) / self.distance.lam)

    def faults(self, largest: float = np.inf) -> Tensor:
        """How many negatives are NaN or infinite, given their largest magnitude."""
        if largest < np.inf:
            return torch.tensor(0)
        finite = np.isfinite(self.flat.values)
        for first, end in self.skip:
            finite[first:end] = True
        return torch.tensor(int((~finite).sum()))


class _SigmoidSums:
    """Sums of a sigmoid or its cross entropy from a lattice."""

    def __init__(self, arrays: _Arrays, lattice: passes.Lattice, kernels: sigmoid.Kernels, at: sigmoid.Located) -> None:
        self.arrays, self.lattice, self.kernels, self.at = arrays, lattice, kernels, at
        self.cells = int(lattice.high - lattice.low) + 1

    def over(self, values: Tensor, lower: bool) -> Over:
        """Each positive's sums over its pairs; all values are 1, no formula has others with a sigmoid."""
        arrays = self.arrays
        table, largest = arrays.moments(passes.lattice_moments, self.lattice, (self.cells, 4))
        if HUGE < largest < np.inf:
            return _WideSums(arrays).over(values, lower)
        found = rank, error, among, low_rank, low_error = np.empty((5, len(arrays.p)))
        sigmoid.sums(table, self.at, self.kernels, self._by_quality, arrays.with_error, lower, found)
        below = arrays.sums(low_rank[None], low_error) if lower else None
        return Over(arrays.sums(rank, error), torch.from_numpy(among)[None], below, arrays.faults(largest))

    def push(self, weights: Tensor, lower: bool) -> Tensor:
        """For each positive v, Σ_u weights_u · S(p_v - p_u) over the positives u of higher quality."""
        assert lower, "no formula pushes all positives with a sigmoid"
        out = np.empty(len(self.arrays.p))
        sigmoid.higher(self.cells, self.at, self.kernels, self._by_quality, weights.numpy(), out)
        return torch.from_numpy(out)

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · S(x_v - p_u), and 0 elsewhere."""
        cubics = np.zeros((self.cells, 4))
        sigmoid.adjoint(self.at, weights.numpy(), self.kernels, cubics)
        cubics = cubics.astype(self.arrays.flat.values.dtype, copy=False)
        self.arrays.evaluate(passes.lattice_values, self.lattice, cubics, out)

    @cached_property
    def _by_quality(self) -> sigmoid.ByQuality:
        distance = self.arrays.distance
        assert isinstance(distance, Sigmoid)
        return sigmoid.by_quality(self.arrays.p, self.arrays.quality, distance.lam)


class _StepSums:
    """Sums of a step from the cells between the ends of its ramps."""

    def __init__(self, arrays: _Arrays, cells: passes.Edges, ramps: step.Ramps) -> None:
        self.arrays, self.cells, self.ramps = arrays, cells, ramps
        self.shape = 2 * len(arrays.p) + 1, 2

    def over(self, values: Tensor, lower: bool) -> Over:
        """Each positive's sums over its pairs."""
        arrays = self.arrays
        table, largest = arrays.moments(passes.edge_moments, self.cells, self.shape)
        rank = np.empty(len(arrays.p))
        step.read(table, self.ramps, rank)
        everyone, below = step.among(self.ramps, arrays.quality, values.numpy(), True, lower)
        among = torch.from_numpy(everyone)
        return Over(arrays.sums(rank, None), among, arrays.sums(below, None) if lower else None, arrays.faults(largest))

    def push(self, weights: Tensor, lower: bool) -> Tensor:
        """For each positive v, Σ_u weights_u · H(p_v - p_u): over all u, or over those of higher quality."""
        arrays = self.arrays
        mirrored = step.place(-arrays.p, self.ramps.delta)  # H(p_v - p_u) = H((-p_u) - (-p_v))
        assert mirrored is not None
        sums = step.among(mirrored[1], -arrays.quality, weights.numpy()[None], not lower, lower)
        return torch.from_numpy(sums[int(lower)][0])

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · H(x_v - p_u), and 0 elsewhere."""
        lines = np.empty(self.shape)
        step.adjoint(self.ramps, weights.numpy(), lines)
        self.arrays.evaluate(passes.edge_values, self.cells, lines, out)


class _WideSums:
    """Sums for positives or samples that no table could hold."""

    def __init__(self, arrays: _Arrays) -> None:
        self.arrays = arrays
        self.order = np.argsort(arrays.p, kind="stable")
        self.p = arrays.p[self.order]
        self.kind = wide.kind(arrays.distance)

    def over(self, values: Tensor, lower: bool) -> Over:
        """Each positive's sums over its pairs."""
        arrays, (kinds, number) = self.arrays, values.shape

        def work(begin: int, end: int) -> np.ndarray:
            sums = np.zeros((2, number))
            wide.sums(arrays.flat.values, begin, end, arrays.skip, self.p, self.kind, *sums)
            return sums

        over_negatives = np.empty((2, number))
        over_negatives[:, self.order] = sum(in_parts(work, arrays.flat.values.size, SHARE))
        everyone, below, error = np.zeros((kinds, number)), np.zeros((kinds, number)), np.zeros(number)
        wide.among(arrays.p, arrays.quality, values.numpy(), self.kind, everyone, below, error)
        lower_sums = arrays.sums(below, error) if lower else None
        return Over(arrays.sums(*over_negatives), torch.from_numpy(everyone), lower_sums, arrays.faults())

    def push(self, weights: Tensor, lower: bool) -> Tensor:
        """For each positive v, Σ_u weights_u · rank(p_v - p_u): over all u, or over those of higher quality."""
        p, quality, number = -self.arrays.p, -self.arrays.quality, len(self.arrays.p)
        everyone, below, error = np.zeros((1, number)), np.zeros((1, number)), np.zeros(number)
        wide.among(p, quality, weights.numpy()[None], self.kind, everyone, below, error)
        return torch.from_numpy((below if lower else everyone)[0])

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · rank(x_v - p_u), and 0 elsewhere."""
        arrays, ordered, target = self.arrays, weights.numpy()[self.order], out.numpy()

        def work(begin: int, end: int) -> None:
            wide.gradient(arrays.flat.values, begin, end, arrays.skip, self.p, ordered, self.kind, target)

        in_parts(work, len(target), SHARE)
