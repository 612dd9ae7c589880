"""The passes over the samples: moments summed into cells, and polynomials evaluated in them; before them, the labels.

`Lattice` has cells of one width, for the sigmoid: moments 0 to 3. `Edges` has cells between the ends of the step's
ramps: moments 0 and 1. Every index that comes from data is clamped to the table, NaN included. Tables have one row more
than there are cells, for the samples that are not negatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from rankwise.jit import compiled
from rankwise.pairsums.engines.numba.vectors import LANES, add_powers, evaluate_polynomials
from rankwise.pairsums.spec import ROUNDING

#: Samples whose cell and offset are computed at once, as vectors, before they are added one by one: they stay in cache.
SAMPLES_PER_BLOCK = 2048

#: Boxes of `Edges` for each edge.
BOXES = 16


class Part(NamedTuple):
    """The samples that one thread reads.

    Attributes:
        values: The flat logits of all samples, float32 or float64 [n].
        bits: The same memory as integers, [n].
        mask: All bits of these but the sign.
        skip: Which samples are not negatives, sorted disjoint intervals, int64 [k, 2].
        begin: The first to read.
        end: One past the last.
    """

    values: np.ndarray
    bits: np.ndarray
    mask: Any
    skip: np.ndarray
    begin: int
    end: int


#: The integers of the same size as a float, by its bytes, and all their bits but the sign.
INTEGERS = {4: (np.int32, np.int32(2**31 - 1)), 8: (np.int64, np.int64(2**63 - 1))}


class Sorted(NamedTuple):
    """Positives in any order, with what sorts them.

    Attributes:
        p: Logits, float64 [P].
        order: Sorts the logits, [P].
        quality: Qualities, float64 [P].
        sorting: Sorts the qualities, [P].
    """

    p: np.ndarray
    order: np.ndarray
    quality: np.ndarray
    sorting: np.ndarray


class Lattice(NamedTuple):
    """Cells of one width. With v = scale · x, x is in cell floor(v), at the offset v - floor(v) - 1/2 from its center.

    The scale is a power of two, so that v and the offset are exact. The first cell also holds all that is below it, the
    last all above. Numbers are in the dtype of the samples.

    Attributes:
        scale: Cells per unit.
        low: Number of the first cell.
        high: Number of the last cell.
        far: v is clamped to ± this, so that powers of offsets stay finite.
        half: 1/2.
    """

    scale: Any
    low: Any
    high: Any
    far: Any
    half: Any


class Edges(NamedTuple):
    """Cells between sorted edges: a sample is in the cell whose number is how many edges are below it.

    Equal boxes over the range of the edges make the search short. A number's box is computed in one way for edges and
    samples, so an edge in a lower box is below the sample whatever the rounding.

    Attributes:
        edges: float64 [E + 1], the last infinite.
        start: Number of edges in lower boxes, int32 [boxes]; -1 less that number where a box has several edges.
        first: Where the boxes begin.
        per_unit: Boxes per unit.
        low: The first edge: samples are clamped to the edges' range before their offset is taken.
        high: The last edge.
        origin: Offsets are counted from it, so that sums of them lose few digits.
    """

    edges: np.ndarray
    start: np.ndarray
    first: float
    per_unit: float
    low: float
    high: float
    origin: float


#: Number of tables that neighboring samples are added to in turn. In one table, each of many samples of the same cell
#: would wait for the one before it.
LATTICE_TABLES, EDGES_TABLES = 2, 4


def whole(values: np.ndarray, skip: np.ndarray) -> Part:
    """All samples, contiguous."""
    integer, mask = INTEGERS[values.itemsize]
    return Part(values, values.view(integer), mask, skip, 0, values.size)


@compiled
def find_positives(values: Any, labels: Any, columns: Any, quality: Any) -> Any:
    """The rows that are not background: intervals to skip, the positives, and the number of bad values.

    Args:
        values: Flat logits, [A · C].
        labels: int64 [A].
        columns: Number of classes.
        quality: [A], or empty if the loss reads none.

    Returns:
        Intervals int64 [k, 2], rows and flat indices int64 [P], logits and qualities float64 [P], faults.
    """
    marked = positives = 0
    for label in labels:
        marked += label != columns
        positives += 0 <= label < columns
    skip = np.empty((marked, 2), np.int64)
    rows, where = np.empty(positives, np.int64), np.empty(positives, np.int64)
    logits, qualities = np.zeros(positives), np.zeros(positives)
    mark = at = faults = 0
    for row in range(len(labels)):
        label = labels[row]
        if label == columns:
            continue
        if 0 <= label < columns:
            index = row * columns + label
            rows[at], where[at], logits[at] = row, index, values[index]
            if not abs(logits[at]) < np.inf:
                logits[at] = 0.0
                faults += 1
            if quality.size:
                q = np.float64(quality[row])
                if -ROUNDING <= q <= 1 + ROUNDING:
                    qualities[at] = min(max(q, 0.0), 1.0)
                else:
                    faults += 1
            skip[mark] = index, index + 1
            at += 1
        else:
            faults += label != -1
            skip[mark] = row * columns, (row + 1) * columns
        mark += 1
    return skip, rows, where, logits, qualities, faults


@compiled
def _box(x: Any, first: Any, per_unit: Any, last: Any) -> Any:
    box = (np.float64(x) - first) * per_unit
    box = box if box > 0.0 else 0.0  # in this order NaN becomes 0
    box = box if box < last else np.float64(last)
    return np.int32(box)


@compiled
def edges(ends: Any, order: Any) -> Any:
    """The cells between ends, float64 [E], at least two, which ``order`` sorts."""
    number, low, high = BOXES * len(ends), ends[order[0]], ends[order[-1]]
    per_unit = (number - 3) / (high - low) if high > low else 1.0
    first = low - 1.5 / per_unit  # what is below all edges, often nearly everything, is in a box without an edge
    rising, start = np.full(len(ends) + 1, np.inf), np.zeros(number, np.int32)
    for i in range(len(ends)):
        rising[i] = ends[order[i]]
        start[_box(rising[i], first, per_unit, number - 1)] += 1
    before = 0
    for box in range(number):
        inside = start[box]
        start[box] = before if inside < 2 else -1 - before
        before += inside
    return Edges(rising, start, first, per_unit, low, high, (low + high) / 2)


def locate(x: Any, cells: Any, index: Any, offset: Any) -> None:
    """Cell and offset of each of a block's samples, in compiled code."""


