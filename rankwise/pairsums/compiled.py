"""The two passes over the negatives, compiled by numba for the CPU: a block at a time, on all of torch's threads."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from rankwise.pairsums.cells import FAR, Cells
from rankwise.pairsums.samples import Negatives, NotFiniteError
from rankwise.pairsums.threads import in_parts

#: Samples whose cell and place are computed at once, as vectors, before they are added one by one: they stay in cache.
BLOCK = 2048

#: A thread gets at least so many samples.
SHARE = 1 << 16

#: Tables of all threads together hold no more numbers than this, if need be with fewer threads.
TABLES = 1 << 23

FLOAT32_INFINITY = np.int32(0x7F800000)
FLOAT32_MAGNITUDE = np.int32(0x7FFFFFFF)

_compile: Any = numba.njit(nogil=True, cache=True)


def moments(negatives: Negatives, cells: Cells) -> Tensor:
    """Per cell the sum over its negatives of each power of their place, float64 [cells, degree + 1]."""
    values, skip = negatives.values.numpy(), _skip(negatives)
    shape = cells.size, cells.degree + 1

    def work(begin: int, end: int) -> tuple[np.ndarray, bool]:
        table = np.zeros(shape)
        if _is_cubic(cells, values):
            low, high = np.float32(cells.low[0]), np.float32(cells.high[0])
            fine = _cubic_moments(values, begin, end, skip, np.float32(cells.scale), low, high, table)
        else:
            fine = _moments(values, begin, end, skip, *_plan(cells), table)
        return table, fine

    share = max(SHARE, values.size * shape[0] * shape[1] // TABLES)
    parts = in_parts(work, values.size, share)
    if not all(fine for _, fine in parts):
        raise NotFiniteError
    total = parts[0][0]
    for table, _ in parts[1:]:
        total += table
    return torch.from_numpy(total)


def evaluate(negatives: Negatives, cells: Cells, coefficients: Tensor, out: Tensor) -> None:
    """Write the value of its cell's polynomial at each negative to its place in ``out``, 0 to the places skipped."""
    values, skip = negatives.values.numpy(), _skip(negatives)
    result = (
        out[negatives.start : negatives.start + values.size] if negatives.index is None else out.new_empty(values.size)
    )
    target = result.numpy()
    table = (coefficients.float() if _is_cubic(cells, values) else coefficients).contiguous().numpy()

    def work(begin: int, end: int) -> None:
        if _is_cubic(cells, values):
            low, high = np.float32(cells.low[0]), np.float32(cells.high[0])
            _cubic_values(values, begin, end, skip, np.float32(cells.scale), low, high, table, target)
        else:
            _values(values, begin, end, skip, *_plan(cells), table, target)

    in_parts(work, values.size, SHARE)
    if negatives.index is not None:
        negatives.write(result, out)


def _is_cubic(cells: Cells, values: np.ndarray) -> bool:
    """Whether the quickest passes will do: cubics on one stretch of lattice, float32."""
    return cells.degree == 3 and len(cells.low) == 1 and cells.edges is None and values.dtype == np.float32


def _skip(negatives: Negatives) -> np.ndarray:
    return np.zeros((0, 2), np.int64) if negatives.skip is None else negatives.skip.numpy()


def _plan(cells: Cells) -> tuple[Any, ...]:
    """The cells as plain arrays, with a table that finds the few edges near a number."""
    lattice = np.array([cells.low, cells.high, cells.base], np.float64)
    edges = np.zeros(0) if cells.edges is None else cells.edges.numpy()
    if edges.size == 0:
        return cells.scale, lattice, edges, 0.0, 0.0, np.zeros(1, np.int32)
    boxes = 4 * edges.size
    width = edges[-1] - edges[0]
    first, per_box = edges[0], (boxes - 1) / width if width > 0 and np.isfinite((boxes - 1) / width) else 0.0
    near = np.clip((edges - first) * per_box, 0, boxes - 1).astype(np.int64)
    start = np.searchsorted(near, np.arange(boxes + 1)).astype(np.int32)
    return cells.scale, lattice, edges, first, per_box, start


