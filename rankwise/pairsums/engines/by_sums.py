"""What the engines dense, torch and numba share: all of a ranking loss but the sums over pairs.

Forward: find the positives, cut the samples into groups that rank together, get each group's sums, apply the formula.
Backward: each negative's gradient is Σ_u weights_u · rank(x_v - p_u), whichever the loss.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, distributed

from rankwise.distributed import all_gather_rows, rank, world_size
from rankwise.pairsums.formula import FORMULAS, Array, Over, PairSums, Positives, Sums, Terms, values_of
from rankwise.pairsums.spec import ROUNDING, Forward, RankingSpec, Samples


class Group(NamedTuple):
    """Samples that rank together.

    Attributes:
        values: Logits, float32 or float64, flat [n]: the negatives of this process, and what ``skip`` names.
        skip: Which of the values are not negatives, bool [n]; for the numba engine sorted disjoint intervals (first,
            one past the last), int64 [k, 2]. Empty if all are.
        positives: Logits, float64 [P], all finite; in the scope "world" those of all processes.
        quality: Of the positives, float64 [P]; zeros if the loss reads none.
    """

    values: Tensor
    skip: Tensor
    positives: Tensor
    quality: Tensor


class Saved(NamedTuple):
    """What the backward pass needs beside the samples.

    Attributes:
        skip: Which of the flat logits are not negatives, as in `Group`.
        where: Where this process's positives are in the flat logits, rising, int64 [P].
        gradient: Of this process's positives, float64 [P].
        positives: Logits of all positives, float64 [R].
        weights: How strongly each of them pushes the negatives, float64 [R].
        picked: Where the negatives are in the flat logits if not all of them count, int64 [Q].
        bounds: For each group its first and end in flat logits, skip, positives and picked, int64 [groups, 8].
    """

    skip: Tensor
    where: Tensor
    gradient: Tensor
    positives: Tensor
    weights: Tensor
    picked: Tensor
    bounds: Tensor


class Read(NamedTuple):
    """The samples, read.

    Attributes:
        values: Flat logits, float32 or float64, [n].
        columns: Number of classes.
        skip: Which of the values are not negatives, as in `Group`.
        rows: The rows of the positives, rising, int64 [P].
        where: Where the positives are in the flat logits, rising, int64 [P].
        positives: Their logits, float64 [P]; 0 for bad ones.
        quality: Their qualities, float64 [P]; 0 for bad ones, or if the loss reads none.
        faults: Number of bad labels, positives and qualities.
    """

    values: Tensor
    columns: int
    skip: Tensor
    rows: Tensor
    where: Tensor
    positives: Tensor
    quality: Tensor
    faults: Tensor | int


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
        return _read(samples)

    def array(self, tensor: Tensor) -> Array:
        """A tensor as what this engine's sums are made of."""
        return tensor

    def terms(
        self, group: Group, spec: RankingSpec, number: int, shared: bool, faults: Tensor | int
    ) -> tuple[Terms, Tensor | int]:
        """What the formula makes of a group's sums, and the faults with those of its negatives.

        Args:
            group: The samples.
            spec: Which loss.
            number: Number of positives in all groups.
            shared: Whether to add the sums, and the faults, of all processes.
            faults: Bad values found so far.
        """
        sums = self.sums(group, spec)
        logits, qualities = self.array(group.positives), self.array(group.quality)
        over = sums.over(values_of(spec, qualities), spec.by_quality)
        faults = faults + over.faults
        if shared:
            over, faults = self._reduce(over, faults)
        return FORMULAS[spec.family](spec, Positives(logits, qualities, number), over, sums.push), faults

    def gradient(self, group: Group, spec: RankingSpec, weights: Tensor, out: Tensor) -> None:
        """Write each negative's Σ_u weights_u · rank(x_v - p_u) to its index in the flat gradient, and 0 elsewhere."""
        self.sums(group, spec).gradient(weights, out)

    def forward(self, samples: Samples, spec: RankingSpec) -> Forward:
        """The loss, numbers for the log, and what the backward pass needs."""
        by_class = spec.scope == "class"
        read = self.read(_sorted_by_image(samples)[0])
        if by_class:
            read = _by_class(read, samples)
        shared = spec.scope == "world" and world_size() > 1
        positives, quality, mine = _gather(read) if shared else (read.positives, read.quality, slice(None))
        number, copies = len(positives), world_size() if shared else 1
        faults = read.faults
        apart = number == 0 or by_class or samples.image is not None or spec.max_negatives is not None
        if apart:  # the sums do not see all logits
            faults = faults + (~(read.values.isfinite() | _mask(read.skip, read.values))).sum()
            if shared:
                distributed.all_reduce(faults)
        picked, bounds, parts = [], [], []
        for flat, skip, ours in _parts(read, _ends(read, samples, by_class), number):
            group = Group(read.values[flat], _moved(read.skip[skip], flat.start), positives[ours], quality[ours])
            if spec.max_negatives is not None:
                group, chosen = _highest(group, spec.max_negatives, shared)
                picked.append(chosen + flat.start)
            terms, total = self.terms(group, spec, number, shared, faults)
            faults = faults if apart else total
            parts.append(terms)
            taken = sum(map(len, picked))
            ends = taken - len(picked[-1]) if picked else 0, taken
            bounds.append([flat.start, flat.stop, skip.start, skip.stop, ours.start, ours.stop, *ends])
        joint = _together(parts, len(spec.log) - 2, positives)
        loss, log, scale = self._totals(joint, faults, number)
        scale = scale if copies == 1 else scale * copies
        saved = Saved(
            read.skip,
            read.where,
            _scaled(joint.gradient[mine], scale),
            positives,
            _scaled(joint.weights, scale),
            torch.cat(picked) if picked else read.where.new_empty(0),
            torch.tensor(bounds, dtype=torch.int64).view(-1, 8),
        )
        loss = loss.to(read.values.dtype)
        if spec.family != "alrp":
            return Forward(loss, log, None, saved)
        rows = read.values.new_zeros(len(samples.labels))
        assert joint.box_weights is not None
        rows[read.rows] = (joint.box_weights[mine] * copies).to(rows.dtype)
        return Forward(loss, log, _unsorted(rows, samples), saved)

    def _totals(self, terms: Terms, faults: Tensor | int, number: int) -> tuple[Tensor, Tensor, Tensor | float]:
        """The loss, the log, and NaN if there are faults or 1 if not."""
        if self.on_host:
            count = int(faults)
            factor = math.nan if count else 1.0
            values = [float(terms.loss) * factor, number, count, *map(float, terms.log)]
            totals = torch.tensor(values, dtype=torch.float64)
            return totals[0].clone(), totals[1:].clone(), factor
        faults = torch.as_tensor(faults, dtype=torch.float64)
        fine = faults == 0
        scale = fine / fine
        return terms.loss * scale, torch.stack([torch.full_like(faults, number), faults, *terms.log]), scale

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
        values = _flat(_sorted_by_image(samples)[0].logits, by_class)
        bounds = kept.bounds.tolist()
        whole = [(row[0], row[1]) for row in bounds] == [(0, len(values))] and spec.max_negatives is None
        out = (torch.empty_like if whole else torch.zeros_like)(values)
        weights = kept.weights * upstream
        for start, end, first_skip, last_skip, first, last, begin, stop in bounds:
            ours, nothing = slice(first, last), kept.positives[:0]
            if spec.max_negatives is None:
                skip = _moved(kept.skip[first_skip:last_skip], start)
                group = Group(values[start:end], skip, kept.positives[ours], nothing)
                self.gradient(group, spec, weights[ours], out[start:end])
                continue
            chosen = kept.picked[begin:stop]
            group = Group(values[chosen], kept.skip[:0], kept.positives[ours], nothing)
            part = torch.empty_like(group.values)
            self.gradient(group, spec, weights[ours], part)
            out[chosen] = part
        own = (kept.gradient * upstream).to(out.dtype)
        self.array(out)[self.array(kept.where)] = self.array(own)
        if by_class:
            return out.view(samples.logits.T.shape).T.contiguous().to(samples.logits.dtype)
        return _unsorted(out.view(samples.logits.shape), samples).to(samples.logits.dtype)

    def fake(self, samples: Samples, spec: RankingSpec) -> Forward:
        """Empty tensors in the shapes and dtypes that ``forward`` would return."""
        dynamic = torch.library.get_ctx().new_dynamic_size
        device, working = samples.logits.device, torch.promote_types(samples.logits.dtype, torch.float32)
        positives, everyone = dynamic(), dynamic()

        def integers(*shape: int | torch.SymInt) -> Tensor:
            return torch.empty(shape, dtype=torch.int64, device=device)

        def floats(*shape: int | torch.SymInt) -> Tensor:
            return torch.empty(shape, dtype=torch.float64, device=device)

        intervals = self.on_host
        flat = torch.empty(samples.logits.numel(), dtype=torch.bool, device=device)
        saved = Saved(
            integers(dynamic(), 2) if intervals else flat,
            integers(positives),
            floats(positives),
            floats(everyone),
            floats(everyone),
            integers(dynamic()),
            torch.empty((dynamic(), 8), dtype=torch.int64),
        )
        box_weights = torch.empty(len(samples.labels), dtype=working, device=device)
        loss = torch.empty((), dtype=working, device=device)
        return Forward(loss, floats(len(spec.log)), box_weights if spec.family == "alrp" else None, saved)


