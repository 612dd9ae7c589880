"""The engine: which kernels a loss launches, in which order, on which buffers.

Only shapes are known on the host. Nothing here waits for the device, and no allocation or branch depends on data, so a
CUDA graph can capture forward and backward.

    count_positives, list_positives      the positives, in a buffer with space for every row
    scatter, coarsen, sums_over_cells    sigmoids: each positive's sums over the negatives, by a histogram
    sort_edges, scatter, merge_copies, sums_over_intervals    the same for steps, by intervals
    weigh_*, reduce_loss                 the loss's formula: weights, loss, log
    positive_gradients, cell_cubics or interval_lines, gradient_of_*    backward
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from rankwise import distributed
from rankwise.pairsums.distances import Distance, Sigmoid, SigmoidCrossEntropy, Step
from rankwise.pairsums.engines.triton import histogram, intervals, pairs, taylor
from rankwise.pairsums.engines.triton.arguments import BLOCKS, CHUNKS, EXTREMES, INTERPRETED, Batch, Positives, Weights
from rankwise.pairsums.engines.triton.positives import count_positives, list_positives, merge_processes
from rankwise.pairsums.spec import Forward, RankingSpec, Samples

#: Images 0 to this have a histogram of their own in the scope "image"; the sums of later ones go pair by pair.
IMAGES = 64

#: In the scope "world" each process sends space for so many positives, since nobody knows how many others have. More
#: are counted as faults.
WORLD_CAPACITY = 1 << 15

#: Logits are counted by int32, which must not overflow in the last block.
MOST = (1 << 31) - (1 << 20)

#: Bins are at most so wide, in units of 1/λ.
WIDEST = 2.0**-7


class Buffers(NamedTuple):
    """What backward needs: nothing in it is a view of another.

    Attributes:
        floats: Logit, quality and `Weights.negatives` of the positives, float32 [3, capacity].
        doubles: `Weights.lower` and `Weights.pull`, float64 [2, capacity].
        group: Their images, int64 [capacity]; [1] unless the scope is "image".
        counts: `Positives.counts`, int32 [3].
        slots: Position in the list of each row's positive, int32 [A].
        poison: NaN if there are faults, else 0, float32 [1].
        tables: Smooth: the groups' extremes, int64 [groups · 4]. Step: the sorted edges, float64 [2 · capacity].
        edge_groups: Step: their images, int64 [2 · capacity]; [1] unless the scope is "image".
        ramps: Step: the positions of each positive's two edges, int32 [2, capacity]; else [2, 1].
    """

    floats: Tensor
    doubles: Tensor
    group: Tensor
    counts: Tensor
    slots: Tensor
    poison: Tensor
    tables: Tensor
    edge_groups: Tensor
    ramps: Tensor

    @property
    def positives(self) -> Positives:
        return Positives(self.floats[0], self.floats[1], self.group, self.counts)

    @property
    def capacity(self) -> int:
        return self.floats.shape[1]

    @property
    def weights(self) -> Weights:
        return Weights(self.floats[2], *self.doubles)


class TritonEngine:
    """Fused kernels for CUDA and ROCm; for CPU tensors in Triton's interpreter."""

    name = "triton"

    def unsupported(self, spec: RankingSpec, samples: Samples) -> str | None:
        """Why this engine cannot compute it, or None if it can."""
        device = samples.logits.device.type
        if INTERPRETED and device != "cpu":
            return f"in Triton's interpreter (TRITON_INTERPRET=1) it needs tensors on the CPU, got {device}"
        if not INTERPRETED and device != "cuda":
            return f"it needs tensors on a CUDA or ROCm device, got {device}"
        if samples.logits.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return f"it computes float32, float16 and bfloat16, got {samples.logits.dtype}"
        if spec.has_floor:
            return "it has no sums above a floor (ValidNegatives, cut)"
        if spec.max_negatives is not None:
            return "it has no max_negatives"
        if type(spec.distance) not in (Step, Sigmoid, SigmoidCrossEntropy):
            return f"it has no sums of {type(spec.distance).__name__}"
        if spec.scope == "class":
            return 'it has no scope "class"'
        if samples.logits.numel() > MOST:
            return f"it takes up to {MOST:,} logits, got {samples.logits.numel():,}"
        return None

    def forward(self, samples: Samples, spec: RankingSpec) -> Forward:
        """The loss, numbers for the log, and what the backward pass needs."""
        call = _Call(samples, spec)
        empty = self.fake(samples, spec)
        buffers = Buffers(*empty.saved)
        capacity, device = buffers.capacity, samples.logits.device
        sums = torch.empty(2 * capacity + 1, dtype=torch.float64, device=device)
        values = torch.empty(2, capacity, dtype=torch.float64, device=device)
        if call.step:
            _step_sums(call, buffers, sums)
        else:
            _smooth_sums(call, buffers, sums)
        if call.processes > 1:
            distributed.all_reduce_sum_(sums)
        first, second = _weigh(call, buffers, sums, values)
        pairs.reduce_loss[1,](
            buffers.positives, first, second, sums, empty.loss, empty.log, buffers.poison, capacity,
            BOTH=spec.family == "ranksort", BLOCK=1024,
        )  # fmt: skip
        if empty.box_weights is not None:
            pairs.box_weights[call.programs(len(samples.labels), BLOCKS.rows),](
                buffers.positives, values[1], buffers.slots, call.batch, empty.box_weights, call.processes,
                C=call.classes, SCALE=call.scale, GROUPED=call.grouped, BU=BLOCKS.rows, BV=BLOCKS.columns,
            )  # fmt: skip
        return empty

    def backward(self, upstream: Tensor, samples: Samples, saved: tuple[Tensor, ...], spec: RankingSpec) -> Tensor:
        """The gradient of the logits, in their shape and dtype."""
        call, buffers = _Call(samples, spec), Buffers(*saved)
        own = torch.empty_like(buffers.slots, dtype=torch.float32)
        out = torch.empty_like(samples.logits)
        pairs.positive_gradients[call.pair_programs,](
            upstream, buffers.positives, buffers.weights, own, call.processes, call.pair_programs,
            SCALE=call.scale, STEP=call.step, LOWER=spec.adaptive or spec.family == "ranksort", GROUPED=call.grouped,
            BU=BLOCKS.rows, BV=BLOCKS.columns,
        )  # fmt: skip
        (_step_gradient if call.step else _smooth_gradient)(call, buffers, upstream, own, out)
        return out

    def fake(self, samples: Samples, spec: RankingSpec) -> Forward:
        """Empty tensors in the shapes and dtypes that ``forward`` returns."""
        call, device = _Call(samples, spec), samples.logits.device
        rows = max(len(samples.labels), 1)
        capacity = WORLD_CAPACITY * call.processes if call.processes > 1 else rows
        edges, edge_groups = (2 * capacity if call.step else 1), (2 * capacity if call.step and call.grouped else 1)
        buffers = Buffers(
            floats=torch.empty(3, capacity, device=device),
            doubles=torch.empty(2, capacity, dtype=torch.float64, device=device),
            group=torch.empty(capacity if call.grouped else 1, dtype=torch.int64, device=device),
            counts=torch.empty(3, dtype=torch.int32, device=device),
            slots=torch.empty(rows, dtype=torch.int32, device=device),
            poison=torch.empty(1, device=device),
            tables=torch.empty(edges, dtype=torch.float64, device=device)
            if call.step
            else torch.empty(EXTREMES.value * call.groups, dtype=torch.int64, device=device),
            edge_groups=torch.empty(edge_groups, dtype=torch.int64, device=device),
            ramps=torch.empty(2, capacity if call.step else 1, dtype=torch.int32, device=device),
        )
        box_weights = torch.empty(len(samples.labels), device=device) if spec.family == "alrp" else None
        log = torch.empty(len(spec.log), dtype=torch.float64, device=device)
        return Forward(torch.empty((), device=device), log, box_weights, tuple(buffers))


