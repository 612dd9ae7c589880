"""Host side of the Triton engine: which kernels a loss launches, in which order, with which buffers.

The host knows only shapes. It never waits for the device, and no allocation or branch depends on values, so that a CUDA
graph should be able to capture forward and backward.

    count_positives, list_positives                           list of the positives
    scatter, coarsen, sums_over_cells                         sums of sigmoids over the negatives, by a histogram
    sort_edges, scatter, merge_copies, sums_over_intervals    sums of steps, by the intervals between edges
    weigh_*, reduce_loss                                      formula of the loss: weights, loss, log
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
from rankwise.pairsums.engines.triton import formula, histogram, intervals, taylor
from rankwise.pairsums.engines.triton.arguments import (
    BLOCKS,
    CHUNKS,
    EXTREME_WORDS,
    INTERPRETED,
    Batch,
    PositiveList,
    Weights,
)
from rankwise.pairsums.engines.triton.positives import count_positives, list_positives, merge_processes
from rankwise.pairsums.spec import Forward, RankingSpec, Samples

#: In the scope "image", images with an index below this have a histogram; others are summed pair by pair.
MAX_IMAGES = 64

#: In the scope "world", each process sends a buffer for this many positives, because no process knows the number of the
#: others. Positives beyond it are counted as faults.
WORLD_CAPACITY = 1 << 15

#: Flat indices are int32 and must not overflow in the last block.
MAX_LOGITS = (1 << 31) - (1 << 20)

#: The largest width of a bin, in units of 1/λ.
MAX_BIN_WIDTH = 2.0**-7


class Buffers(NamedTuple):
    """What the backward pass needs; no tensor is a view of another.

    Attributes:
        floats: Logit, quality and `Weights.negatives` of the positives, float32 [3, capacity].
        doubles: `Weights.lower` and `Weights.pull`, float64 [2, capacity].
        group: Their images, int64 [capacity]; [1] unless the scope is "image".
        counts: `PositiveList.counts`, int32 [3].
        positive_of_row: Index in the list of the positive of each row, int32 [A]; not set in other rows.
        nan_if_faults: NaN if there are faults, else 0, float32 [1].
        tables: Sigmoid: the extremes of the groups, int64 [groups · 4]. Step: the sorted edges, float64 [2 · capacity].
        edge_groups: Step: their images, int64 [2 · capacity]; [1] unless the scope is "image".
        ramps: Step: the indices of the two edges of each positive, int32 [2, capacity]; else [2, 1].
    """

    floats: Tensor
    doubles: Tensor
    group: Tensor
    counts: Tensor
    positive_of_row: Tensor
    nan_if_faults: Tensor
    tables: Tensor
    edge_groups: Tensor
    ramps: Tensor

    @property
    def positives(self) -> PositiveList:
        return PositiveList(self.floats[0], self.floats[1], self.group, self.counts)

    @property
    def capacity(self) -> int:
        return self.floats.shape[1]

    @property
    def weights(self) -> Weights:
        return Weights(self.floats[2], *self.doubles)


class TritonEngine:
    """Fused kernels for CUDA and ROCm; CPU tensors only in Triton's interpreter."""

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
        if samples.logits.numel() > MAX_LOGITS:
            return f"it takes up to {MAX_LOGITS:,} logits, got {samples.logits.numel():,}"
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
            _sigmoid_sums(call, buffers, sums)
        if call.world_size > 1:
            distributed.all_reduce_sum_(sums)
        first, second = _weigh(call, buffers, sums, values)
        formula.reduce_loss[1,](
            buffers.positives, first, second, sums, empty.loss, empty.log, buffers.nan_if_faults, capacity,
            BOTH=spec.family == "ranksort", BLOCK=1024,
        )  # fmt: skip
        if empty.box_weights is not None:
            formula.box_weights[call.programs(len(samples.labels), BLOCKS.rows),](
                buffers.positives, values[1], buffers.positive_of_row, call.batch, empty.box_weights, call.world_size,
                C=call.classes, SCALE=call.scale, GROUPED=call.grouped, BU=BLOCKS.rows, BV=BLOCKS.columns,
            )  # fmt: skip
        return empty

    def backward(self, upstream: Tensor, samples: Samples, saved: tuple[Tensor, ...], spec: RankingSpec) -> Tensor:
        """The gradient of the logits, in their shape and dtype."""
        call, buffers = _Call(samples, spec), Buffers(*saved)
        grad_positives = torch.empty_like(buffers.positive_of_row, dtype=torch.float32)
        grad = torch.empty_like(samples.logits)
        formula.positive_gradients[call.pair_programs,](
            upstream, buffers.positives, buffers.weights, grad_positives, call.world_size, call.pair_programs,
            SCALE=call.scale, STEP=call.step, LOWER=spec.adaptive or spec.family == "ranksort", GROUPED=call.grouped,
            BU=BLOCKS.rows, BV=BLOCKS.columns,
        )  # fmt: skip
        (_step_gradient if call.step else _sigmoid_gradient)(call, buffers, upstream, grad_positives, grad)
        return grad

    def fake(self, samples: Samples, spec: RankingSpec) -> Forward:
        """Empty tensors in the shapes and dtypes that ``forward`` returns."""
        call, device = _Call(samples, spec), samples.logits.device
        rows = max(len(samples.labels), 1)
        capacity = WORLD_CAPACITY * call.world_size if call.world_size > 1 else rows
        edges, edge_groups = (2 * capacity if call.step else 1), (2 * capacity if call.step and call.grouped else 1)
        buffers = Buffers(
            floats=torch.empty(3, capacity, device=device),
            doubles=torch.empty(2, capacity, dtype=torch.float64, device=device),
            group=torch.empty(capacity if call.grouped else 1, dtype=torch.int64, device=device),
            counts=torch.empty(3, dtype=torch.int32, device=device),
            positive_of_row=torch.empty(rows, dtype=torch.int32, device=device),
            nan_if_faults=torch.empty(1, device=device),
            tables=torch.empty(edges, dtype=torch.float64, device=device)
            if call.step
            else torch.empty(EXTREME_WORDS.value * call.groups, dtype=torch.int64, device=device),
            edge_groups=torch.empty(edge_groups, dtype=torch.int64, device=device),
            ramps=torch.empty(2, capacity if call.step else 1, dtype=torch.int32, device=device),
        )
        box_weights = torch.empty(len(samples.labels), device=device) if spec.family == "alrp" else None
        log = torch.empty(len(spec.log), dtype=torch.float64, device=device)
        return Forward(torch.empty((), device=device), log, box_weights, tuple(buffers))