def _read(samples: Samples) -> Read:
    logits, labels = working(samples.logits), samples.labels
    columns, values = logits.shape[1], logits.view(-1)
    marked = (labels != columns).nonzero().squeeze(1)  # few: all else is background, and so in range
    marks = labels[marked]
    positive = marks.clamp(0, columns - 1) == marks
    rows = marked[positive]
    where = rows * columns + marks[positive]
    positives = values[where].double()
    fine, quality = [positive | (marks == -1), positives.abs() < torch.inf], torch.zeros_like(positives)
    if samples.quality is not None:
        quality = samples.quality[rows].double()
        fine.append(quality.clamp(-ROUNDING, 1 + ROUNDING) == quality)
        quality = quality.nan_to_num(0.0).clamp(0, 1)
    skip = (labels < 0).repeat_interleave(columns).index_fill_(0, where, True)
    faults = (~torch.cat(fine)).sum()
    return Read(values, columns, skip, rows, where, positives.nan_to_num(0.0, 0.0, 0.0), quality, faults)


def _by_class(read: Read, samples: Samples) -> Read:
    """The same with the samples of each class together: flat logits by class, then by row; positives in that order."""
    number = len(samples.labels)
    where, order = (read.where % read.columns * number + read.rows).sort()
    if read.skip.dtype == torch.bool:
        skip = read.skip.view(number, -1).T.reshape(-1)
    else:
        ignored = (samples.labels < 0).nonzero()
        every = (torch.arange(read.columns, device=where.device) * number + ignored).flatten()
        start = torch.cat([where, every]).sort().values
        skip = torch.stack([start, start + 1], 1)
    values, rows = _flat(samples.logits, by_class=True), read.rows[order]
    return read._replace(
        values=values, skip=skip, rows=rows, where=where, positives=read.positives[order], quality=read.quality[order]
    )


