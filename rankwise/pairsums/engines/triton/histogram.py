"""A histogram of the negatives around each group's positives, and its moments.

One 64-bit integer atomic per sample adds (1 << shift) + offset to the word of its bin: count and first moment at once,
exact and the same in any order. Bins are coarsened into cells of 16 with moments 0 to 3.

A lattice of bins begins 88/λ below the lowest positive, where the sigmoid is less than the smallest float32, and ends
at least 18/λ above the highest, where it is 1 to the last digit and softplus is linear. Positives that are too far
apart for it make the group's sums go pair by pair (`taylor`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankwise.pairsums.engines.triton.positives import INF, load_extremes

BINS = tl.constexpr(1 << 16)
PARTS = tl.constexpr(16)  # bins per cell
CELLS = tl.constexpr((1 << 16) // 16)
#: Neighboring bins are this many rows apart in memory, so that atomics on them meet other parts of the cache.
LANES = tl.constexpr(32)
ROW = tl.constexpr((1 << 16) // 32 + 16)
TABLE = tl.constexpr(32 * ((1 << 16) // 32 + 16))  # words
BELOW = tl.constexpr(88.0)
ABOVE = tl.constexpr(18.0)
#: Bins count from 0 in units of their width: no more than this many, so that the cells' centers are exact in float32.
FURTHEST = tl.constexpr(float(1 << 26))

#: A group without positives; one whose positives are too far apart for the bins; one whose bins can be used.
EMPTY = tl.constexpr(0)
APART = tl.constexpr(1)
USABLE = tl.constexpr(2)

#: Samples beyond the last bin: a sum of float32 numbers, exact in any order, has a word for each exponent, which the
#: mantissas are added to. The last word counts the samples.
EXPONENTS = tl.constexpr(256)
BEYOND = tl.constexpr(255)


@triton.jit
def lattice(extremes, group, WIDTH: tl.constexpr, SCALE: tl.constexpr):
    """Width of the bins of groups and its inverse, their first cell, counted from 0, and USABLE, APART or EMPTY.

    The width is a power of two, WIDTH or half of it, so that a sample's bin and its offset in it are exact. (Division
    of float32 numbers is not: it is approximated.)
    """
    low, high, some = load_extremes(extremes, group)
    need = high - low + (BELOW + ABOVE) / SCALE
    fine = need <= (WIDTH / 2) * (BINS - 2 * PARTS)
    width = tl.where(fine, WIDTH / 2, WIDTH)
    inverse = tl.where(fine, 2 / WIDTH, 1 / WIDTH)
    first = tl.floor((low - BELOW / SCALE) * (inverse * (1.0 / PARTS)))
    usable = some & (need <= WIDTH * (BINS - 2 * PARTS)) & (tl.abs(first) * PARTS < FURTHEST)
    return width, inverse, tl.where(usable, first, 0.0), tl.where(usable, USABLE, tl.where(some, APART, EMPTY))


@triton.jit
def bins_of(x, inverse, first):
    """The bin of each sample, below 0 or from BINS on if it is outside of the lattice, and the offset in it."""
    v = tl.minimum(tl.maximum(x * inverse, -2 * FURTHEST), 2 * FURTHEST)
    whole = tl.floor(v)
    return whole.to(tl.int32) - first.to(tl.int32) * PARTS, v - whole


@triton.jit
def scatter(
    batch, extremes, table, beyond, faults, shift, ones, copies, programs,
    C: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The histogram of the negatives. Logits that are NaN or infinite are faults, in rows that count."""
    pid = tl.program_id(0)
    bad = tl.zeros([BLOCK], tl.int32)
    copy = table + (pid % copies) * TABLE
    if GROUPS == 1:
        width, inverse, first, state = lattice(extremes, 0, WIDTH, SCALE)
    for start in range(pid * BLOCK, batch.size, programs * BLOCK):
        at = start + tl.arange(0, BLOCK)
        there = at < batch.size
        row = at // C
        label = tl.load(batch.labels + row, mask=there, other=-1)
        x = tl.load(batch.logits + at, mask=there, other=0.0).to(tl.float32)
        finite = tl.abs(x) < INF
        bad += ((label >= 0) & ~finite).to(tl.int32)
        counted = there & finite & (label >= 0) & (label != at - row * C)
        beyond_of = tl.zeros([BLOCK], tl.int32)
        if GROUPS > 1:
            image = tl.load(batch.image + row, mask=there, other=-1)
            counted = counted & (image >= 0) & (image < GROUPS)
            group = tl.where(counted, image, 0).to(tl.int32)
            beyond_of = group * EXPONENTS
            width, inverse, first, state = lattice(extremes, group, WIDTH, SCALE)
        bin, offset = bins_of(tl.where(finite, x, 0.0), inverse, first)
        counted = counted & (tl.zeros([BLOCK], tl.int32) + state == USABLE) & (bin >= 0)
        inside = counted & (bin < BINS)
        bin = tl.where(inside, bin, 0)
        word = (bin % LANES) * ROW + bin // LANES
        if GROUPS > 1:
            word += group * (copies * TABLE)
        value = (offset * ones + 0.5).to(tl.int64) + (tl.full([BLOCK], 1, tl.int64) << shift)
        low = tl.min(tl.where(inside, word, 0x7FFFFFFF))
        high = tl.max(tl.where(inside, word, -1))
        if low == high:  # all in one bin, as in a head whose logits all begin equal
            tl.atomic_add(copy + low, tl.sum(tl.where(inside, value, 0)), sem="relaxed")
        elif low < high:
            tl.atomic_add(copy + word, value, mask=inside, sem="relaxed")
        over = counted & ~inside
        if tl.max(over.to(tl.int32)) > 0:
            top = (first * PARTS + BINS) * width
            bits = tl.maximum(x - top, 0.0).to(tl.int32, bitcast=True)
            exponent = tl.maximum(bits >> 23, 1)
            mantissa = (bits & 0x7FFFFF) + tl.where(bits >= 1 << 23, 1 << 23, 0)
            tl.atomic_add(beyond + beyond_of + exponent, mantissa.to(tl.int64), mask=over, sem="relaxed")
            one = tl.full([BLOCK], 1, tl.int64)
            tl.atomic_add(beyond + beyond_of + BEYOND, one, mask=over, sem="relaxed")
    tl.atomic_add(faults, tl.sum(bad).to(tl.int64), sem="relaxed")


