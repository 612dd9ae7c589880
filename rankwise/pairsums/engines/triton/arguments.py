"""Arguments of the kernels: named tuples of pointers, block sizes and the layout of the extremes."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

#: Whether kernels run in Triton's interpreter, on CPU tensors: TRITON_INTERPRET=1 when triton was imported.
INTERPRETED = bool(triton.knobs.runtime.interpret)

#: Programs that list the positives; each reads a chunk of rows.
CHUNKS = tl.constexpr(4 if INTERPRETED else 128)

#: Extremes of a group's positives: highest and lowest logit, first and last index in the list. Each is an int64 word
#: updated by an atomic maximum; 0 means "no positive yet".
HIGHEST = tl.constexpr(0)
LOWEST = tl.constexpr(1)
FIRST = tl.constexpr(2)
LAST = tl.constexpr(3)
EXTREME_WORDS = tl.constexpr(4)


class Batch(NamedTuple):
    """The samples. If the loss needs no ``quality`` or ``image``, their pointers are valid but never read."""

    logits: Any
    labels: Any
    quality: Any
    image: Any
    rows: Any
    size: Any


class PositiveList(NamedTuple):
    """The positives in row order: of this process, or in the scope "world" of all processes.

    ``counts`` holds the number of positives, the index of this process's first, and the number of this process's.
    """

    logit: Any
    quality: Any
    group: Any
    counts: Any


class Weights(NamedTuple):
    """Weights of the gradient, one of each per positive u.

    A negative at x gets Σ_u negatives_u · rank(x - p_u), a positive of lower quality Σ_u lower_u · rank(p_v - p_u), and
    u itself -pull_u. The last two are float64 because they partly cancel.
    """

    negatives: Any
    lower: Any
    pull: Any


class Blocks(NamedTuple):
    """Block sizes and limits of programs. Triton's interpreter is slow per program, so it gets few large blocks."""

    samples: int  # samples per block of a pass
    scatter_programs: int  # most programs of a scatter kernel
    rows: int  # positives per block of a kernel over pairs
    columns: int  # other side of the pairs, per iteration
    pair_programs: int  # most programs of a kernel over pairs


BLOCKS = Blocks(1 << 15, 8, 32, 1024, 2) if INTERPRETED else Blocks(512, 1024, 4, 64, 1024)
