"""A histogram of the negatives around the positives of each group, and the moments of its cells.

One 64-bit integer atomic per sample adds (1 << shift) + offset to the word of its bin. This updates count and first
moment at once, and the result is exact and independent of the order. Sixteen bins are coarsened to a cell with moments
0 to 3.

The bins begin 88/λ below the lowest positive, where the sigmoid is below the smallest float32, and end at least 18/λ
above the highest, where the sigmoid rounds to 1 and softplus is linear. If the positives are too far apart for that,
`taylor` sums pair by pair.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankwise.pairsums.engines.triton.positives import INF, load_extremes

BINS = tl.constexpr(1 << 16)
BINS_PER_CELL = tl.constexpr(16)
CELLS = tl.constexpr((1 << 16) // 16)
#: Adjacent bins are in different banks, so that their atomics go to different cache lines.
BANKS = tl.constexpr(32)
BANK_WORDS = tl.constexpr((1 << 16) // 32 + 16)
TABLE_WORDS = tl.constexpr(32 * ((1 << 16) // 32 + 16))
BELOW = tl.constexpr(88.0)
ABOVE = tl.constexpr(18.0)
#: The largest index of a bin, counted from the logit 0: cell centers are exact in float32 up to here.
MAX_BIN = tl.constexpr(float(1 << 26))

#: State of a group: no positives; positives too far apart for the bins; histogram usable.
EMPTY = tl.constexpr(0)
TOO_WIDE = tl.constexpr(1)
USABLE = tl.constexpr(2)

#: Overflow of the histogram: samples above the last bin. Their float32 excess is summed exactly in integers, with one
#: word of mantissas per exponent. The last word counts the samples.
EXPONENTS = tl.constexpr(256)
OVERFLOW_COUNT = tl.constexpr(255)


@triton.jit
def bin_layout(extremes, group, WIDTH: tl.constexpr, SCALE: tl.constexpr):
    """Width of the bins of groups, its inverse, the first cell (counted from the logit 0), and the state of the group.

    The width is a power of two, WIDTH or WIDTH / 2, so that bin and offset of a sample are exact. The inverse is chosen
    instead of computed, since float32 division is approximate on a GPU.
    """
    low, high, some = load_extremes(extremes, group)
    need = high - low + (BELOW + ABOVE) / SCALE
    fine = need <= (WIDTH / 2) * (BINS - 2 * BINS_PER_CELL)
    width = tl.where(fine, WIDTH / 2, WIDTH)
    inverse = tl.where(fine, 2 / WIDTH, 1 / WIDTH)
    first = tl.floor((low - BELOW / SCALE) * (inverse * (1.0 / BINS_PER_CELL)))
    usable = some & (need <= WIDTH * (BINS - 2 * BINS_PER_CELL)) & (tl.abs(first) * BINS_PER_CELL < MAX_BIN)
    return width, inverse, tl.where(usable, first, 0.0), tl.where(usable, USABLE, tl.where(some, TOO_WIDE, EMPTY))


@triton.jit
def bins_of(x, inverse, first):
    """Bin of each sample, negative or at least BINS if out of range, and its offset in the bin, 0 to 1."""
    v = tl.minimum(tl.maximum(x * inverse, -2 * MAX_BIN), 2 * MAX_BIN)
    whole = tl.floor(v)
    return whole.to(tl.int32) - first.to(tl.int32) * BINS_PER_CELL, v - whole


@triton.jit
def scatter(
    batch, extremes, table, overflow, faults, shift, offset_scale, copies, programs,
    C: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Scatter the negatives into the histogram. NaN and infinite logits are faults, unless their row is ignored."""
    pid = tl.program_id(0)
    bad = tl.zeros([BLOCK], tl.int32)
    copy = table + (pid % copies) * TABLE_WORDS
    if GROUPS == 1:
        width, inverse, first, state = bin_layout(extremes, 0, WIDTH, SCALE)
    for start in range(pid * BLOCK, batch.size, programs * BLOCK):
        index = start + tl.arange(0, BLOCK)
        mask = index < batch.size
        row = index // C
        label = tl.load(batch.labels + row, mask=mask, other=-1)
        x = tl.load(batch.logits + index, mask=mask, other=0.0).to(tl.float32)
        finite = tl.abs(x) < INF
        bad += ((label >= 0) & ~finite).to(tl.int32)
        counted = mask & finite & (label >= 0) & (label != index - row * C)
        overflow_row = tl.zeros([BLOCK], tl.int32)
        if GROUPS > 1:
            image = tl.load(batch.image + row, mask=mask, other=-1)
            counted = counted & (image >= 0) & (image < GROUPS)
            group = tl.where(counted, image, 0).to(tl.int32)
            overflow_row = group * EXPONENTS
            width, inverse, first, state = bin_layout(extremes, group, WIDTH, SCALE)
        bin, offset = bins_of(tl.where(finite, x, 0.0), inverse, first)
        counted = counted & (tl.zeros([BLOCK], tl.int32) + state == USABLE) & (bin >= 0)
        inside = counted & (bin < BINS)
        bin = tl.where(inside, bin, 0)
        word = (bin % BANKS) * BANK_WORDS + bin // BANKS
        if GROUPS > 1:
            word += group * (copies * TABLE_WORDS)
        value = (offset * offset_scale + 0.5).to(tl.int64) + (tl.full([BLOCK], 1, tl.int64) << shift)
        low = tl.min(tl.where(inside, word, 0x7FFFFFFF))
        high = tl.max(tl.where(inside, word, -1))
        if low == high:  # one bin for the whole block, as when all logits of a new head are equal
            tl.atomic_add(copy + low, tl.sum(tl.where(inside, value, 0)), sem="relaxed")
        elif low < high:
            tl.atomic_add(copy + word, value, mask=inside, sem="relaxed")
        above = counted & ~inside
        if tl.max(above.to(tl.int32)) > 0:
            top = (first * BINS_PER_CELL + BINS) * width
            bits = tl.maximum(x - top, 0.0).to(tl.int32, bitcast=True)
            exponent = tl.maximum(bits >> 23, 1)
            mantissa = (bits & 0x7FFFFF) + tl.where(bits >= 1 << 23, 1 << 23, 0)
            tl.atomic_add(overflow + overflow_row + exponent, mantissa.to(tl.int64), mask=above, sem="relaxed")
            one = tl.full([BLOCK], 1, tl.int64)
            tl.atomic_add(overflow + overflow_row + OVERFLOW_COUNT, one, mask=above, sem="relaxed")
    tl.atomic_add(faults, tl.sum(bad).to(tl.int64), sem="relaxed")