@triton.jit
def coarsen(
    table, beyond, extremes, moments, tails, shift, ones, copies,
    WIDTH: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Moments 0 to 3 of the cells, scaled by λ^k / k!; the number and the sum of what is beyond the last cell."""
    group = tl.program_id(1)
    width, _inverse, _first, state = lattice(extremes, group, WIDTH, SCALE)
    if state == USABLE:
        cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        part = tl.arange(0, PARTS)
        bin = cell[:, None] * PARTS + part[None, :]
        at = (bin % LANES) * ROW + bin // LANES
        word = tl.zeros([BLOCK, PARTS], tl.int64)
        for copy in range(0, copies):
            word += tl.load(table + (group * copies + copy) * TABLE + at)
        number = word >> shift
        n = number.to(tl.float64)
        s = (word - (number << shift)).to(tl.float64) / ones - 0.5 * n  # about the bin's center, in bins
        # The second moment in a bin is not summed: exact for one sample, right on average for many.
        s2 = tl.where(n > 0, s * s / tl.maximum(n, 1.0) + tl.maximum(n - 1.0, 0.0) / 12, 0.0)
        inv: tl.constexpr = 1.0 / PARTS
        e = ((part.to(tl.float64) + 0.5) * inv - 0.5)[None, :]
        k = width.to(tl.float64) * (SCALE * PARTS)
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
            words = tl.load(beyond + group * EXPONENTS + exponent)
            power = ((exponent + (1023 - 150)).to(tl.int64) << 52).to(tl.float64, bitcast=True)  # 2^(exponent - 150)
            total = tl.sum(tl.where(exponent == BEYOND, 0.0, words.to(tl.float64) * power))
            tl.store(tails + 2 * group, tl.sum(tl.where(exponent == BEYOND, words, 0)).to(tl.float64))
            tl.store(tails + 2 * group + 1, total)
