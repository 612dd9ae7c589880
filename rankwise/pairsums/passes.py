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
    total = torch.zeros(cells.degree + 1, cells.size, dtype=torch.float64, device=negatives.values.device)
    for x, _, skipped in _blocks(negatives):
        index, f = cells.locate(x if cells.edges is None else x.double())  # f is long where cells are cut
        powers = torch.empty(cells.degree + 1, x.numel(), dtype=torch.float64, device=x.device)
        powers[0] = 1
        powers[0, skipped] = 0
        for power in range(cells.degree):
            torch.mul(powers[power], f, out=powers[power + 1])
        total.scatter_add_(1, index.expand(cells.degree + 1, -1), powers)
    return total.T


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
    working = negatives.values.dtype if cells.edges is None else torch.float64
    columns = coefficients.T.to(working).contiguous()
    for x, where, skipped in _blocks(negatives):
        index, f = cells.locate(x if cells.edges is None else x.double())  # f is long where cells are cut
        value = columns[-1].index_select(0, index)
        for column in columns[:-1].flip(0):
            value = torch.addcmul(column.index_select(0, index), value, f)
        value[skipped] = 0
        negatives.write(value, out, where)


def _blocks(negatives: Negatives) -> Iterator[tuple[Tensor, slice, Tensor]]:
    """Stretches of the values, where they are, and which of their places are no negatives."""
    values, skipped = negatives.values, negatives.skipped()
    step = BLOCK_CPU if values.device.type == "cpu" else BLOCK_GPU
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
