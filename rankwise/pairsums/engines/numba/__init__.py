"""The engine for CPUs: passes over the samples compiled by numba, on all of torch's threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rankwise.pairsums.distances import Sigmoid, SigmoidCrossEntropy, Step
from rankwise.pairsums.engines.by_sums import SumsEngine
from rankwise.pairsums.engines.groups import Group, Read, working
from rankwise.pairsums.engines.numba import many, passes, sigmoid, step, wide
from rankwise.pairsums.formula import Array, Over, PairSums, Sums
from rankwise.pairsums.spec import RankingSpec, Samples
from rankwise.threads import in_parts

Result = TypeVar("Result")

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
        *arrays, faults = passes.find_positives(values.numpy(), samples.labels.numpy(), columns, given.numpy())
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
        order = arrays.p.argsort()
        lattice = sigmoid.layout(arrays.p, order, spec.distance.lam, arrays.samples.values.dtype)
        return _WideSums(arrays) if lattice is None else _SigmoidSums(arrays, order, *lattice)


class _Arrays:
    """A group's arrays, and passes over them on all threads.

    Args:
        group: The samples.
        spec: What is asked for.
    """

    def __init__(self, group: Group, spec: RankingSpec) -> None:
        self.distance = spec.distance
        self.samples = passes.whole(group.values.numpy(), group.skip.numpy())
        self.p, self.quality = group.positives.numpy(), group.quality.numpy()
        self.with_error = isinstance(spec.distance, SigmoidCrossEntropy)

    def added(self, sums: Callable[[passes.Part, np.ndarray], int], rows: int, table: int) -> tuple[np.ndarray, float]:
        """The sums over all negatives, and their largest magnitude.

        Args:
            sums: ``sums(part, out)`` adds those over a part to zeros, [rows, P], and returns its largest magnitude as
                an integer.
            rows: How many sums each positive has.
            table: How many numbers the tables for this hold.
        """

        def work(part: passes.Part) -> tuple[np.ndarray, int]:
            out = np.zeros((rows, len(self.p)))
            return out, sums(part, out)

        (total, most), *others = self.in_parts(work, table)
        for out, bits in others:
            total += out
            most = max(most, bits)
        largest = np.array(most, self.samples.bits.dtype).view(self.samples.values.dtype)
        return total, float(largest if largest <= HUGE else np.abs(self._negatives()).max(initial=0))

    def in_parts(self, work: Callable[[passes.Part], Result], table: int) -> list[Result]:
        """Calls ``work`` for parts of the samples, one per thread, each with a table of so many numbers."""

        def of(begin: int, end: int) -> Result:
            return work(self.samples._replace(begin=begin, end=end))

        return in_parts(of, self.samples.end, max(MIN_SAMPLES_PER_THREAD, self.samples.end * table // TABLES))

    def sorted(self, order: np.ndarray) -> passes.Sorted:
        """The positives, whose logits ``order`` sorts."""
        return passes.Sorted(self.p, order, self.quality, self.quality.argsort(kind="stable"))

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
        values = self.samples.values.copy()
        for first, end in self.samples.skip:
            values[first:end] = 0
        return values


class _SigmoidSums:
    """Sums of a sigmoid or its cross entropy from a lattice."""

    def __init__(self, arrays: _Arrays, order: np.ndarray, lattice: passes.Lattice, kernels: sigmoid.Kernels) -> None:
        self.arrays, self.order, self.lattice, self.kernels = arrays, order, lattice, kernels
        self.cells = int(lattice.high - lattice.low) + 1
        self.few = len(arrays.p) <= sigmoid.MAX_PAIRWISE
        self.wide: _WideSums | None = None

    @cached_property
    def given(self) -> tuple[Any, ...]:
        """What the sums at the positives are computed from."""
        assert isinstance(self.arrays.distance, Sigmoid)
        return self.arrays.sorted(self.order), self.lattice, self.kernels, self.arrays.distance.lam

    def over(self, values: Sequence[Array], lower: bool) -> Over:
        """Each positive's sums over its pairs; all values are 1, no formula has others with a sigmoid."""
        arrays = self.arrays
        compute = sigmoid.sums_of_few if self.few else many.sums_of_many
        given = *self.given, arrays.with_error, lower
        found, largest = arrays.added(lambda part, out: compute(part, *given, out), 5, 8 * self.cells)
        if not largest <= HUGE:
            self.wide = _WideSums(arrays)
            return self.wide.over(values, lower)
        rank, error, among, low_rank, low_error = found
        below = arrays.sums(low_rank[None], low_error) if lower else None
        return Over(arrays.sums(rank, error), among[None], below, 0)

    def push(self, weights: np.ndarray, lower: bool) -> np.ndarray:
        """For each positive v, Σ_u weights_u · S(p_v - p_u) over the positives u of higher quality."""
        assert lower, "no formula pushes all positives with a sigmoid"
        if self.wide is not None:
            return self.wide.push(weights, lower)
        out = np.empty(len(weights))
        (sigmoid.higher_of_few if self.few else many.higher_of_many)(*self.given, weights, out)
        return out

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · S(x_v - p_u), and 0 elsewhere."""
        given = self.lattice, self.arrays.p, self.order, weights.numpy(), self.kernels, out.numpy()
        self.arrays.in_parts(lambda part: sigmoid.gradient(part, *given), 8 * self.cells)


class _StepSums:
    """Sums of a step from the cells between the ends of its ramps."""

    def __init__(self, arrays: _Arrays, cells: passes.Edges, ramps: step.Ramps) -> None:
        self.arrays, self.cells, self.ramps = arrays, cells, ramps
        self.number = 2 * len(arrays.p) + 1

    @cached_property
    def positives(self) -> passes.Sorted:
        return self.arrays.sorted(self.arrays.p.argsort())

    def over(self, values: Sequence[Array], lower: bool) -> Over:
        """Each positive's sums over its pairs."""
        arrays, counts = self.arrays, np.stack(values)
        kinds, given = len(counts), (self.cells, self.ramps, self.positives, counts)
        rows = 1 + kinds + (kinds if lower else 0)
        found, largest = arrays.added(lambda part, out: step.sums(part, *given, out), rows, 8 * self.number)
        rank, everyone, below = found[0], found[1 : 1 + kinds], found[1 + kinds :]
        faults = 0 if largest < np.inf else arrays.faults()
        return Over(arrays.sums(rank, None), everyone, arrays.sums(below, None) if lower else None, faults)

    def push(self, weights: np.ndarray, lower: bool) -> np.ndarray:
        """For each positive v, Σ_u weights_u · H(p_v - p_u): over all u, or over those of higher quality."""
        pushed: np.ndarray = step.push(self.positives, weights, self.ramps.delta, lower)
        return pushed

    def gradient(self, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · H(x_v - p_u), and 0 elsewhere."""
        given = self.cells, self.ramps, weights.numpy(), out.numpy()
        self.arrays.in_parts(lambda part: step.gradient(part, *given), 2 * self.number)


class _WideSums:
    """Sums for positives or samples that no table could hold."""

    def __init__(self, arrays: _Arrays) -> None:
        self.arrays = arrays
        self.order = np.argsort(arrays.p, kind="stable")
        self.p = arrays.p[self.order]
        self.kind = wide.kind_of(arrays.distance)

    def over(self, values: Sequence[Array], lower: bool) -> Over:
        """Each positive's sums over its pairs."""
        arrays, counts = self.arrays, np.stack(values)
        kinds, number = counts.shape

        def work(part: passes.Part) -> np.ndarray:
            sums = np.zeros((2, number))
            wide.sums(part, self.p, self.kind, *sums)
            return sums

        over_negatives = np.empty((2, number))
        over_negatives[:, self.order] = sum(arrays.in_parts(work, 2 * number))
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
        given = self.p, weights.numpy()[self.order], self.kind, out.numpy()
        self.arrays.in_parts(lambda part: wide.gradient(part, *given), len(self.p))