@overload(locate)
def _locate(x: Any, cells: Any, index: Any, offset: Any) -> Any:
    return _on_lattice if cells.instance_class is Lattice else _between_edges


def _on_lattice(x: Any, cells: Any, index: Any, offset: Any) -> None:
    for k in range(x.size):
        v = x[k] * cells.scale
        v = v if v > -cells.far else -cells.far  # in this order NaN becomes a number
        v = v if v < cells.far else cells.far
        held = v if v > cells.low else cells.low
        held = held if held < cells.high else cells.high
        cell = np.floor(held)
        index[k] = np.uint32(np.int32(cell - cells.low))
        offset[k] = v - cell - cells.half


def _between_edges(x: Any, cells: Any, index: Any, offset: Any) -> None:
    for k in range(x.size):  # as vectors: the offset and the box
        held = np.float64(x[k])
        held = held if held > cells.low else cells.low  # in this order NaN becomes a number
        held = held if held < cells.high else cells.high
        offset[k] = held - cells.origin
        index[k] = np.uint32(_box(x[k], cells.first, cells.per_unit, cells.start.size - 1))
    for k in range(x.size):  # one by one: the edges in the box
        below = cells.start[index[k]]
        if below >= 0:
            below += np.int32(cells.edges[below] < x[k])  # with no edge in the box it is the next one, above x
        else:
            below = -1 - below
            while cells.edges[below] < x[k]:
                below += 1
        index[k] = np.uint32(below)


@compiled
def _largest(bits: Any, mask: Any, largest: Any) -> Any:
    for k in range(bits.size):
        largest = max(largest, bits[k] & mask)
    return largest


@compiled
def _leave_out(skip: Any, following: Any, first: Any, stop: Any, row: Any, index: Any) -> Any:
    """Put the samples of a block that are not negatives into a row of their own; the first interval not yet passed."""
    while following < len(skip) and skip[following, 0] < stop:
        for k in range(max(skip[following, 0], first), min(skip[following, 1], stop)):
            index[k - first] = row
        if skip[following, 1] > stop:
            break
        following += 1
    return following


@compiled
def moments(part: Any, cells: Any, table: Any) -> Any:
    """Add moments of the offsets of a part's negatives to their cells; its largest magnitude, as an integer.

    Args:
        part: The samples.
        cells: `Lattice` or `Edges`.
        table: [2 or 4, cells + 1, moments].
    """
    index, offset = np.empty(SAMPLES_PER_BLOCK, np.uint32), np.full(SAMPLES_PER_BLOCK, cells.low)
    largest = part.mask - part.mask
    one, two, three, four = table[0], table[1], table[2 % len(table)], table[3 % len(table)]
    following = np.searchsorted(part.skip[:, 1], part.begin, side="right")
    for first in range(part.begin, part.end, SAMPLES_PER_BLOCK):
        stop = min(first + SAMPLES_PER_BLOCK, part.end)
        size = stop - first
        largest = _largest(part.bits[first:stop], part.mask, largest)
        locate(part.values[first:stop], cells, index, offset)
        following = _leave_out(part.skip, following, first, stop, np.uint32(len(one) - 1), index)
        for k in range(0, size // 4 * 4, 4):
            add_powers(cells, one, index[k], offset[k])
            add_powers(cells, two, index[k + 1], offset[k + 1])
            add_powers(cells, three, index[k + 2], offset[k + 2])
            add_powers(cells, four, index[k + 3], offset[k + 3])
        for k in range(size // 4 * 4, size):
            add_powers(cells, one, index[k], offset[k])
    return largest


@compiled
def added(tables: Any) -> Any:
    """The sum of several tables, in place of the first."""
    for table in tables[1:]:
        tables[0] += table
    return tables[0]


@compiled
def evaluate(part: Any, cells: Any, coefficients: Any, out: Any) -> None:
    """Write the value of its cell's polynomial at each sample of a part; the last row is that of no negative.

    Args:
        part: The samples.
        cells: `Lattice` or `Edges`.
        coefficients: [cells + 1, moments].
        out: One number for each of all samples.
    """
    index, offset = np.empty(SAMPLES_PER_BLOCK, np.uint32), np.full(SAMPLES_PER_BLOCK, cells.low)
    last = np.uint32(len(coefficients) - 1)
    following = np.searchsorted(part.skip[:, 1], part.begin, side="right")
    for first in range(part.begin, part.end, SAMPLES_PER_BLOCK):
        stop = min(first + SAMPLES_PER_BLOCK, part.end)
        locate(part.values[first:stop], cells, index, offset)
        following = _leave_out(part.skip, following, first, stop, last, index)
        target, whole = out[first:stop], (stop - first) // LANES * LANES
        for k in range(0, whole, LANES):
            evaluate_polynomials(cells, coefficients, index, offset, k, target)
        for k in range(whole, stop - first):
            value = coefficients[index[k], coefficients.shape[1] - 1]
            for power in range(coefficients.shape[1] - 2, -1, -1):
                value = value * offset[k] + coefficients[index[k], power]
            target[k] = value