class _Call:
    """What the host knows of a call."""

    def __init__(self, samples: Samples, spec: RankingSpec) -> None:
        logits, labels, quality, image = samples
        self.spec = spec
        self.rows, self.classes = logits.shape
        self.size = logits.numel()
        unread = labels  # a pointer to something, where there is nothing to read
        self.batch = Batch(
            logits, labels, unread if quality is None else quality, unread if image is None else image, self.rows,
            self.size,
        )  # fmt: skip
        self.step = isinstance(spec.distance, Step)
        self.scale = _scale(spec.distance)
        self.grouped = spec.scope == "image"
        self.groups = max(2, min(IMAGES, self.rows)) if self.grouped else 1
        self.processes = distributed.world_size() if spec.scope == "world" else 1
        self.pair_programs = self.programs(self.rows, BLOCKS.rows, BLOCKS.groups)
        self.copies = 1 if self.size < 1 << 18 or INTERPRETED else 8 if self.size < 1 << 26 else 64

    def programs(self, number: int, block: int, most: int = 1 << 30) -> int:
        """Programs for so many things, a block each."""
        return max(1, min(triton.cdiv(number, block), most))


def _scale(distance: Distance) -> float:
    if isinstance(distance, Step):
        return float(distance.delta)
    assert isinstance(distance, Sigmoid)
    return float(distance.lam)