@triton.jit
def coarsen(
    table, overflow, extremes, moments, overflow_totals, shift, offset_scale, copies,
    WIDTH: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Moments 0 to 3 of the cells, scaled by λ^k / k!, and number and excess of the samples above the last bin."""
    group = tl.program_id(1)
    width, _inverse, _first, state = bin_layout(extremes, group, WIDTH, SCALE)
    if state == USABLE:
        cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        part = tl.arange(0, BINS_PER_CELL)
        bin = cell[:, None] * BINS_PER_CELL + part[None, :]
        index = (bin % BANKS) * BANK_WORDS + bin // BANKS
        word = tl.zeros([BLOCK, BINS_PER_CELL], tl.int64)
        for copy in range(0, copies):
            word += tl.load(table + (group * copies + copy) * TABLE_WORDS + index)
        number = word >> shift
        n = number.to(tl.float64)
        s = (word - (number << shift)).to(tl.float64) / offset_scale - 0.5 * n  # about the bin's center, in bins
        # The second moment in a bin is estimated: exact for one sample, its expected value for many.
        s2 = tl.where(n > 0, s * s / tl.maximum(n, 1.0) + tl.maximum(n - 1.0, 0.0) / 12, 0.0)
        inv: tl.constexpr = 1.0 / BINS_PER_CELL
        e = ((part.to(tl.float64) + 0.5) * inv - 0.5)[None, :]
        k = width.to(tl.float64) * (SCALE * BINS_PER_CELL)
        m1 = tl.sum(n * e + s * inv, 1)
        m2 = tl.sum(n * e * e + 2 * e * s * inv + s2 * (inv * inv), 1)
        m3 = tl.sum(n * e * e * e + 3 * e * e * s * inv + 3 * e * s2 * (inv * inv), 1)
        out = moments + group * 4 * CELLS + cell
        tl.store(out, tl.sum(n, 1).to(tl.float32))
        tl.store(out + CELLS, (m1 * k).to(tl.float32))
        tl.store(out + 2 * CELLS, (m2 * (k * k / 2)).to(tl.float32))
        tl.store(out + 3 * CELLS, (m3 * (k * k * k / 6)).to(tl.float32))
        if tl.program_id(0) == 0:
            exponent = tl.arange(0, EXPONENTS)
            words = tl.load(overflow + group * EXPONENTS + exponent)
            power = ((exponent + (1023 - 150)).to(tl.int64) << 52).to(tl.float64, bitcast=True)  # 2^(exponent - 150)
            total = tl.sum(tl.where(exponent == OVERFLOW_COUNT, 0.0, words.to(tl.float64) * power))
            tl.store(overflow_totals + 2 * group, tl.sum(tl.where(exponent == OVERFLOW_COUNT, words, 0)).to(tl.float64))
            tl.store(overflow_totals + 2 * group + 1, total)
