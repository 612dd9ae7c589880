"""The two passes over the negatives: powers summed into cells, polynomials read back from them."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import torch
from torch import Tensor

from rankwise.pairsums.cells import Cells
from rankwise.pairsums.samples import Negatives

#: So many samples are worked on at once in plain torch: on a CPU the temporaries then stay in its cache.
BLOCK_CPU, BLOCK_GPU = 1 << 17, 1 << 22

#: On a CPU a table is summed up in so many copies in turn: many samples in one cell would wait for each other.
COPIES = 4

#: Set to False to do without compiled passes where numba is there.
use_compiled = True


def moments(negatives: Negatives, cells: Cells) -> Tensor:
    """Per cell the sum over its negatives of each power of their place, float64 [cells, degree + 1].

    Raises:
        NotFiniteError: If a negative is NaN or infinite.
    """
    if compiled := compiled_for(negatives.values):
        return compiled.moments(negatives, cells)
    negatives.check_finite()
    values, working = negatives.values, _working(negatives, cells)
    step, copies = (BLOCK_CPU, COPIES) if values.device.type == "cpu" else (BLOCK_GPU, 1)
    size, number = cells.size + 1, cells.degree + 1  # one cell more, for what is skipped
    table = torch.zeros(number, copies * size, dtype=torch.float64, device=values.device)
    longest = min(step, values.numel())
    copy = torch.arange(0, copies * size, size, device=values.device).repeat(-(-longest // copies))
    room = torch.empty(number, longest, dtype=torch.float64, device=values.device)
    room[0] = 1
    for x, _, skipped in _blocks(negatives, step):
        index, f = cells.locate(x, working)
        index[skipped] = cells.size
        index += copy[: x.numel()]
        powers = room[:, : x.numel()]
        for power in range(cells.degree):
            torch.mul(powers[power], f, out=powers[power + 1])
        table.scatter_add_(1, index.expand(number, -1), powers)
    return table.view(number, copies, size).sum(1)[:, :-1].T


def evaluate(negatives: Negatives, cells: Cells, coefficients: Tensor, out: Tensor) -> None:
    """Write the value of its cell's polynomial at each negative to its place in ``out``, and 0 to the places skipped.

    Args:
        negatives: The negatives.
        cells: The cells.
        coefficients: Of the powers of the place in each cell, float64 [cells, degree + 1]. Those of cells that
            reach beyond ±1/2 must be constant or linear.
        out: Flat gradient of the logits, float32 or float64.
    """
    if compiled := compiled_for(negatives.values):
        compiled.evaluate(negatives, cells, coefficients, out)
        return
    working = _working(negatives, cells)
    columns = coefficients.T.to(working).contiguous()
    for x, where, skipped in _blocks(negatives, BLOCK_CPU if out.device.type == "cpu" else BLOCK_GPU):
        index, f = cells.locate(x, working)
        value = columns[-1].index_select(0, index)
        for column in columns[:-1].flip(0):
            value = torch.addcmul(column.index_select(0, index), value, f)
        value[skipped] = 0
        negatives.write(value, out, where)


def _working(negatives: Negatives, cells: Cells) -> torch.dtype:
    """The type to compute places in: long where cells are cut, since they may be wide."""
    return negatives.values.dtype if cells.edges is None else torch.float64


def _blocks(negatives: Negatives, step: int) -> Iterator[tuple[Tensor, slice, Tensor]]:
    """Stretches of the values, where they are, and which of their places are no negatives."""
    values, skipped = negatives.values, negatives.skipped()
    starts = range(0, values.numel(), step)
    bounds = torch.searchsorted(skipped, torch.tensor([*starts, values.numel()], device=values.device)).tolist()
    for number, start in enumerate(starts):
        where = slice(start, min(start + step, values.numel()))
        yield values[where], where, skipped[bounds[number] : bounds[number + 1]] - start


def compiled_for(values: Tensor) -> ModuleType | None:
    """The compiled code, if there is any for these values; numba is only imported when first needed."""
    if not use_compiled or values.device.type != "cpu":
        return None
    try:
        from rankwise.pairsums import compiled
    except ImportError:
        return None
    return compiled
