"""The interface between ranking losses and engines."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from rankwise.pairsums.distances import Distance, Sigmoid, SigmoidCrossEntropy, Step

#: An IoU may exceed [0, 1] by this much without an error; it is clamped.
ROUNDING = 1e-4

Family: TypeAlias = Literal["pairwise", "ranksort", "alrp"]
Method: TypeAlias = Literal["fast", "triton", "numba", "torch", "dense"]
Scope: TypeAlias = Literal["batch", "image", "class", "world"]

#: Names of the values that each family logs, in the order of ``Forward.log``.
LOGS: dict[Family, tuple[str, ...]] = {
    "pairwise": ("positives", "faults", "ranking_error"),
    "ranksort": ("positives", "faults", "ranking", "sorting"),
    "alrp": ("positives", "faults", "classification"),
}


@dataclass(frozen=True)
class RankingSpec:
    """The specification of a ranking loss: everything except the samples. Hashable, so that engines can cache by it.

    Attributes:
        family: The formula: "pairwise" (`PairwiseError`), "ranksort" (`RankSortLoss`) or "alrp" (`ALRPLoss`).
        distance: The distance function; a Step for "ranksort" and "alrp".
        own: The contribution of a positive to its own rank.
        margin: If given, pairs with x_v <= p_u - margin are ignored, and errors are divided by the number of the other
            pairs instead of the rank.
        adaptive: Whether a positive is also ranked against positives of strictly lower quality.
        weight_by_quality: Whether each positive is weighted by its quality.
        interpolated: Whether the precision is the running maximum in ascending order of logit.
        max_negatives: Use only this many negatives, those with the highest logits; None uses all.
        tau: The IoU of a correct box, for "alrp".
        scope: The samples ranked together: those of this process, of each image, of each class, or of all processes.
    """

    family: Family
    distance: Distance
    own: float = 0.5
    margin: float | None = None
    adaptive: bool = False
    weight_by_quality: bool = False
    interpolated: bool = False
    max_negatives: int | None = None
    tau: float = 0.5
    scope: Scope = "batch"

    #: A string that stands for it in operators, which take no objects.
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", _key(self))
        if not torch.compiler.is_compiling():
            _KNOWN.setdefault(self.key, self)

    @classmethod
    def of_key(cls, key: str) -> RankingSpec:
        """The specification with this key: one made before, or, if that was while compiling, one made from the key."""
        if key not in _KNOWN:
            family, distance, settings, *rest = ast.literal_eval(key)
            _KNOWN[key] = cls(family, _DISTANCES[distance](*settings), *rest)
        return _KNOWN[key]

    @property
    def has_floor(self) -> bool:
        """Whether pairs are dropped whose sample is too far below the positive: by the margin or the distance's cut."""
        return self.margin is not None or (isinstance(self.distance, Sigmoid) and self.distance.cut is not None)

    def floor(self, positives: Tensor) -> Tensor | None:
        """Only samples above it make a pair with a positive, float64 [P]; None: all do."""
        floor = self.distance.floor(positives)
        if self.margin is None:
            return floor
        valid = positives - self.margin
        return valid if floor is None else torch.maximum(floor, valid)

    @property
    def by_quality(self) -> bool:
        """Whether there are sums over the positives of lower quality."""
        return self.adaptive or self.family == "ranksort"

    @property
    def needs_quality(self) -> bool:
        """Whether the positives' qualities are read."""
        return self.family != "pairwise" or self.adaptive or self.weight_by_quality

    @property
    def log(self) -> tuple[str, ...]:
        """Names of the numbers in ``Forward.log``."""
        return LOGS[self.family]


_KNOWN: dict[str, RankingSpec] = {}

_DISTANCES: dict[str, Callable[..., Distance]] = {
    "Step": Step,
    "Sigmoid": Sigmoid,
    "SigmoidCrossEntropy": SigmoidCrossEntropy,
}


def _key(spec: RankingSpec) -> str:
    """All fields as a Python literal. It is made of nothing that torch.compile could not trace."""
    distance, name = spec.distance, type(spec.distance).__name__
    if type(distance) is Step:
        settings = f"({distance.delta!r},)"
    elif type(distance) is Sigmoid or type(distance) is SigmoidCrossEntropy:
        settings = f"({distance.lam!r}, {distance.cut!r})"
    elif torch.compiler.is_compiling():
        raise ValueError(f"a loss with the custom distance {name} must be made outside of the compiled function")
    else:
        return repr(spec)
    options = (
        f"{spec.own!r}, {spec.margin!r}, {spec.adaptive!r}, {spec.weight_by_quality!r}, {spec.interpolated!r}, "
        f"{spec.max_negatives!r}, {spec.tau!r}, {spec.scope!r}"
    )
    return f"({spec.family!r}, {name!r}, {settings}, {options})"


class Samples(NamedTuple):
    """The samples of a batch: shapes, dtypes and devices are checked, values are not.

    Attributes:
        logits: Any floating dtype, contiguous, detached, [A, C].
        labels: 0 to C - 1 a positive's class, C background, -1 ignored, int64 [A].
        quality: The IoU of a positive's predicted box, detached, [A]; None if the loss reads none. Values at rows that
            are not positive mean nothing and may be NaN.
        image: Which image each row is from, in any order, int64 [A]; None unless the scope is "image".
    """

    logits: Tensor
    labels: Tensor
    quality: Tensor | None = None
    image: Tensor | None = None


class Forward(NamedTuple):
    """What an engine's forward pass returns; nothing requires a gradient, all of it is on the samples' device.

    Attributes:
        loss: Scalar; float64 for float64 logits, else float32. 0 without positives. NaN if there are faults, as is then
            the gradient.
        log: The numbers that ``spec.log`` names, [len(spec.log)], float64 where the device has it. "faults" counts bad
            values: logits of rows not ignored that are NaN or infinite, labels out of range, qualities of positives
            that are NaN or outside [0, 1] by more than 1e-4. Smaller excess is rounding and is clamped.
        box_weights: How much each row's box error counts, in the loss's dtype, [A], 0 for rows that are not positive;
            None unless the family is "alrp".
        saved: What the backward pass needs beside the samples.
    """

    loss: Tensor
    log: Tensor
    box_weights: Tensor | None
    saved: tuple[Tensor, ...]


class Engine(Protocol):
    """The interface of an engine.

    With the scope "world", positives and sums are those of all processes. Gradients are then multiplied by the number
    of processes, because DDP averages them.
    """

    name: str

    def unsupported(self, spec: RankingSpec, samples: Samples) -> str | None:
        """Why this engine cannot compute it ("it needs a CUDA device, got cpu"), or None if it can.

        Only checks shapes, dtypes and devices: the samples may be fake tensors.
        """

    def forward(self, samples: Samples, spec: RankingSpec) -> Forward:
        """The loss, numbers for the log, and what the backward pass needs."""

    def backward(self, upstream: Tensor, samples: Samples, saved: tuple[Tensor, ...], spec: RankingSpec) -> Tensor:
        """The gradient of the logits, in their shape and dtype.

        Args:
            upstream: The gradient of what follows by the loss, scalar on the samples' device.
            samples: As in the forward pass.
            saved: From the forward pass.
            spec: As in the forward pass.
        """

    def fake(self, samples: Samples, spec: RankingSpec) -> Forward:
        """Empty tensors in the shapes and dtypes that ``forward`` would return, for ``torch.compile``.

        A size that depends on the data is ``torch.library.get_ctx().new_dynamic_size()``.
        """