class _Call:
    """Shapes and launch sizes of a call: all that the host knows."""

    def __init__(self, samples: Samples, spec: RankingSpec) -> None:
        logits, labels, quality, image = samples
        self.spec = spec
        self.rows, self.classes = logits.shape
        self.size = logits.numel()
        unread = labels  # any valid pointer, for arguments that are not read
        self.batch = Batch(
            logits, labels, unread if quality is None else quality, unread if image is None else image, self.rows,
            self.size,
        )  # fmt: skip
        self.step = isinstance(spec.distance, Step)
        self.scale = _scale(spec.distance)
        self.grouped = spec.scope == "image"
        self.groups = max(2, min(MAX_IMAGES, self.rows)) if self.grouped else 1
        self.world_size = distributed.world_size() if spec.scope == "world" else 1
        self.pair_programs = self.programs(self.rows, BLOCKS.rows, BLOCKS.pair_programs)
        self.copies = 1 if self.size < 1 << 18 or INTERPRETED else 8 if self.size < 1 << 26 else 64

    def programs(self, number: int, block: int, most: int = 1 << 30) -> int:
        """Number of programs for a number of elements and a block size."""
        return max(1, min(triton.cdiv(number, block), most))


def _scale(distance: Distance) -> float:
    if isinstance(distance, Step):
        return float(distance.delta)
    assert isinstance(distance, Sigmoid)
    return float(distance.lam)