def _list(call: _Call, buffers: Buffers, faults: Tensor) -> None:
    """The positives of this process, or of all processes."""
    device, quality = faults.device, call.spec.needs_quality
    block, per = (4096 if INTERPRETED else 256), triton.cdiv(call.rows, CHUNKS.value)
    chunk_counts = torch.empty(CHUNKS.value, dtype=torch.int32, device=device)
    count_positives[CHUNKS.value,](
        call.batch, chunk_counts, faults, buffers.tables, 0 if call.step else EXTREMES.value * call.groups, per,
        C=call.classes, QUALITY=quality, BLOCK=block,
    )  # fmt: skip
    several = call.processes > 1
    capacity = WORLD_CAPACITY if several else buffers.capacity
    positives, mine = buffers.positives, None
    if several:
        mine = torch.empty(2 * capacity + 1, device=device)
        positives = Positives(mine[1:], mine[1 + capacity :], buffers.group, buffers.counts)
    list_positives[CHUNKS.value,](
        call.batch, chunk_counts, positives, buffers.slots, buffers.tables, faults, per, capacity, mine,
        C=call.classes, QUALITY=quality, GROUPS=call.groups, STEP=call.step or several, BLOCK=block,
    )  # fmt: skip
    if mine is not None:
        gathered = distributed.all_gather_equal(mine)
        merge_processes[call.processes,](
            gathered, buffers.positives, buffers.tables, distributed.rank(), capacity, STEP=call.step, BLOCK=block
        )


def _smooth_sums(call: _Call, buffers: Buffers, sums: Tensor) -> None:
    """Sums of sigmoids over the negatives: histogram, moments, Taylor expansion."""
    device, groups = sums.device, call.groups
    copies = 1 if call.grouped else call.copies
    beyond = groups * histogram.EXPONENTS.value
    zeros = torch.zeros(1 + beyond + groups * copies * histogram.TABLE.value, dtype=torch.int64, device=device)
    faults, beyond_words, table = zeros[:1], zeros[1 : 1 + beyond], zeros[1 + beyond :]
    moments = torch.empty(groups * 4 * histogram.CELLS.value, device=device)
    tails = torch.empty(2 * groups, dtype=torch.float64, device=device)
    _list(call, buffers, faults)
    width = _width(call.scale)
    samples = BLOCKS.samples // 2 if call.grouped else BLOCKS.samples  # half as many, or registers spill
    programs = call.programs(call.size, samples, BLOCKS.programs)
    turns = triton.cdiv(triton.cdiv(call.size, samples), programs)
    most = min(call.size, turns * triton.cdiv(programs, copies) * samples)
    digits = max(1, most.bit_length())
    fraction = min(16, 62 - 2 * digits)  # bits of an offset: as many as fit beside a sum and a count of all samples
    shift, ones = digits + fraction, float(1 << fraction)
    histogram.scatter[programs,](
        call.batch, buffers.tables, table, beyond_words, faults, shift, ones, copies, programs,
        C=call.classes, WIDTH=width, SCALE=call.scale, GROUPS=groups, BLOCK=samples,
    )  # fmt: skip
    block = histogram.CELLS.value if INTERPRETED else 32
    histogram.coarsen[histogram.CELLS.value // block, groups](
        table, beyond_words, buffers.tables, moments, tails, shift, ones, copies,
        WIDTH=width, SCALE=call.scale, BLOCK=block,
    )  # fmt: skip
    programs = call.programs(buffers.capacity, BLOCKS.rows, BLOCKS.groups)
    taylor.sums_over_cells[programs,](
        call.batch, buffers.positives, buffers.tables, moments, tails, faults, sums, buffers.capacity, programs,
        C=call.classes, WIDTH=width, SCALE=call.scale, GROUPS=groups,
        ERROR=isinstance(call.spec.distance, SigmoidCrossEntropy), BU=BLOCKS.rows, BC=BLOCKS.columns,
    )  # fmt: skip


def _width(scale: float) -> float:
    """Width of the widest bins, a power of two."""
    return 2.0 ** math.floor(math.log2(WIDEST / scale))