@_compile
def _cubic_places(x: Any, scale: Any, low: Any, high: Any, index: Any, place: Any) -> Any:
    """Cell and place of each of a block's samples; whether all samples are finite."""
    bits = x.view(np.int32)
    largest = np.int32(0)
    for k in range(x.size):
        largest = max(largest, bits[k] & FLOAT32_MAGNITUDE)
        v = x[k] * scale
        held = v if v > low else low  # in this order NaN becomes low: no index is ever out of range
        held = held if held < high else high
        cell = np.floor(held)
        index[k] = np.uint32(np.int32(cell - low))
        place[k] = v - cell - np.float32(0.5)
    return largest < FLOAT32_INFINITY


@_compile
def _cubic_moments(values: Any, begin: int, end: int, skip: Any, scale: Any, low: Any, high: Any, table: Any) -> bool:
    index, place = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.float32)
    fine = True
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for first in range(begin, stop, BLOCK):
            x = values[first : min(first + BLOCK, stop)]
            fine &= _cubic_places(x, scale, low, high, index, place)
            for k in range(x.size):
                i, f = index[k], np.float64(place[k])
                table[i, 0] += 1.0
                table[i, 1] += f
                table[i, 2] += f * f
                table[i, 3] += f * f * f
        begin = end if following >= skip.shape[0] else skip[following, 1]
        following += 1
    return fine


@_compile
def _cubic_values(
    values: Any, begin: int, end: int, skip: Any, scale: Any, low: Any, high: Any, table: Any, out: Any
) -> None:
    index, place = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.float32)
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for first in range(begin, stop, BLOCK):
            x, target = values[first : min(first + BLOCK, stop)], out[first : min(first + BLOCK, stop)]
            _cubic_places(x, scale, low, high, index, place)
            for k in range(x.size):
                i, f = index[k], place[k]
                target[k] = table[i, 0] + f * (table[i, 1] + f * (table[i, 2] + f * table[i, 3]))
        begin = stop
        if following < skip.shape[0]:
            begin = min(end, skip[following, 1])
            out[stop:begin] = 0
        following += 1


@_compile
def _place(x: float, scale: float, lattice: Any, edges: Any, first: float, per_box: float, start: Any) -> Any:
    """Cell and place of one sample, which must be finite: the same as `Cells.locate`."""
    v = min(max(x * scale, -FAR), FAR)
    low, high = np.int64(0), np.int64(lattice.shape[1])
    while high - low > 1:
        middle = (low + high) // 2
        if lattice[0, middle] <= v:
            low = middle
        else:
            high = middle
    cell = np.floor(min(max(v, lattice[0, low]), lattice[1, low]))
    index = np.int64(cell - lattice[0, low] + lattice[2, low])
    if edges.size:
        box = np.int64(min(max((x - first) * per_box, 0.0), start.size - 2.0))
        low, high = np.int64(start[box]), np.int64(start[box + 1])
        while low < high:
            middle = (low + high) // 2
            if edges[middle] < x:
                low = middle + 1
            else:
                high = middle
        index += low
    return np.uint64(index), v - cell - 0.5


@_compile
def _moments(
    values: Any, begin: int, end: int, skip: Any, scale: float, lattice: Any, edges: Any, first: float, per_box: float,
    start: Any, table: Any,
) -> bool:  # fmt: skip
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for x in values[begin:stop]:
            if not np.isfinite(x):
                return False
            i, f = _place(np.float64(x), scale, lattice, edges, first, per_box, start)
            power = 1.0
            for degree in range(table.shape[1]):
                table[i, degree] += power
                power *= f
        begin = end if following >= skip.shape[0] else skip[following, 1]
        following += 1
    return True


@_compile
def _values(
    values: Any, begin: int, end: int, skip: Any, scale: float, lattice: Any, edges: Any, first: float, per_box: float,
    start: Any, table: Any, out: Any,
) -> None:  # fmt: skip
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for k in range(begin, stop):
            i, f = _place(np.float64(values[k]), scale, lattice, edges, first, per_box, start)
            value = np.float64(table[i, table.shape[1] - 1])
            for degree in range(table.shape[1] - 2, -1, -1):
                value = value * f + table[i, degree]
            out[k] = value
        begin = stop
        if following < skip.shape[0]:
            begin = min(end, skip[following, 1])
            out[stop:begin] = 0
        following += 1
