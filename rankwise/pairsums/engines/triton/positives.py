"""Stream compaction: the list of the positives in row order, in a buffer with space for every row.

Only the device knows their number. Each program counts a chunk of rows, then writes its positives after those of the
chunks before it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankwise.pairsums.engines.triton.arguments import CHUNKS, EXTREME_WORDS, FIRST, HIGHEST, LAST, LOWEST

INF = tl.constexpr(float("inf"))
#: Qualities may exceed [0, 1] by this much through rounding; they are clamped.
ROUNDING = tl.constexpr(1e-4)
#: Added to int32 keys to make them non-negative.
BIAS = tl.constexpr(1 << 31)


@triton.jit
def count_positives(
    batch, counts, faults, extremes, extremes_size, rows_per_chunk,
    C: tl.constexpr, QUALITY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Number of positives in each chunk of rows. Invalid labels, and invalid qualities of positives, are faults.

    Also sets the ``extremes`` to 0.
    """
    pid = tl.program_id(0)
    for first in range(pid * BLOCK, extremes_size, CHUNKS * BLOCK):
        index = first + tl.arange(0, BLOCK)
        tl.store(extremes + index, tl.zeros([BLOCK], tl.int64), mask=index < extremes_size)
    number = tl.zeros([BLOCK], tl.int32)
    bad = tl.zeros([BLOCK], tl.int64)
    for first in range(0, rows_per_chunk, BLOCK):
        row, label, positive = _labels(batch, pid, first, rows_per_chunk, C, BLOCK)
        number += positive.to(tl.int32)
        bad += ((label < -1) | (label > C)).to(tl.int64)
        if QUALITY:
            q = tl.load(batch.quality + row, mask=positive, other=0.0).to(tl.float32)
            bad += (positive & ~((q >= -ROUNDING) & (q <= 1 + ROUNDING))).to(tl.int64)
    tl.store(counts + pid, tl.sum(number))
    tl.atomic_add(faults, tl.sum(bad), sem="relaxed")


