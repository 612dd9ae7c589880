"""Checks the arguments of a loss with clear errors, and finds the positives."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps

import torch
from torch import Tensor

from rankwise.pairsums import ROUNDING, bad_labels, bad_numbers, bad_quality


@dataclass(frozen=True)
class Samples:
    """The samples of a batch.

    On a GPU, reading values would make the host wait. If they are not read, ``rows`` are all rows, and ``is_positive``
    is a mask of the positive ones.

    Attributes:
        logits: At least float32, attached to the graph, [A, C].
        labels: int64 [A].
        rows: The rows of the P positives, ascending, int64 [P].
        classes: The class of each positive, int64 [P].
        quality: The quality of each positive, detached, in the dtype of the logits, [P]; None if the loss does not use
            it.
        image: The image of each row, int64 [A], or None.
        ignored: Ignored entries, bool [A, 1] or [A, C]; None if there are none.
        weight: Weight of each entry, [A, C]; None if all are 1.
        normalizer: Divisor instead of the number of positives, or None.
        is_positive: Mask of the positives among ``rows``, bool [P], if values were not read; None if all are positives.
    """

    logits: Tensor
    labels: Tensor
    rows: Tensor
    classes: Tensor
    quality: Tensor | None
    image: Tensor | None
    ignored: Tensor | None = None
    weight: Tensor | None = None
    normalizer: Tensor | None = None
    is_positive: Tensor | None = None

    @property
    def positive_quality(self) -> Tensor:
        """The quality of each positive, [P]; only with ``needs_quality``."""
        assert self.quality is not None
        return self.quality

    @cached_property
    def values(self) -> Tensor:
        """The detached logits, with zeros in ignored rows if these were not checked, [A, C]."""
        values = self.logits.detach()
        return values if self.is_positive is None or self.ignored is None else values.masked_fill(self.ignored, 0)

    @cached_property
    def positives(self) -> Tensor:
        """The detached logits of the positives, [P]."""
        return self.values[self.rows, self.classes]

    @cached_property
    def number(self) -> Tensor:
        """Number of positives, a scalar in the dtype of the logits."""
        if self.is_positive is None:
            return torch.full((), len(self.rows), dtype=self.logits.dtype, device=self.logits.device)
        return self.is_positive.sum(dtype=self.logits.dtype)

    @cached_property
    def validity(self) -> Tensor | None:
        """1 if logits and labels are valid, otherwise NaN, a scalar; None if they were checked before."""
        if self.is_positive is None:
            return None
        right = self.values.isfinite().all() & ((self.labels >= -1) & (self.labels <= self.logits.shape[1])).all()
        return torch.where(right, 1.0, torch.nan).to(self.logits.dtype)

    def only_positives(self, values: Tensor) -> Tensor:
        """``values`` [P], set to 0 in rows that are not positive."""
        return values if self.is_positive is None else values.where(self.is_positive, 0)

    def write(self, gradient: Tensor, slope: Tensor) -> None:
        """Writes the gradient of the positives [P] to ``gradient`` [A, C]."""
        slope = slope.to(gradient.dtype)
        if self.is_positive is not None:
            slope = slope.where(self.is_positive, gradient[self.rows, self.classes])
        gradient[self.rows, self.classes] = slope


def read_samples(
    logits: Tensor,
    labels: Tensor,
    quality: Tensor | None = None,
    image: Tensor | None = None,
    *,
    needs_quality: bool = False,
    needs_image: bool = False,
    sync: bool = True,
    rows: Tensor | None = None,
) -> Samples:
    """Checks the arguments of a loss and finds the positives.

    Args:
        logits: Float [A, C] or [B, A, C]; half precision is converted to float32. Ignored rows are not read.
        labels: Integers [A] or [B, A]: 0 to C - 1 for the class of a positive, C for background, -1 for ignored.
        quality: Float with the shape of the labels, in [0, 1] at positives; other rows are not read.
        image: Integers with the shape of the labels; for [B, A, C] logits, the first dimension by default.
        needs_quality: Whether the loss uses the quality; if not, it is not checked.
        needs_image: Whether the loss uses the image indices; if not, they are not checked.
        sync: Whether to read values on the host, which waits for a GPU. If not, invalid values make the loss NaN.
        rows: The rows of the positives, ascending, if known.

    Raises:
        ValueError: If an argument is missing, of the wrong shape or type, out of range, NaN or infinite.
    """
    logits, labels, quality, image = flat(logits, labels, quality, image)
    quality, image = check_arguments(logits, labels, quality, image, needs_quality, needs_image)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if sync:
        return _read_with_sync(logits, labels.long(), quality, image, rows)
    return _read_without_sync(logits, labels.long(), quality, image)


def _read_with_sync(
    logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None, rows: Tensor | None
) -> Samples:
    classes = logits.shape[1]
    lowest, highest = torch.stack(labels.aminmax()).tolist() if len(labels) else (0, 0)
    if lowest < -1 or highest > classes:
        raise ValueError(bad_labels(labels, classes))
    ignored = (labels < 0).unsqueeze(1) if lowest < 0 else None
    logits = without_bad_numbers(logits, ignored)
    if rows is None:
        rows = (labels < classes if ignored is None else (labels < classes) & (labels >= 0)).nonzero().squeeze(1)
    if quality is not None:
        quality = quality.detach()[rows].to(logits.dtype)
        if not bool(((quality >= -ROUNDING) & (quality <= 1 + ROUNDING)).all()):
            raise ValueError(bad_quality(quality, rows))
        quality = quality.clamp(0, 1)
    return Samples(logits, labels, rows, labels[rows], quality, image, ignored)


def _read_without_sync(logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None) -> Samples:
    is_positive = (labels >= 0) & (labels < logits.shape[1])
    if quality is not None:
        quality = quality.detach().to(logits.dtype)
        right = (quality - 0.5).abs() <= 0.5 + ROUNDING
        quality = quality.clamp(0, 1).where(right, torch.nan).where(is_positive, 0)
    rows = torch.arange(len(labels), device=labels.device)
    own = labels.clamp(0, logits.shape[1] - 1)
    return Samples(logits, labels, rows, own, quality, image, (labels < 0).unsqueeze(1), is_positive=is_positive)


def flat(
    logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Flattens the arguments of a loss to rows: [B, A, C] logits become [B · A, C]; the first dimension is the image.

    Raises:
        TypeError: If something is not a tensor.
        ValueError: If labels, quality or image of [B, A, C] logits are not [B, A].
    """
    given = {"logits": logits, "labels": labels, "quality": quality, "image": image}
    for name, value in given.items():
        if not (isinstance(value, Tensor) or (value is None and name in ("quality", "image"))):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if logits.ndim != 3:
        return logits, labels, quality, image
    for name in ("labels", "quality", "image"):
        value = given[name]
        if value is not None and value.shape != logits.shape[:2]:
            raise ValueError(
                f"{name} must have the shape {list(logits.shape[:2])} for logits of {list(logits.shape)}, "
                f"got {list(value.shape)}"
            )
    if image is None:
        image = torch.arange(logits.shape[0], device=logits.device)[:, None].expand(labels.shape)
    quality = None if quality is None else quality.flatten()
    return logits.flatten(0, 1), labels.flatten(), quality, image.flatten()


