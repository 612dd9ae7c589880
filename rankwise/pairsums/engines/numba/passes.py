"""The passes over the samples: moments summed into cells, and polynomials evaluated in them; before them, the labels.

`Lattice` has cells of one width, for the sigmoid: moments 0 to 3. `Edges` has cells between the ends of the step's
ramps: moments 0 and 1. Every index that comes from data is clamped to the table, NaN included.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rankwise.pairsums.engines.numba.jit import compiled

#: Samples whose cell and offset are computed at once, as vectors, before they are added one by one: they stay in cache.
BLOCK = 2048

#: Boxes of `Edges` for each edge.
BOXES = 16


class Flat(NamedTuple):
    """Flat logits, the same memory as integers, and the mask that takes the sign off those."""

    values: np.ndarray
    bits: np.ndarray
    mask: Any


class Lattice(NamedTuple):
    """Cells of one width. With v = scale · x, x is in cell floor(v), at the offset v - floor(v) - 1/2 from its centre.

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
        start: Number of edges in lower boxes, int32 [boxes + 1].
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


def flat(values: np.ndarray) -> Flat:
    """Contiguous float32 or float64 logits, [n]."""
    integer = np.int32 if values.dtype == np.float32 else np.int64
    return Flat(values, values.view(integer), integer(np.iinfo(integer).max))


def lattice(scale: float, low: float, high: float, dtype: Any) -> Lattice:
    """The lattice for samples of a dtype."""
    kind = dtype.type
    return Lattice(kind(scale), kind(low), kind(high), kind(1e30), kind(0.5))


def edges(ends: np.ndarray) -> Edges:
    """The cells between sorted ends, float64 [E], at least two."""
    number, span = BOXES * len(ends), ends[-1] - ends[0]
    per_unit = (number - 3) / span if span > 0 else 1.0
    first = ends[0] - 1.5 / per_unit  # what is below all edges, often nearly everything, is in a box without an edge
    start = np.zeros(number + 1, np.int32)
    _count_boxes(ends, first, per_unit, start)
    low, high = float(ends[0]), float(ends[-1])
    return Edges(np.append(ends, np.inf), start, float(first), float(per_unit), low, high, (low + high) / 2)


@compiled
def find_positives(values: Any, labels: Any, columns: Any, quality: Any, rounding: Any) -> Any:
    """The rows that are not background: intervals to skip, the positives, and the number of bad values.

    Args:
        values: Flat logits, [A · C].
        labels: int64 [A].
        columns: Number of classes.
        quality: [A], or empty if the loss reads none.
        rounding: By how much a quality may leave [0, 1].

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
                if -rounding <= q <= 1 + rounding:
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
def _count_boxes(ends: Any, first: Any, per_unit: Any, start: Any) -> None:
    for end in ends:
        start[_box(end, first, per_unit, start.size - 2) + 1] += 1
    for box in range(1, start.size):
        start[box] += start[box - 1]


@compiled
def _box(x: Any, first: Any, per_unit: Any, last: Any) -> Any:
    box = (np.float64(x) - first) * per_unit
    box = box if box > 0.0 else 0.0  # in this order NaN becomes 0
    box = box if box < last else np.float64(last)
    return np.int64(box)


@compiled
def lattice_cells(x: Any, lattice: Any, index: Any, offset: Any) -> None:
    """Cell, counted from the first, and offset in it of each of a block's samples."""
    for k in range(x.size):
        v = x[k] * lattice.scale
        v = v if v > -lattice.far else -lattice.far  # in this order NaN becomes a number
        v = v if v < lattice.far else lattice.far
        held = v if v > lattice.low else lattice.low
        held = held if held < lattice.high else lattice.high
        cell = np.floor(held)
        index[k] = np.uint32(np.int32(cell - lattice.low))
        offset[k] = v - cell - lattice.half


@compiled
def edge_cells(x: Any, cells: Any, index: Any, offset: Any) -> None:
    """Cell of each of a block's samples, and its offset from the origin."""
    last = np.float64(cells.start.size - 2)
    for k in range(x.size):  # as vectors: the offset and the box
        held = np.float64(x[k])
        held = held if held > cells.low else cells.low  # in this order NaN becomes a number
        held = held if held < cells.high else cells.high
        offset[k] = held - cells.origin
        box = (np.float64(x[k]) - cells.first) * cells.per_unit
        box = box if box > 0.0 else 0.0
        index[k] = np.uint32(np.int32(box if box < last else last))
    for k in range(x.size):  # one by one: the edges in the box
        box = index[k]
        below, end = np.uint32(cells.start[box]), np.uint32(cells.start[box + np.uint32(1)])
        if end - below <= np.uint32(1):
            below += np.uint32(cells.edges[below] < x[k])  # with no edge in the box it is the next one, above x
        else:
            while below < end:
                middle = (below + end) >> np.uint32(1)
                if cells.edges[middle] < x[k]:
                    below = middle + np.uint32(1)
                else:
                    end = middle
        index[k] = below


