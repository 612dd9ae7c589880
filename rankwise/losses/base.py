"""The base class of all losses: the call, values for logging, and the box loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor, nn

from rankwise.distributed import all_reduce_mean
from rankwise.eager import eager
from rankwise.losses.dense import DenseTargets, read_dense
from rankwise.losses.inputs import check_choice, check_settings, flat, without_ignored
from rankwise.losses.second_order import forbid_double_backward
from rankwise.losses.transforms import call_unwrapped, transforming


@dataclass(frozen=True)
class Outcome:
    """A loss with additional results.

    Attributes:
        loss: The scalar to minimize.
        parts: Detached scalars for the log.
        row_weights: Weight of the box error of each row, [A], 0 for rows that are not positive; None if the loss does
            not define it.
        positive: Which rows are positive, [A], with ``row_weights``.
    """

    loss: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)
    row_weights: Tensor | None = None
    positive: Tensor | None = None

    @property
    def box_weights(self) -> Tensor | None:
        """Weight of the box error of each positive, [P], in row order. On a GPU this waits for the device."""
        return None if self.row_weights is None else self.row_weights[self.positive]


@dataclass(frozen=True)
class PositiveBoxes:
    """The boxes of the P positives, in the order of the positives among the rows.

    Attributes:
        errors: The loss of each box (1 - GIoU by default), with gradient, [P].
        weights: The weight of each box, detached, [P].
        distribution: Logits over the distance bins of each side, [P, 4, bins + 1], if the head predicts them.
        distances: The true distances in bins, [P, 4], with ``distribution``.
        rows: Their rows, int64 [P]; by default all positives in order.
    """

    errors: Tensor
    weights: Tensor
    distribution: Tensor | None = None
    distances: Tensor | None = None
    rows: Tensor | None = None


class Loss(nn.Module, ABC):
    """A loss over the class logits of all samples of a batch.

    Call it with ``logits`` float [A, C]; ``labels`` int64 [A], 0 to C - 1 a positive's class, C background, -1 ignored;
    ``quality`` float [A], the IoU of the predicted box of a positive with its ground truth, only read at positives and
    never differentiated; ``image`` int64 [A], the image of each row, optional. It returns a scalar. Logits can also be
    [B, A, C], with the others [B, A]; the first dimension is then the image. :meth:`dense` takes a target per entry.
    """

    #: Whether its box loss needs a head that predicts distances as distributions.
    needs_distributions = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Adds type checks of constructor arguments: ``lam="8"`` fails at once and not later."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = check_settings(cls.__init__)  # type: ignore[method-assign]

    def forward(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Tensor:
        if transforming():
            return call_unwrapped(lambda leaf: self._labelled(leaf, labels, quality, image), logits)
        return self._labelled(forbid_double_backward(logits), labels, quality, image)

    def _labelled(self, logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None) -> Tensor:
        logits, labels, quality, image = flat(logits, labels, quality, image)
        return self.outcome(without_ignored(logits, labels), labels, quality, image).loss

    def dense(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        mask: Tensor | None = None,
        weight: Tensor | None = None,
        normalizer: Tensor | float | None = None,
        reduction: Literal["mean", "none"] = "mean",
    ) -> Tensor:
        """The loss for dense targets, one per entry, as in other frameworks: a scalar.

        Args:
            logits: Float [..., C]; the first dimension is the image.
            targets: [..., C] in [0, 1]: an entry is positive if its target is above 0; the target is then its quality.
                A row can have several positives.
            mask: Bool [..., C], or [...] for whole rows: entries with False are ignored and not read.
            weight: Weight of each entry, [..., C] or [...]. In a ranking loss, the weight of a positive multiplies its
                term, and that of a negative all its pairs.
            normalizer: Divisor instead of the number of positives.
            reduction: "none" returns the terms of the positives, [P], sorted by row and class, instead of their mean.
                Only for ranking losses.

        Raises:
            TypeError: If something is not a tensor.
            ValueError: If something has the wrong shape or type, is out of range, NaN or infinite.
        """

        check_choice("reduction", reduction, ("mean", "none"))
        if reduction == "none":
            if normalizer is not None:
                raise ValueError('normalizer has no effect with reduction="none"; divide the terms instead')
            return self.dense_terms(read_dense(forbid_double_backward(logits), targets, mask, weight))

        def call(leaf: Tensor) -> Tensor:
            return self.dense_outcome(leaf, targets, mask=mask, weight=weight, normalizer=normalizer).loss

        return call_unwrapped(call, logits) if transforming() else call(forbid_double_backward(logits))

    @eager
    def dense_outcome(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        mask: Tensor | None = None,
        weight: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Outcome:
        """The loss for dense targets with its parts; :meth:`dense` returns its first field."""
        read = read_dense(logits, targets, mask, weight, normalizer)
        if weight is not None:
            terms = self.dense_terms(read)
            number = terms.new_tensor(float(len(terms)))
            divisor = number.clamp(min=1) if read.normalizer is None else read.normalizer
            return Outcome(terms.sum() / divisor, {"positives": number})
        outcome = self.outcome(*read.labelled())
        if read.normalizer is None:
            return outcome
        scale = outcome.parts["positives"] / read.normalizer
        return replace(outcome, loss=outcome.loss * scale.to(outcome.loss.dtype))

    def dense_terms(self, read: DenseTargets) -> Tensor:
        """The weighted terms of the positives, [P]; an error for losses that are not a mean over positives."""
        raise ValueError(
            f"{type(self).__name__} has no terms per positive; the ranking losses have them: APELoss, PELoss, APLoss, "
            "PairwiseError, RankSortLoss and ALRPLoss"
        )

    @abstractmethod
    def outcome(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Outcome:
        """The loss with its parts; ``forward`` returns its first field."""

    def outcome_at(
        self,
        rows: Tensor | None,
        logits: Tensor,
        labels: Tensor,
        quality: Tensor | None = None,
        image: Tensor | None = None,
    ) -> Outcome:
        """Like :meth:`outcome`, if the rows of the positives are known. Losses that read all labels ignore them.

        Args:
            rows: The rows, ascending, int64 [P], or None if not known.
            logits: As in the call, [A, C].
            labels: As in the call.
            quality: As in the call.
            image: As in the call.
        """
        return self.outcome(logits, labels, quality, image)

    def box_loss(self, boxes: PositiveBoxes, outcome: Outcome) -> Tensor:
        """The box loss of this loss: the weighted mean over the positives of all processes.

        Args:
            boxes: Box errors and weights of the positives.
            outcome: The outcome of this loss for the same batch.
        """
        total = all_reduce_mean(boxes.weights.sum()).clamp(min=1e-6)
        return (boxes.errors * boxes.weights).sum() / total


def check_loss(loss: object) -> Loss:
    """Returns the loss; raises a helpful TypeError if it is not a loss instance, such as a class or a name."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, type) and issubclass(loss, Loss):
        raise TypeError(f"loss must be an instance, got the class {loss.__name__}: pass {loss.__name__}()")
    raise TypeError(f"loss must be a loss of rankwise.losses, such as APELoss(), got {loss!r}")
