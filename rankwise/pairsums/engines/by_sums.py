"""What the engines dense, torch and numba share: all of a ranking loss but the sums over pairs.

Forward: find the positives, cut the samples into groups that rank together, get each group's sums, apply the formula.
Backward: each negative's gradient is Σ_u weights_u · rank(x_v - p_u), for every loss.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, distributed
from torch.nn.functional import pad

from rankwise.distributed import all_gather_rows, rank, world_size
from rankwise.pairsums.engines.groups import (
    Group,
    Read,
    flat_logits,
    group_ends,
    group_slices,
    highest_negatives,
    moved,
    read_samples,
    skipped,
    sorted_by_class,
    sorted_by_image,
    unsorted,
    working,
)
from rankwise.pairsums.formula import FORMULAS, Array, Over, PairSums, Positives, Sums, Terms, values_of
from rankwise.pairsums.spec import Forward, RankingSpec, Samples


class Saved(NamedTuple):
    """What the backward pass needs beside the samples.

    Attributes:
        skip: Which of the flat logits are not negatives, as in `Group`; or which rows are ignored, bool [A], empty if
            none are.
        where: Where this process's positives are in the flat logits, ascending, int64 [P].
        gradient: Of this process's positives, float64 [P].
        positives: Logits of all positives, float64 [R].
        weights: Of each group, how strongly each positive pushes the negatives, or a table; float64, flat.
        layouts: Of each group with a table, how to find a sample's entries in it; float64, flat.
        picked: Where the negatives are in the flat logits if not all of them count, int64 [Q].
        bounds: For each group its first and end in flat logits, skip, positives, picked, weights and layouts, and
            whether any logit of a negative is bad, int64 [groups, 13].
    """

    skip: Tensor
    where: Tensor
    gradient: Tensor
    positives: Tensor
    weights: Tensor
    layouts: Tensor
    picked: Tensor
    bounds: Tensor


class SumsEngine(ABC):
    """An engine that gives the sums over the pairs of a group, and gets the rest from here.

    Attributes:
        on_host: Whether values may be read on the way, as on a CPU.
    """

    name: str
    on_host = False

    @abstractmethod
    def unsupported(self, spec: RankingSpec, samples: Samples) -> str | None:
        """Why this engine cannot compute it, or None if it can."""

    @abstractmethod
    def sums(self, group: Group, spec: RankingSpec) -> PairSums:
        """The sums over the pairs of a group with at least one positive."""

    def read(self, samples: Samples) -> Read:
        """The positives among the samples, and what is not negative."""
        return read_samples(samples)

    def array(self, tensor: Tensor) -> Array:
        """A tensor as what this engine's sums are made of."""
        return tensor

    def terms(
        self, sums: PairSums, group: Group, spec: RankingSpec, number: int, shared: bool, faults: Tensor | int
    ) -> tuple[Terms, Tensor | int]:
        """What the formula makes of a group's sums, and the faults with those of its negatives.

        Args:
            sums: The sums.
            group: The samples.
            spec: Which loss.
            number: Number of positives in all groups.
            shared: Whether to add the sums, and the faults, of all processes.
            faults: Bad values found so far.
        """
        logits, qualities = self.array(group.positives), self.array(group.quality)
        over = sums.over(values_of(spec, qualities), spec.by_quality)
        faults = faults + over.faults
        if shared:
            over, faults = self._reduce(over, faults)
        return FORMULAS[spec.family](spec, Positives(logits, qualities, number), over, sums.push), faults

    def gradient(
        self, group: Group, spec: RankingSpec, weights: Tensor, layout: Tensor, upstream: Tensor, out: Tensor
    ) -> None:
        """Write each negative's Σ_u weights_u · rank(x_v - p_u), times the upstream gradient, to the flat gradient.

        Samples that are not negatives get 0. An engine whose ``terms`` has tables gets the table as weights, with its
        layout, which is otherwise empty.
        """
        self.sums(group, spec).gradient(weights * upstream, out)

    def forward(self, samples: Samples, spec: RankingSpec) -> Forward:
        """The loss, numbers for the log, and what the backward pass needs."""
        by_class = spec.scope == "class"
        read = self.read(sorted_by_image(samples)[0])
        if by_class:
            read = sorted_by_class(read, samples)
        shared = spec.scope == "world" and world_size() > 1
        positives, quality, own = _gather(read) if shared else (read.positives, read.quality, slice(None))
        number, processes = len(positives), world_size() if shared else 1
        faults = read.faults
        apart = number == 0 or by_class or samples.image is not None or spec.max_negatives is not None
        if apart:  # the sums do not see all logits
            if not read.known:
                faults = faults + (~(read.values.isfinite() | skipped(read.skip, read.values))).sum()
            if shared:
                faults = torch.as_tensor(faults, device=read.values.device)
                distributed.all_reduce(faults)
        picked: list[Tensor] = []
        kept: list[Tensor] = []
        layouts: list[Tensor] = []
        bounds, parts, nothing = [], [], positives.new_empty(0)
        faulty = read.known and read.faults != 0
        for flat, skip, ours in group_slices(read, group_ends(read, samples, by_class), number):
            limits = None if apart or shared else read.limits
            skips = moved(_part(read.skip, skip), flat.start)
            group = Group(_part(read.values, flat), skips, _part(positives, ours), _part(quality, ours), limits)
            among = 0, 0
            if spec.max_negatives is not None:
                group, chosen = highest_negatives(group, spec.max_negatives, shared)
                among = _append(picked, chosen + flat.start)
            terms, total = self.terms(self.sums(group, spec), group, spec, number, shared, faults)
            faults = faults if apart else total
            parts.append(terms)
            used = _append(kept, _tensor(terms.weights if terms.table is None else terms.table))
            laid_out = _append(layouts, nothing if terms.layout is None else terms.layout)
            which = flat.start, flat.stop, skip.start, skip.stop, ours.start, ours.stop
            bounds.append([*which, *among, *used, *laid_out, faulty])
        joint = _combined(parts, len(spec.log) - 2, positives)
        loss, log, scale = self._totals(joint, faults, number, read.values.dtype)
        scale = scale if processes == 1 else scale * processes
        saved = Saved(
            read.skip,
            read.where,
            _scaled(_part(joint.gradient, own), scale),
            positives,
            _scaled(joined([nothing, *kept]), scale),
            joined([nothing, *layouts]),
            torch.cat(picked) if picked else read.where.new_empty(0),
            torch.tensor(bounds, dtype=torch.int64).view(-1, 13),
        )
        if spec.family != "alrp":
            return Forward(loss, log, None, saved)
        rows = read.values.new_zeros(len(samples.labels))
        assert joint.box_weights is not None
        rows[read.rows] = (joint.box_weights[own] * processes).to(rows.dtype)
        return Forward(loss, log, unsorted(rows, samples), saved)

    def _totals(
        self, terms: Terms, faults: Tensor | int, number: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor | float]:
        """The loss in a dtype, the log, and NaN if there are faults or 1 if not."""
        if self.on_host:
            count = int(faults)
            factor = math.nan if count else 1.0
            log = torch.tensor([number, count, *map(float, terms.log)], dtype=torch.float64)
            return torch.tensor(float(terms.loss) * factor, dtype=dtype), log, factor
        log = terms.log[0][None] if len(terms.log) == 1 else torch.stack(terms.log)
        if isinstance(faults, int):
            factor = math.nan if faults else 1.0
            log = pad(pad(log, (1, 0), value=faults), (1, 0), value=number)
            return _scaled(terms.loss, factor).to(dtype), log, factor
        faults = faults.double()
        fine = faults == 0
        scale = fine / fine
        log = torch.cat([torch.full_like(faults, number)[None], faults[None], log])
        return (terms.loss * scale).to(dtype), log, scale

    def _reduce(self, over: Over, faults: Tensor | int) -> tuple[Over, Tensor]:
        """The sums over the negatives of all processes, and all their faults."""
        parts = [torch.as_tensor(part) for part in over.negatives if part is not None]
        sums = torch.cat([*parts, torch.as_tensor(faults, dtype=torch.float64, device=parts[0].device)[None]])
        distributed.all_reduce(sums)
        return over._replace(negatives=Sums(*map(self.array, sums[:-1].view(len(parts), -1)))), sums[-1]

    def backward(self, upstream: Tensor, samples: Samples, saved: tuple[Tensor, ...], spec: RankingSpec) -> Tensor:
        """The gradient of the logits, in their shape and dtype."""
        kept = Saved(*saved)
        by_class = spec.scope == "class"
        logits, bounds = working(sorted_by_image(samples)[0].logits), kept.bounds.tolist()
        if kept.skip.dtype == torch.bool and kept.skip.shape[0]:
            logits = logits.masked_fill(kept.skip[:, None], -torch.inf)
        if any(row[-1] for row in bounds):
            logits = logits.nan_to_num(0.0, 0.0, 0.0)
        values = flat_logits(logits, by_class)
        whole = [(row[0], row[1]) for row in bounds] == [(0, len(values))] and spec.max_negatives is None
        out, nothing = (torch.empty_like if whole else torch.zeros_like)(values), kept.positives[:0]
        for start, end, first_skip, last_skip, first, last, begin, stop, used, unused, *laid_out, _ in bounds:
            positives = _part(kept.positives, slice(first, last))
            if spec.max_negatives is None:
                skip = moved(_part(kept.skip, slice(first_skip, last_skip)), start)
                group = Group(_part(values, slice(start, end)), skip, positives, nothing)
                part = _part(out, slice(start, end))
            else:
                chosen = kept.picked[begin:stop]
                group = Group(values[chosen], kept.skip[:0], positives, nothing)
                part = torch.empty_like(group.values)
            weights, layout = _part(kept.weights, slice(used, unused)), _part(kept.layouts, slice(*laid_out))
            self.gradient(group, spec, weights, layout, upstream, part)
            if spec.max_negatives is not None:
                out[chosen] = part
        own = torch.mul(kept.gradient, upstream, out=torch.empty_like(kept.gradient, dtype=out.dtype))
        self.array(out)[self.array(kept.where)] = self.array(own)
        if by_class:
            return out.view(samples.logits.T.shape).T.contiguous().to(samples.logits.dtype)
        return unsorted(out.view(samples.logits.shape), samples).to(samples.logits.dtype)

    def fake(self, samples: Samples, spec: RankingSpec) -> Forward:
        """Empty tensors in the shapes and dtypes that ``forward`` would return."""
        dynamic = torch.library.get_ctx().new_dynamic_size
        device, dtype = samples.logits.device, torch.promote_types(samples.logits.dtype, torch.float32)
        positives, everyone = dynamic(), dynamic()

        def integers(*shape: int | torch.SymInt) -> Tensor:
            return torch.empty(shape, dtype=torch.int64, device=device)

        def floats(*shape: int | torch.SymInt) -> Tensor:
            return torch.empty(shape, dtype=torch.float64, device=device)

        saved = Saved(
            integers(dynamic(), 2) if self.on_host else torch.empty(dynamic(), dtype=torch.bool, device=device),
            integers(positives),
            floats(positives),
            floats(everyone),
            floats(dynamic()),
            floats(dynamic()),
            integers(dynamic()),
            torch.empty((dynamic(), 13), dtype=torch.int64),
        )
        box_weights = torch.empty(len(samples.labels), dtype=dtype, device=device)
        loss = torch.empty((), dtype=dtype, device=device)
        return Forward(loss, floats(len(spec.log)), box_weights if spec.family == "alrp" else None, saved)