def _flat(logits: Tensor, by_class: bool) -> Tensor:
    return (working(logits).T.contiguous() if by_class else working(logits)).view(-1)


def working(logits: Tensor) -> Tensor:
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def _sorted_by_image(samples: Samples) -> tuple[Samples, Tensor | None]:
    """The samples with the rows of each image together, and the order of the rows if it is another."""
    if samples.image is None or not bool((samples.image.diff() < 0).any()):
        return samples, None
    order = samples.image.argsort(stable=True)
    return Samples(*(None if part is None else part[order] for part in samples)), order  # type: ignore[arg-type]


def _unsorted(rows: Tensor, samples: Samples) -> Tensor:
    """Rows in the samples' own order."""
    order = _sorted_by_image(samples)[1]
    return rows if order is None else torch.empty_like(rows).index_copy_(0, order, rows)


def _ends(read: Read, samples: Samples, by_class: bool) -> Tensor | None:
    """Where each group of samples ends in the flat logits, int64 [groups]; None if there is one group."""
    rows = len(samples.labels)
    if by_class:
        return torch.arange(1, read.columns + 1, device=read.where.device) * rows
    if samples.image is None:
        return None
    _, lengths = samples.image.sort().values.unique_consecutive(return_counts=True)
    return lengths.cumsum(0) * read.columns