def without_ignored(logits: Tensor, labels: Tensor) -> Tensor:
    """The logits [A, C], with zeros in ignored rows that are NaN or infinite, because they must not be used.

    On devices other than a CPU, the logits are returned unchanged, because a check would wait for the device.
    """
    if torch.compiler.is_compiling() or logits.device.type != "cpu" or labels.shape != logits.shape[:1]:
        return logits
    rows = (labels < 0).nonzero().squeeze(1)
    if not len(rows) or bool(logits.detach()[rows].isfinite().all()):
        return logits
    return logits.masked_fill((labels < 0).unsqueeze(1), 0.0)


def without_bad_numbers(logits: Tensor, ignored: Tensor | None) -> Tensor:
    """The logits with zeros for ignored NaN and infinity; other NaN and infinity raise a ValueError that says where.

    Args:
        logits: [A, C].
        ignored: Ignored entries, bool [A, 1] or [A, C], or None.
    """
    try:
        check_finite(logits.detach())
    except ValueError:
        if ignored is None:
            raise
        logits = logits.masked_fill(ignored, 0.0)
        check_finite(logits.detach())
    return logits


def check_finite(logits: Tensor) -> None:
    """Raises a ValueError that says where, if a logit [A, C] is NaN or infinite."""
    if logits.numel():
        low, high = torch.stack(logits.aminmax()).tolist()  # aminmax propagates NaN
        if not (low > -torch.inf and high < torch.inf):
            raise ValueError(bad_numbers("logits", logits))