@compiled
def _largest(bits: Any, mask: Any, largest: Any) -> Any:
    for k in range(bits.size):
        largest = max(largest, bits[k] & mask)
    return largest


@compiled
def lattice_moments(flat: Any, begin: Any, end: Any, skip: Any, lattice: Any, table: Any) -> Any:
    """Add moments 0 to 3 of the offsets of some negatives to their cells; the largest magnitude met, as an integer."""
    index, offset = np.empty(BLOCK, np.uint32), np.empty(BLOCK, flat.values.dtype)
    largest = flat.mask - flat.mask
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for first in range(begin, stop, BLOCK):
            x = flat.values[first : min(first + BLOCK, stop)]
            largest = _largest(flat.bits[first : min(first + BLOCK, stop)], flat.mask, largest)
            lattice_cells(x, lattice, index, offset)
            for k in range(x.size):
                i, f = index[k], np.float64(offset[k])
                table[i, 0] += 1.0
                table[i, 1] += f
                table[i, 2] += f * f
                table[i, 3] += f * f * f
        begin = end if following >= skip.shape[0] else skip[following, 1]
        following += 1
    return largest


@compiled
def lattice_values(flat: Any, begin: Any, end: Any, skip: Any, lattice: Any, coefficients: Any, out: Any) -> None:
    """Write the value of its cell's cubic at each of some negatives, and 0 where there is none."""
    index, offset = np.empty(BLOCK, np.uint32), np.empty(BLOCK, flat.values.dtype)
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for first in range(begin, stop, BLOCK):
            x, target = flat.values[first : min(first + BLOCK, stop)], out[first : min(first + BLOCK, stop)]
            lattice_cells(x, lattice, index, offset)
            for k in range(x.size):
                c, f = coefficients[index[k]], offset[k]
                target[k] = c[0] + f * (c[1] + f * (c[2] + f * c[3]))
        begin = stop
        if following < skip.shape[0]:
            begin = min(end, skip[following, 1])
            out[stop:begin] = 0
        following += 1


@compiled
def edge_moments(flat: Any, begin: Any, end: Any, skip: Any, cells: Any, table: Any) -> Any:
    """Add count and sum of the offsets of some negatives to their cells; the largest magnitude met, as an integer."""
    index, offset = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.float64)
    other = np.zeros_like(table)  # in turn with the first: many samples in one cell would wait for each other
    largest = flat.mask - flat.mask
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for first in range(begin, stop, BLOCK):
            x = flat.values[first : min(first + BLOCK, stop)]
            largest = _largest(flat.bits[first : min(first + BLOCK, stop)], flat.mask, largest)
            edge_cells(x, cells, index, offset)
            for k in range(0, x.size - 1, 2):
                i, j = index[k], index[k + 1]
                table[i, 0] += 1.0
                table[i, 1] += offset[k]
                other[j, 0] += 1.0
                other[j, 1] += offset[k + 1]
            if x.size % 2:
                table[index[x.size - 1], 0] += 1.0
                table[index[x.size - 1], 1] += offset[x.size - 1]
        begin = end if following >= skip.shape[0] else skip[following, 1]
        following += 1
    table += other
    return largest


@compiled
def edge_values(flat: Any, begin: Any, end: Any, skip: Any, cells: Any, coefficients: Any, out: Any) -> None:
    """Write the value of its cell's line at each of some negatives, and 0 where there is none."""
    index, offset = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.float64)
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for first in range(begin, stop, BLOCK):
            x, target = flat.values[first : min(first + BLOCK, stop)], out[first : min(first + BLOCK, stop)]
            edge_cells(x, cells, index, offset)
            for k in range(x.size):
                c = coefficients[index[k]]
                target[k] = c[0] + c[1] * offset[k]
        begin = stop
        if following < skip.shape[0]:
            begin = min(end, skip[following, 1])
            out[stop:begin] = 0
        following += 1