@triton.jit
def list_positives(
    batch, chunk_counts, positives, positive_of_row, extremes, faults, rows_per_chunk, capacity, send_buffer,
    C: tl.constexpr, QUALITY: tl.constexpr, GROUPS: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Logit, quality and group of each positive; ``positive_of_row`` has each row's index in the list.

    The number of positives also goes to ``send_buffer``, if given.
    """
    pid = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    number = tl.load(chunk_counts + chunk)
    first_index = tl.sum(tl.where(chunk < pid, number, 0))
    if pid == 0:
        total = tl.sum(number)
        tl.store(positives.counts, tl.minimum(total, capacity))
        tl.store(positives.counts + 1, 0)
        tl.store(positives.counts + 2, tl.minimum(total, capacity))
        tl.atomic_add(faults, tl.maximum(total - capacity, 0).to(tl.int64), sem="relaxed")
        if send_buffer is not None:
            tl.store(send_buffer, tl.minimum(total, capacity).to(tl.float32))
    for first in range(0, rows_per_chunk, BLOCK):
        row, label, positive = _labels(batch, pid, first, rows_per_chunk, C, BLOCK)
        index = first_index + tl.cumsum(positive.to(tl.int32), 0) - 1
        first_index += tl.sum(positive.to(tl.int32))
        mask = positive & (index < capacity)
        x = tl.load(batch.logits + row * C + label, mask=mask, other=0.0).to(tl.float32)
        x = tl.where(tl.abs(x) < INF, x, 0.0)  # a fault; the scatter kernel counts it
        tl.store(positives.logit + index, x, mask=mask)
        tl.store(positive_of_row + row, index, mask=mask)
        if QUALITY:
            q = tl.load(batch.quality + row, mask=mask, other=0.0).to(tl.float32)
            tl.store(positives.quality + index, tl.minimum(tl.maximum(q, 0.0), 1.0), mask=mask)
        group = tl.zeros([BLOCK], tl.int64)
        if GROUPS > 1:
            group = tl.load(batch.image + row, mask=mask, other=0)
            tl.store(positives.group + index, group, mask=mask)
        if not STEP:
            update_extremes(extremes, group, x, index, mask, GROUPS)


@triton.jit
def merge_processes(gathered, positives, extremes, rank, capacity, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """Concatenate the lists of all processes. Each process sent its number of positives, their logits and qualities."""
    pid = tl.program_id(0)
    stride = 2 * capacity + 1
    position = 0
    offset = 0
    total = 0
    for process in range(0, tl.num_programs(0)):
        number = tl.load(gathered + process * stride).to(tl.int32)
        position += tl.where(process < pid, number, 0)
        offset += tl.where(process < rank, number, 0)
        total += number
    number_here = tl.load(gathered + pid * stride).to(tl.int32)
    if pid == rank:
        tl.store(positives.counts, total)
        tl.store(positives.counts + 1, offset)
        tl.store(positives.counts + 2, number_here)
    for first in range(0, number_here, BLOCK):
        index = first + tl.arange(0, BLOCK)
        mask = index < number_here
        x = tl.load(gathered + pid * stride + 1 + index, mask=mask, other=0.0)
        q = tl.load(gathered + pid * stride + 1 + capacity + index, mask=mask, other=0.0)
        tl.store(positives.logit + position + index, x, mask=mask)
        tl.store(positives.quality + position + index, q, mask=mask)
        if not STEP:
            update_extremes(extremes, tl.zeros([BLOCK], tl.int64), x, position + index, mask, 1)


@triton.jit
def update_extremes(extremes, group, x, index, mask, GROUPS: tl.constexpr):
    """Update the extremes of each group by atomic maxima of integers."""
    mask = mask & (group >= 0) & (group < GROUPS)
    word = extremes + tl.where(mask, group, 0) * EXTREME_WORDS
    key = _order_preserving(x.to(tl.int32, bitcast=True)).to(tl.int64) + BIAS
    index = index.to(tl.int64)
    tl.atomic_max(word + HIGHEST, key + 1, mask=mask, sem="relaxed")
    tl.atomic_max(word + LOWEST, -key + 2 * BIAS, mask=mask, sem="relaxed")
    tl.atomic_max(word + FIRST, -index + BIAS, mask=mask, sem="relaxed")
    tl.atomic_max(word + LAST, index + 1, mask=mask, sem="relaxed")


@triton.jit
def load_extremes(extremes, group):
    """Lowest and highest logit of the positives of groups, and whether there are any."""
    word = extremes + group * EXTREME_WORDS
    high = tl.load(word + HIGHEST)
    low = -tl.load(word + LOWEST) + 2 * BIAS
    some = high > 0
    high = _order_preserving((tl.where(some, high, BIAS + 1) - 1 - BIAS).to(tl.int32)).to(tl.float32, bitcast=True)
    low = _order_preserving((tl.where(some, low, BIAS) - BIAS).to(tl.int32)).to(tl.float32, bitcast=True)
    return low, high, some


@triton.jit
def load_index_range(extremes, group):
    """First index of a group's positives in the list, and one past the last."""
    word = extremes + group * EXTREME_WORDS
    last = tl.load(word + LAST)
    first = tl.where(last > 0, -tl.load(word + FIRST) + BIAS, 0)
    return first.to(tl.int32), last.to(tl.int32)


@triton.jit
def _order_preserving(bits):
    """Map the bits of float32 numbers to integers of the same order; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _labels(batch, pid, first, rows_per_chunk, C: tl.constexpr, BLOCK: tl.constexpr):
    """A block of rows of a chunk, their labels, and which of them are positives."""
    index = first + tl.arange(0, BLOCK)
    row = pid.to(tl.int64) * rows_per_chunk + index
    label = tl.load(batch.labels + row, mask=(index < rows_per_chunk) & (row < batch.rows), other=C)
    return row, label, (label >= 0) & (label < C)