def _list_positives(call: _Call, buffers: Buffers, faults: Tensor) -> None:
    """List the positives of this process, or with the scope "world" of all processes."""
    device, quality = faults.device, call.spec.needs_quality
    block, rows_per_chunk = (4096 if INTERPRETED else 256), triton.cdiv(call.rows, CHUNKS.value)
    chunk_counts = torch.empty(CHUNKS.value, dtype=torch.int32, device=device)
    count_positives[CHUNKS.value,](
        call.batch, chunk_counts, faults, buffers.tables, 0 if call.step else EXTREME_WORDS.value * call.groups,
        rows_per_chunk,
        C=call.classes, QUALITY=quality, BLOCK=block,
    )  # fmt: skip
    several = call.world_size > 1
    capacity = WORLD_CAPACITY if several else buffers.capacity
    positives, send_buffer = buffers.positives, None
    if several:
        send_buffer = torch.empty(2 * capacity + 1, device=device)
        positives = PositiveList(send_buffer[1:], send_buffer[1 + capacity :], buffers.group, buffers.counts)
    list_positives[CHUNKS.value,](
        call.batch, chunk_counts, positives, buffers.positive_of_row, buffers.tables, faults,
        rows_per_chunk, capacity, send_buffer,
        C=call.classes, QUALITY=quality, GROUPS=call.groups, STEP=call.step or several, BLOCK=block,
    )  # fmt: skip
    if send_buffer is not None:
        gathered = distributed.all_gather_equal(send_buffer)
        merge_processes[call.world_size,](
            gathered, buffers.positives, buffers.tables, distributed.rank(), capacity, STEP=call.step, BLOCK=block
        )


def _sigmoid_sums(call: _Call, buffers: Buffers, sums: Tensor) -> None:
    """Sums of sigmoids over the negatives: histogram, moments, Taylor expansion."""
    device, groups = sums.device, call.groups
    copies = 1 if call.grouped else call.copies
    sizes = [1, groups * histogram.EXPONENTS.value, groups * copies * histogram.TABLE_WORDS.value]
    faults, overflow, table = torch.zeros(sum(sizes), dtype=torch.int64, device=device).split(sizes)
    moments = torch.empty(groups * 4 * histogram.CELLS.value, device=device)
    overflow_totals = torch.empty(2 * groups, dtype=torch.float64, device=device)
    _list_positives(call, buffers, faults)
    width = _width(call.scale)
    samples = BLOCKS.samples // 2 if call.grouped else BLOCKS.samples  # half as many, or registers spill
    programs = call.programs(call.size, samples, BLOCKS.scatter_programs)
    blocks = triton.cdiv(triton.cdiv(call.size, samples), programs) * triton.cdiv(programs, copies)  # into one copy
    count_bits = max(1, min(call.size, blocks * samples).bit_length())
    offset_bits = min(16, 62 - 2 * count_bits)  # a 64-bit word holds the count above the sum of the offsets
    shift, offset_scale = count_bits + offset_bits, float(1 << offset_bits)
    histogram.scatter[programs,](
        call.batch, buffers.tables, table, overflow, faults, shift, offset_scale, copies, programs,
        C=call.classes, WIDTH=width, SCALE=call.scale, GROUPS=groups, BLOCK=samples,
    )  # fmt: skip
    block = histogram.CELLS.value if INTERPRETED else 32
    histogram.coarsen[histogram.CELLS.value // block, groups](
        table, overflow, buffers.tables, moments, overflow_totals, shift, offset_scale, copies,
        WIDTH=width, SCALE=call.scale, BLOCK=block,
    )  # fmt: skip
    programs = call.programs(buffers.capacity, BLOCKS.rows, BLOCKS.pair_programs)
    taylor.sums_over_cells[programs,](
        call.batch, buffers.positives, buffers.tables, moments, overflow_totals, faults, sums, buffers.capacity,
        programs, C=call.classes, WIDTH=width, SCALE=call.scale, GROUPS=groups,
        ERROR=isinstance(call.spec.distance, SigmoidCrossEntropy), BU=BLOCKS.rows, BC=BLOCKS.columns,
    )  # fmt: skip


def _width(scale: float) -> float:
    """The largest width of bins that is a power of two."""
    return 2.0 ** math.floor(math.log2(MAX_BIN_WIDTH / scale))


