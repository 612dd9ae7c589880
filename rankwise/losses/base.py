"""What every loss has in common: the call, the parts for the log, and the hook by which it shapes the box loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from torch import Tensor, nn

from rankwise.distributed import all_reduce_mean


@dataclass(frozen=True)
class Outcome:
    """A loss and what else came of computing it.

    Attributes:
        loss: The scalar to minimise.
        parts: Detached scalars for the log.
        box_weights: How much each positive's box error counts, [P], in the order of the positives among the rows;
            None where the loss has no say in it.
    """

    loss: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)
    box_weights: Tensor | None = None


@dataclass(frozen=True)
class PositiveBoxes:
    """The boxes of the P positives, in the order of the positives among the rows.

    Attributes:
        errors: Each box's loss (1 - GIoU by default), with gradient, [P].
        weights: Each box's weight, detached, [P].
        distribution: Logits over the bins of each side's distance, [P, 4, bins + 1], if the head predicts them.
        distances: The true distances in bins, [P, 4], with ``distribution``.
    """

    errors: Tensor
    weights: Tensor
    distribution: Tensor | None = None
    distances: Tensor | None = None


class Loss(nn.Module, ABC):
    """A loss over the class logits of all samples of a batch.

    Call it with ``logits`` float [A, C]; ``labels`` int64 [A], 0 to C - 1 a positive's class, C background, -1 ignored;
    ``quality`` float [A], the IoU of a positive's predicted box with its ground truth, read only at positives and never
    given a gradient; ``image`` int64 [A], which image each row is from, optional. It returns a scalar.
    """

    #: Whether its box loss needs a head that predicts distances as distributions.
    needs_distributions = False

    def forward(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Tensor:
        return self.outcome(logits, labels, quality, image).loss

    @abstractmethod
    def outcome(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Outcome:
        """The loss with its parts: what ``forward`` returns the first field of."""

    def box_loss(self, boxes: PositiveBoxes, outcome: Outcome) -> Tensor:
        """The box loss that goes with this loss: the weighted mean over the positives of all processes.

        Args:
            boxes: The positives' box errors and weights.
            outcome: What this loss made of the same batch.
        """
        total = all_reduce_mean(boxes.weights.sum()).clamp(min=1e-6)
        return (boxes.errors * boxes.weights).sum() / total


def check_loss(loss: object) -> Loss:
    """The loss itself; raises a TypeError that says what to give where it is none, such as a class or a name."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, type) and issubclass(loss, Loss):
        raise TypeError(f"loss must be an instance, got the class {loss.__name__}: give {loss.__name__}()")
    raise TypeError(f"loss must be a loss of rankwise.losses, such as APELoss(), got {loss!r}")
