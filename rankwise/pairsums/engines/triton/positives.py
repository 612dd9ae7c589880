"""Finding the positives: their list in the order of the rows, in a buffer that has space for every row.

How many there are is only known on the device.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankwise.pairsums.engines.triton.arguments import CHUNKS, EXTREMES, FIRST, HIGHEST, LAST, LOWEST

INF = tl.constexpr(float("inf"))
#: An IoU may leave [0, 1] by so much: rounding, which is clamped.
ROUNDING = tl.constexpr(1e-4)
HALF = tl.constexpr(1 << 31)


@triton.jit
def count_positives(
    batch, counts, faults, extremes, words, per, C: tl.constexpr, QUALITY: tl.constexpr, BLOCK: tl.constexpr
):
    """Number of positives per chunk of rows. Bad labels, and bad qualities of positives, are faults.

    Clears ``extremes`` on the way.
    """
    pid = tl.program_id(0)
    for first in range(pid * BLOCK, words, CHUNKS * BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(extremes + at, tl.zeros([BLOCK], tl.int64), mask=at < words)
    number = tl.zeros([BLOCK], tl.int32)
    bad = tl.zeros([BLOCK], tl.int64)
    for first in range(0, per, BLOCK):
        row, label, positive = _labels(batch, pid, first, per, C, BLOCK)
        number += positive.to(tl.int32)
        bad += ((label < -1) | (label > C)).to(tl.int64)
        if QUALITY:
            q = tl.load(batch.quality + row, mask=positive, other=0.0).to(tl.float32)
            bad += (positive & ~((q >= -ROUNDING) & (q <= 1 + ROUNDING))).to(tl.int64)
    tl.store(counts + pid, tl.sum(number))
    tl.atomic_add(faults, tl.sum(bad), sem="relaxed")


@triton.jit
def list_positives(
    batch, chunk_counts, positives, slots, extremes, faults, per, capacity, sent,
    C: tl.constexpr, QUALITY: tl.constexpr, GROUPS: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Logit, quality and group of each positive; ``slots`` has each row's position in the list.

    The number goes to ``sent``, too, if given.
    """
    pid = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    number = tl.load(chunk_counts + chunk)
    position = tl.sum(tl.where(chunk < pid, number, 0))
    if pid == 0:
        total = tl.sum(number)
        tl.store(positives.counts, tl.minimum(total, capacity))
        tl.store(positives.counts + 1, 0)
        tl.store(positives.counts + 2, tl.minimum(total, capacity))
        tl.atomic_add(faults, tl.maximum(total - capacity, 0).to(tl.int64), sem="relaxed")
        if sent is not None:
            tl.store(sent, tl.minimum(total, capacity).to(tl.float32))
    for first in range(0, per, BLOCK):
        row, label, positive = _labels(batch, pid, first, per, C, BLOCK)
        at = position + tl.cumsum(positive.to(tl.int32), 0) - 1
        position += tl.sum(positive.to(tl.int32))
        there = positive & (at < capacity)
        x = tl.load(batch.logits + row * C + label, mask=there, other=0.0).to(tl.float32)
        x = tl.where(tl.abs(x) < INF, x, 0.0)  # a fault, which the pass over the negatives counts
        tl.store(positives.logit + at, x, mask=there)
        tl.store(slots + row, at, mask=there)
        if QUALITY:
            q = tl.load(batch.quality + row, mask=there, other=0.0).to(tl.float32)
            tl.store(positives.quality + at, tl.minimum(tl.maximum(q, 0.0), 1.0), mask=there)
        group = tl.zeros([BLOCK], tl.int64)
        if GROUPS > 1:
            group = tl.load(batch.image + row, mask=there, other=0)
            tl.store(positives.group + at, group, mask=there)
        if not STEP:
            note_extremes(extremes, group, x, at, there, GROUPS)


@triton.jit
def merge_processes(gathered, positives, extremes, rank, capacity, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """The lists of all processes, one after the other. Each process sent its number, logits and qualities."""
    pid = tl.program_id(0)
    stride = 2 * capacity + 1
    position = 0
    own = 0
    total = 0
    for process in range(0, tl.num_programs(0)):
        number = tl.load(gathered + process * stride).to(tl.int32)
        position += tl.where(process < pid, number, 0)
        own += tl.where(process < rank, number, 0)
        total += number
    mine = tl.load(gathered + pid * stride).to(tl.int32)
    if pid == rank:
        tl.store(positives.counts, total)
        tl.store(positives.counts + 1, own)
        tl.store(positives.counts + 2, mine)
    for first in range(0, mine, BLOCK):
        within = first + tl.arange(0, BLOCK)
        there = within < mine
        x = tl.load(gathered + pid * stride + 1 + within, mask=there, other=0.0)
        q = tl.load(gathered + pid * stride + 1 + capacity + within, mask=there, other=0.0)
        tl.store(positives.logit + position + within, x, mask=there)
        tl.store(positives.quality + position + within, q, mask=there)
        if not STEP:
            note_extremes(extremes, tl.zeros([BLOCK], tl.int64), x, position + within, there, 1)


@triton.jit
def note_extremes(extremes, group, x, at, there, GROUPS: tl.constexpr):
    """Highest and lowest logit, first and last position of each group's positives, by maxima of integers."""
    there = there & (group >= 0) & (group < GROUPS)
    word = extremes + tl.where(there, group, 0) * EXTREMES
    key = _ordered(x.to(tl.int32, bitcast=True)).to(tl.int64) + HALF
    at = at.to(tl.int64)
    tl.atomic_max(word + HIGHEST, key + 1, mask=there, sem="relaxed")
    tl.atomic_max(word + LOWEST, -key + 2 * HALF, mask=there, sem="relaxed")
    tl.atomic_max(word + FIRST, -at + HALF, mask=there, sem="relaxed")
    tl.atomic_max(word + LAST, at + 1, mask=there, sem="relaxed")


@triton.jit
def load_extremes(extremes, group):
    """Lowest and highest logit of the positives of groups, and whether they have any."""
    word = extremes + group * EXTREMES
    high = tl.load(word + HIGHEST)
    low = -tl.load(word + LOWEST) + 2 * HALF
    some = high > 0
    high = _ordered((tl.where(some, high, HALF + 1) - 1 - HALF).to(tl.int32)).to(tl.float32, bitcast=True)
    low = _ordered((tl.where(some, low, HALF) - HALF).to(tl.int32)).to(tl.float32, bitcast=True)
    return low, high, some


@triton.jit
def load_span(extremes, group):
    """The first position of a group's positives in the list, and one past the last."""
    word = extremes + group * EXTREMES
    last = tl.load(word + LAST)
    first = tl.where(last > 0, -tl.load(word + FIRST) + HALF, 0)
    return first.to(tl.int32), last.to(tl.int32)


@triton.jit
def _ordered(bits):
    """Bits of float32 numbers as integers in the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _labels(batch, pid, first, per, C: tl.constexpr, BLOCK: tl.constexpr):
    """Some rows of a chunk with their labels, and which of them are positives."""
    within = first + tl.arange(0, BLOCK)
    row = pid.to(tl.int64) * per + within
    label = tl.load(batch.labels + row, mask=(within < per) & (row < batch.rows), other=C)
    return row, label, (label >= 0) & (label < C)