def _step_sums(call: _Call, buffers: Buffers, sums: Tensor) -> None:
    """Sums of steps over the negatives: counts and offsets in the intervals between the ends of the ramps."""
    capacity, device = buffers.capacity, sums.device
    words = 2 * (call.copies * intervals.NARROW.value + (2 * capacity if 2 * capacity > intervals.NARROW.value else 0))
    zeros = torch.zeros(1 + words, dtype=torch.int64, device=device)
    faults, table = zeros[:1], zeros[1:]
    moments = torch.empty(4 * capacity, dtype=torch.float64, device=device)
    _list(call, buffers, faults)
    programs = call.programs(capacity, BLOCKS.rows, BLOCKS.groups)
    begins, ends = buffers.ramps
    edges = (buffers.tables, buffers.edge_groups)
    sizes = {"SCALE": call.scale, "GROUPED": call.grouped}
    intervals.sort_edges[programs,](
        buffers.positives, *edges, begins, ends, programs, **sizes, BU=BLOCKS.rows, BV=BLOCKS.columns
    )
    scattering = call.programs(call.size, BLOCKS.samples, BLOCKS.programs)
    intervals.scatter[scattering,](
        call.batch, buffers.positives, *edges, table, faults, call.copies, scattering,
        C=call.classes, **sizes, BLOCK=BLOCKS.samples,
    )  # fmt: skip
    merging = call.programs(2 * capacity, 1024, 64)
    intervals.merge_copies[merging,](buffers.positives, table, moments, capacity, call.copies, merging, BLOCK=1024)
    intervals.sums_over_intervals[programs,](
        buffers.positives, *edges, begins, ends, moments, faults, sums, capacity, programs,
        **sizes, BU=BLOCKS.rows, BV=BLOCKS.columns,
    )  # fmt: skip


def _weigh(call: _Call, buffers: Buffers, sums: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The loss's formula: the weights, and two numbers per positive whose means `reduce_loss` takes."""
    spec, capacity = call.spec, buffers.capacity
    programs = call.programs(capacity, BLOCKS.rows, BLOCKS.groups)
    positives, weights = buffers.positives, buffers.weights
    sizes = {"GROUPED": call.grouped, "BU": BLOCKS.rows, "BV": BLOCKS.columns}
    first, second = values
    if spec.family == "ranksort":
        pairs.weigh_ranksort[programs,](positives, sums, weights, first, second, programs, SCALE=call.scale, **sizes)
    elif spec.family == "alrp":
        pairs.weigh_alrp[programs,](
            positives, sums, weights, second, first, programs, SCALE=call.scale, TAU=spec.tau, **sizes
        )
        second = first
    else:
        pairs.weigh_pairwise[programs,](
            positives, sums, weights, first, second, capacity, programs,
            SCALE=call.scale, STEP=call.step, CROSS_ENTROPY=isinstance(spec.distance, SigmoidCrossEntropy),
            OWN=spec.own, ADAPTIVE=spec.adaptive, WEIGHTED=spec.weight_by_quality, **sizes,
        )  # fmt: skip
        if spec.interpolated:
            pairs.interpolate_precision[programs,](positives, second, weights, first, programs, **sizes)
    return first, second


def _smooth_gradient(call: _Call, buffers: Buffers, upstream: Tensor, own: Tensor, out: Tensor) -> None:
    """The adjoint of the sums of sigmoids: a cubic per cell, evaluated at every negative."""
    cells = histogram.CELLS.value + 2
    cubics = torch.empty(call.groups * cells * 4, device=own.device)
    sizes = {"WIDTH": _width(call.scale), "SCALE": call.scale, "GROUPS": call.groups}
    bc, bv = (2048, 128) if INTERPRETED else (16, 64)
    weights = buffers.weights
    taylor.cell_cubics[triton.cdiv(cells, bc), call.groups](
        upstream, buffers.positives, buffers.tables, weights, cubics, call.processes, **sizes, BC=bc, BV=bv
    )
    taylor.gradient_of_cubics[call.programs(call.size, BLOCKS.samples),](
        upstream, call.batch, buffers.positives, buffers.tables, weights, cubics, buffers.slots, own, buffers.poison,
        out, call.processes, C=call.classes, **sizes, BLOCK=BLOCKS.samples,
    )  # fmt: skip


def _step_gradient(call: _Call, buffers: Buffers, upstream: Tensor, own: Tensor, out: Tensor) -> None:
    """The adjoint of the sums of steps: a line per interval, evaluated at every negative."""
    lines = torch.empty(4 * buffers.capacity, device=own.device)
    begins, ends = buffers.ramps
    edges = (buffers.tables, buffers.edge_groups)
    sizes = {"SCALE": call.scale, "GROUPED": call.grouped}
    programs = call.programs(2 * buffers.capacity, BLOCKS.rows, BLOCKS.groups)
    intervals.interval_lines[programs,](
        upstream, buffers.positives, *edges, begins, ends, buffers.weights, lines, call.processes, programs,
        **sizes, BI=BLOCKS.rows, BV=BLOCKS.columns,
    )  # fmt: skip
    intervals.gradient_of_lines[call.programs(call.size, BLOCKS.samples),](
        call.batch, buffers.positives, *edges, lines, buffers.slots, own, buffers.poison, out,
        C=call.classes, **sizes, BLOCK=BLOCKS.samples,
    )  # fmt: skip