def _gather(read: Read) -> tuple[Tensor, Tensor, slice]:
    """Logits and qualities of the positives of all processes, and which are this one's."""
    everyone = all_gather_rows(torch.stack([read.positives, read.quality], 1))
    before = sum(map(len, everyone[: rank()]))
    positives, quality = torch.cat(everyone).T.contiguous()
    return positives, quality, slice(before, before + len(read.where))


def _combined(parts: list[Terms], log: int, positives: Tensor) -> Terms:
    """The terms of all groups but the weights: sums of loss and log, the rest as tensors, one after the other."""
    if not parts:
        zero = positives.sum()
        return Terms(zero, (zero,) * log, positives, positives.clone(), positives.clone())
    loss, logs, _, gradient, box_weights, *_ = zip(*parts, strict=True)
    boxes = None if box_weights[0] is None else joined(list(map(_tensor, box_weights)))
    if len(parts) == 1:
        return Terms(loss[0], logs[0], positives, _tensor(gradient[0]), boxes)
    logs = tuple(map(sum, zip(*logs, strict=True)))
    return Terms(sum(loss), logs, positives, joined(list(map(_tensor, gradient))), boxes)


def _append(parts: list[Tensor], part: Tensor) -> tuple[int, int]:
    """Add a part; its first index and the one after its last once the parts are joined."""
    start = sum(map(len, parts))
    parts.append(part)
    return start, start + len(part)


def joined(parts: list[Tensor]) -> Tensor:
    """Parts one after the other."""
    parts = [part for part in parts if part.shape[0]] or parts[:1]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _part(values: Tensor, part: slice) -> Tensor:
    """A slice, without making a view if it is everything."""
    return values if part.start in (0, None) and part.stop in (values.shape[0], None) else values[part]


def _tensor(values: Array) -> Tensor:
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else values


def _scaled(values: Tensor, factor: Tensor | float) -> Tensor:
    return values if isinstance(factor, float) and factor == 1.0 else values * factor
