"""What the kernels take: small named tuples of pointers and sizes, and the sizes of their programs."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

#: Whether kernels run in Triton's interpreter, on CPU tensors: TRITON_INTERPRET=1 when triton was imported.
INTERPRETED = bool(triton.knobs.runtime.interpret)

#: Programs that list the positives, each a chunk of rows.
CHUNKS = tl.constexpr(4 if INTERPRETED else 128)

#: The positives of a group: highest and lowest logit, first and last position in the list, as int64 words whose
#: maximum is taken atomically; 0 is "no positive yet".
HIGHEST = tl.constexpr(0)
LOWEST = tl.constexpr(1)
FIRST = tl.constexpr(2)
LAST = tl.constexpr(3)
EXTREMES = tl.constexpr(4)


class Batch(NamedTuple):
    """The samples. ``quality`` and ``image`` are valid pointers that are not read if the loss needs none."""

    logits: Any
    labels: Any
    quality: Any
    image: Any
    rows: Any
    size: Any


class Positives(NamedTuple):
    """The positives in the order of their rows: of this process, or in the scope "world" of all processes.

    ``counts`` holds their number, the position of this process's first, the number of this process's.
    """

    logit: Any
    quality: Any
    group: Any
    counts: Any


class Weights(NamedTuple):
    """What the gradient is made of, per positive.

    How hard it pushes negatives down, float32; how hard it pushes positives of lower quality down and how hard it is
    pulled up itself, float64, since these cancel in part.
    """

    negatives: Any
    lower: Any
    pull: Any


class Blocks(NamedTuple):
    """Sizes of the programs. The interpreter's cost is per program and operation, so it gets few large ones."""

    samples: int  # samples per block of a pass
    programs: int  # programs of a scattering pass at most
    rows: int  # positives per block of a program that compares them with others
    columns: int  # and so many others at once
    groups: int  # programs that compare positives at most


BLOCKS = Blocks(1 << 15, 8, 32, 1024, 2) if INTERPRETED else Blocks(512, 1024, 4, 64, 1024)