def _parts(read: Read, ends: Tensor | None, number: int) -> list[tuple[slice, slice, slice]]:
    """For each group with positives, where it is in the flat logits, in ``skip`` and in the positives."""
    if number == 0:
        return []
    if ends is None:
        return [(slice(0, len(read.values)), slice(0, len(read.skip)), slice(0, number))]
    ours = torch.searchsorted(read.where, ends)
    skips = ends if read.skip.dtype == torch.bool else torch.searchsorted(read.skip[:, 0].contiguous(), ends)
    bounds = torch.nn.functional.pad(torch.stack([ends, skips, ours]), (1, 0)).T.tolist()
    groups = ([slice(a, b) for a, b in zip(*edges, strict=True)] for edges in pairwise(bounds))
    return [(flat, skip, ours) for flat, skip, ours in groups if ours.start < ours.stop]


def _gather(read: Read) -> tuple[Tensor, Tensor, slice]:
    """Logits and qualities of the positives of all processes, and which are this one's."""
    everyone = all_gather_rows(torch.stack([read.positives, read.quality], 1))
    before = sum(map(len, everyone[: rank()]))
    positives, quality = torch.cat(everyone).T.contiguous()
    return positives, quality, slice(before, before + len(read.where))


def _together(parts: list[Terms], log: int, positives: Tensor) -> Terms:
    """The terms of all groups: sums of loss and log, the rest as tensors, one after the other."""
    if not parts:
        zero = positives.sum()
        return Terms(zero, (zero,) * log, *(positives.clone() for _ in range(3)))
    loss, logs, *arrays = zip(*parts, strict=True)
    rest = (None if some[0] is None else joined(list(map(torch.as_tensor, some))) for some in arrays)
    return Terms(sum(loss), tuple(map(sum, zip(*logs, strict=True))), *rest)


def joined(parts: list[Tensor]) -> Tensor:
    """Parts one after the other."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _scaled(values: Tensor, factor: Tensor | float) -> Tensor:
    return values if isinstance(factor, float) and factor == 1.0 else values * factor


def _highest(group: Group, number: int, shared: bool) -> tuple[Group, Tensor]:
    """Only the ``number`` highest negatives of a group, and where they are in its values.

    Shared means over all processes; of equal ones at the end those of the first processes are taken.
    """
    where = (~_mask(group.skip, group.values)).nonzero().squeeze(1)
    values, which = group.values[where].topk(min(number, len(where)), sorted=False)
    if shared:
        shares = [share[:, 0] for share in all_gather_rows(values[:, None])]
        everyone = torch.cat(shares)
        if len(everyone) > number:
            least = everyone.topk(number).values[-1]
            left = number - int((everyone > least).sum())  # equal ones still to take, process by process
            before = sum(int((share == least).sum()) for share in shares[: rank()])
            equal = (values == least).nonzero().squeeze(1)[: max(0, left - before)]
            which = torch.cat([which[values > least], which[equal]])
    where = where[which]
    return group._replace(values=group.values[where], skip=group.skip[:0]), where


def _moved(skip: Tensor, start: int) -> Tensor:
    """What is not negative, counted from the start of a group."""
    return skip if skip.dtype == torch.bool or start == 0 else skip - start


def _mask(skip: Tensor, values: Tensor) -> Tensor:
    """Which of the values are not negatives, bool [n]."""
    if skip.dtype == torch.bool:
        return skip
    lengths = skip[:, 1] - skip[:, 0]
    before = lengths.cumsum(0) - lengths
    which = (skip[:, 0] - before).repeat_interleave(lengths) + torch.arange(int(lengths.sum()))
    return torch.zeros_like(values, dtype=torch.bool).index_fill_(0, which, True)