def check_arguments(
    logits: Tensor,
    labels: Tensor,
    quality: Tensor | None,
    image: Tensor | None,
    needs_quality: bool,
    needs_image: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Checks that all needed arguments are given, with the right shapes and dtypes.

    Returns:
        Quality and image, or None if they are not needed.

    Raises:
        ValueError: If an argument is missing or wrong.
    """
    if needs_quality and quality is None:
        raise ValueError(
            "this loss needs the argument quality: the IoU of the predicted box of each positive with its ground "
            "truth, float [samples]"
        )
    if needs_image and image is None:
        raise ValueError('scope="image" needs the argument image: the image of each row, int64 [samples]')
    quality, image = quality if needs_quality else None, image if needs_image else None
    if logits.ndim != 2 or logits.shape[1] == 0 or not logits.is_floating_point():
        raise ValueError(
            f"logits must be floating point of shape [samples, classes], got {logits.dtype} {list(logits.shape)}"
        )
    _check_rows("labels", labels, len(logits), integer=True)
    if quality is not None:
        _check_rows("quality", quality, len(logits), integer=False)
    if image is not None:
        _check_rows("image", image, len(logits), integer=True)
    return quality, image


def _check_rows(name: str, value: Tensor, count: int, integer: bool) -> None:
    kind = "integers" if integer else "floating point"
    right = not (value.is_floating_point() or value.dtype == torch.bool) if integer else value.is_floating_point()
    if value.shape != (count,) or not right:
        raise ValueError(
            f"{name} must be {kind} of shape [{count}], one per row of logits, got {value.dtype} {list(value.shape)}"
        )


#: Expected types and their names, by annotation.
SETTINGS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "float": ((int, float), "a finite number"),
    "int": (int, "an integer"),
    "bool": (bool, "True or False"),
}


def check_settings(constructor: Callable[..., None]) -> Callable[..., None]:
    """Wraps the constructor of a loss with type checks by its annotations; "| None" allows None."""
    # Plain strings, because torch.compile, in which a loss may be made, does not know signatures.
    kinds = {name: str(one.annotation) for name, one in inspect.signature(constructor).parameters.items()}
    names = list(kinds)[1:]

    @wraps(constructor)
    def checked(self: object, *args: object, **kwargs: object) -> None:
        for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
            kind, _, optional = kinds.get(name, "").partition(" | ")
            wanted = SETTINGS.get(kind)
            if wanted is None or (optional == "None" and value is None):
                continue
            # NaN would pass every check of a range, and infinity most of them.
            number = isinstance(value, int | float) and math.isfinite(value)
            if not number or not isinstance(value, wanted[0]) or (isinstance(value, bool) and kind != "bool"):
                raise TypeError(f"{type(self).__name__}: {name} must be {wanted[1]}, got {value!r}")
        constructor(self, *args, **kwargs)

    return checked


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Raises a ValueError if an argument is not one of the known values."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def check_factors(**factors: float) -> None:
    """Raises an error if a setting is not a finite number of at least 0."""
    for name, value in factors.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"{name} must be a number, got {value!r}")
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and at least 0, got {value}")