def _step_sums(call: _Call, buffers: Buffers, sums: Tensor) -> None:
    """Sums of steps over the negatives: moments 0 and 1 of the intervals between the edges of the ramps."""
    capacity, device = buffers.capacity, sums.device
    replicated = intervals.MAX_REPLICATED.value
    words = 2 * (call.copies * replicated + (2 * capacity if 2 * capacity > replicated else 0))
    faults, table = torch.zeros(1 + words, dtype=torch.int64, device=device).split([1, words])
    moments = torch.empty(4 * capacity, dtype=torch.float64, device=device)
    _list_positives(call, buffers, faults)
    programs = call.programs(capacity, BLOCKS.rows, BLOCKS.pair_programs)
    begins, ends = buffers.ramps
    edges = (buffers.tables, buffers.edge_groups)
    sizes = {"SCALE": call.scale, "GROUPED": call.grouped}
    intervals.sort_edges[programs,](
        buffers.positives, *edges, begins, ends, programs, **sizes, BU=BLOCKS.rows, BV=BLOCKS.columns
    )
    scattering = call.programs(call.size, BLOCKS.samples, BLOCKS.scatter_programs)
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
    """The formula of the loss: the weights, and the two values per positive that `reduce_loss` averages."""
    spec, capacity = call.spec, buffers.capacity
    programs = call.programs(capacity, BLOCKS.rows, BLOCKS.pair_programs)
    positives, weights = buffers.positives, buffers.weights
    sizes = {"GROUPED": call.grouped, "BU": BLOCKS.rows, "BV": BLOCKS.columns}
    first, second = values
    if spec.family == "ranksort":
        formula.weigh_ranksort[programs,](positives, sums, weights, first, second, programs, SCALE=call.scale, **sizes)
    elif spec.family == "alrp":
        formula.weigh_alrp[programs,](
            positives, sums, weights, second, first, programs, SCALE=call.scale, TAU=spec.tau, **sizes
        )
        second = first
    else:
        formula.weigh_pairwise[programs,](
            positives, sums, weights, first, second, capacity, programs,
            SCALE=call.scale, STEP=call.step, CROSS_ENTROPY=isinstance(spec.distance, SigmoidCrossEntropy),
            OWN=spec.own, ADAPTIVE=spec.adaptive, WEIGHTED=spec.weight_by_quality, **sizes,
        )  # fmt: skip
        if spec.interpolated:
            formula.interpolate_precision[programs,](positives, second, weights, first, programs, **sizes)
    return first, second


def _sigmoid_gradient(call: _Call, buffers: Buffers, upstream: Tensor, grad_positives: Tensor, grad: Tensor) -> None:
    """The adjoint of the sums of sigmoids: a cubic per cell, evaluated at every negative."""
    cells = histogram.CELLS.value + 2
    cubics = torch.empty(call.groups * cells * 4, device=grad.device)
    sizes = {"WIDTH": _width(call.scale), "SCALE": call.scale, "GROUPS": call.groups}
    bc, bv = (2048, 128) if INTERPRETED else (16, 64)
    weights = buffers.weights
    taylor.cell_cubics[triton.cdiv(cells, bc), call.groups](
        upstream, buffers.positives, buffers.tables, weights, cubics, call.world_size, **sizes, BC=bc, BV=bv
    )
    taylor.gradient_of_cubics[call.programs(call.size, BLOCKS.samples),](
        upstream, call.batch, buffers.positives, buffers.tables, weights, cubics, buffers.positive_of_row,
        grad_positives, buffers.nan_if_faults, grad, call.world_size, C=call.classes, **sizes, BLOCK=BLOCKS.samples,
    )  # fmt: skip


def _step_gradient(call: _Call, buffers: Buffers, upstream: Tensor, grad_positives: Tensor, grad: Tensor) -> None:
    """The adjoint of the sums of steps: a line per interval, evaluated at every negative."""
    lines = torch.empty(4 * buffers.capacity, device=grad.device)
    begins, ends = buffers.ramps
    edges = (buffers.tables, buffers.edge_groups)
    sizes = {"SCALE": call.scale, "GROUPED": call.grouped}
    programs = call.programs(2 * buffers.capacity, BLOCKS.rows, BLOCKS.pair_programs)
    intervals.interval_lines[programs,](
        upstream, buffers.positives, *edges, begins, ends, buffers.weights, lines, call.world_size, programs,
        **sizes, BI=BLOCKS.rows, BV=BLOCKS.columns,
    )  # fmt: skip
    intervals.gradient_of_lines[call.programs(call.size, BLOCKS.samples),](
        call.batch, buffers.positives, *edges, lines, buffers.positive_of_row, grad_positives, buffers.nan_if_faults,
        grad, C=call.classes, **sizes, BLOCK=BLOCKS.samples,
    )  # fmt: skip
