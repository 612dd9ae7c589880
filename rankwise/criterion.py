"""The criterion: assigner, ranking loss and box loss in one module."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from rankwise.assign.base import Assigner
from rankwise.boxes import at_least_float32, distances, giou_loss, paired_iou
from rankwise.losses.base import Loss, PositiveBoxes, check_loss
from rankwise.losses.second_order import forbid_double_backward
from rankwise.types import Assignment, Predictions, Target, to_device


@dataclass(frozen=True)
class BoxSettings:
    """The box loss, 1 - GIoU of each positive.

    Args:
        weight: Weight of the box loss relative to the ranking loss.
        weighting: Weights of the positives: equal, by predicted score (as the paper does with FCOS) or by the IoU of
            their box (as with PAA).
    """

    weight: float = 2.0
    weighting: Literal["none", "score", "quality"] = "none"

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise ValueError(f"--box.weight is {self.weight:g}: it must be at least 0")


@dataclass(frozen=True)
class Losses:
    """The losses of a training step and additional values for the log.

    Attributes:
        terms: The weighted losses; their sum is minimized.
        log: Detached scalars for the log.
    """

    terms: dict[str, Tensor]
    log: dict[str, Tensor] = field(default_factory=dict)

    @property
    def total(self) -> Tensor:
        """The sum of all terms."""
        return torch.stack(list(self.terms.values())).sum()


class Criterion(nn.Module):
    """Computes the losses of a batch.

    Args:
        loss: Any loss of ``rankwise.losses``, over all samples of the batch.
        assign: The assigner, which selects the positives.
        box: The box loss.

    Raises:
        TypeError: If one of them is a class, a name or something else.
    """

    def __init__(self, loss: Loss, assign: Assigner, box: BoxSettings | None = None) -> None:
        super().__init__()
        if isinstance(assign, type) or not callable(assign):
            raise TypeError(f"the assigner must be an instance of rankwise.assign, such as ATSS(), got {assign!r}")
        if not (box is None or isinstance(box, BoxSettings)):
            raise TypeError(f"the box loss must be given as BoxSettings(weight=…, weighting=…), got {box!r}")
        self.loss = check_loss(loss)
        self.assign = assign
        self.box = box or BoxSettings()

    def forward(self, predictions: Predictions, targets: list[Target]) -> Losses:
        """The losses of a batch.

        Args:
            predictions: The predictions of the detector.
            targets: Ground truth, one per image.
        """
        return self.losses(predictions, targets, self.assign(predictions.detach(), targets))

    def losses(self, predictions: Predictions, targets: list[Target], assignment: Assignment) -> Losses:
        """The losses for a given assignment.

        On a GPU, the host does not wait if the assignment has an upper bound on the number of positives and the targets
        are on the host. The positives are then padded to that bound with rows of weight 0.

        Args:
            predictions: The predictions of the detector.
            targets: Ground truth, one per image.
            assignment: The positives.
        """
        boxes = [target["boxes"].reshape(-1, 4).float() for target in targets]
        # At least two rows, because torch.compile specializes on sizes 0 and 1.
        padded = pad_sequence([*boxes, boxes[0].new_zeros(2, 4)], batch_first=True)[:-1]
        return self.losses_of(predictions, to_device(padded, predictions.boxes.device), assignment)

    def compile_losses(self, **options: Any) -> None:
        """Compiles everything after the assigner, whose changing shapes would lead to many graphs.

        Args:
            **options: Options of ``torch.compile``.
        """
        compiled = torch.compile(self.losses_of, fullgraph=True, **options)
        # The bound on the number of positives is an integer that changes from batch to batch.
        self.losses_of = lambda predictions, truth, assignment: compiled(  # type: ignore[method-assign]
            predictions, truth, replace(assignment, most=None)
        )

    def losses_of(self, predictions: Predictions, truth: Tensor, assignment: Assignment) -> Losses:
        """The losses for a given assignment, with the ground-truth boxes in one tensor.

        Args:
            predictions: The predictions of the detector.
            truth: Padded boxes of each image, [B, G, 4].
            assignment: The positives.
        """
        batch, anchors, classes = predictions.logits.shape
        labels = assignment.labels.flatten()
        image = torch.arange(batch, device=labels.device).unsqueeze(1).expand(batch, anchors).flatten()
        positive = (labels >= 0) & (labels < classes)
        rows, valid = _positive_rows(positive, assignment.most)  # [P]

        predicted = at_least_float32(predictions.boxes).flatten(0, 1)
        predicted = predicted.gather(0, rows.unsqueeze(1).expand(-1, 4))  # [P, 4]
        index = rows // anchors * truth.shape[1] + assignment.matched.flatten()[rows].clamp(min=0)
        truth = truth.flatten(0, 1)[index]  # [P, 4]; arbitrary for rows without a match
        ious = paired_iou(predicted.detach(), truth)  # [P]
        slot = torch.where(valid, rows, len(labels))  # the last entry is for padding, and dropped
        quality = predicted.new_zeros(len(labels) + 1).scatter_(0, slot, ious)[:-1]

        # So that the loss does not search for the positives again.
        known = rows if _counted(positive) else None
        logits = forbid_double_backward(predictions.logits).flatten(0, 1)
        outcome = self.loss.outcome_at(known, logits, labels, quality, image)
        boxes = PositiveBoxes(
            errors=giou_loss(predicted, truth),
            weights=self._box_weights(predictions, rows, ious) * valid,
            rows=rows,
            **_distances(predictions, rows, truth),
        )
        box = self.loss.box_loss(boxes, outcome)
        terms = {"ranking": outcome.loss, "box": self.box.weight * box}
        number = valid.sum(dtype=torch.float32)
        log = {
            # RankSort and RankDet have a part "ranking", which is also the name of the total.
            **{f"{name}_part" if name in terms else name: value.detach() for name, value in outcome.parts.items()},
            "positives": number,
            "unmatched": assignment.unmatched.float(),
            "iou": (ious * valid).sum() / number.clamp(min=1),
        }
        return Losses(terms, log)

    def _box_weights(self, predictions: Predictions, rows: Tensor, ious: Tensor) -> Tensor:
        if self.box.weighting == "score":
            return predictions.logits.detach().flatten(0, 1)[rows].float().amax(1).sigmoid()
        if self.box.weighting == "quality":
            # A box without any overlap must still learn.
            return ious.clamp(min=1e-3)
        return torch.ones_like(ious)


def _positive_rows(positive: Tensor, most: int | None) -> tuple[Tensor, Tensor]:
    """The positive rows in order, padded with row 0 to ``most`` rows, and a mask of the positive ones.

    Without a bound, or if their number is known at no cost, there is no padding. In a compiled graph without a bound,
    all rows are returned.
    """
    if most is None and torch.compiler.is_compiling():
        return torch.arange(len(positive), device=positive.device), positive
    if most is None or _counted(positive):
        rows = positive.nonzero().squeeze(1)
        return rows, torch.ones_like(rows, dtype=torch.bool)
    before = positive.cumsum(0)
    slot = torch.where(positive, before - 1, most)
    rows = torch.full((most + 1,), -1, device=positive.device)
    rows = rows.scatter_(0, slot, torch.arange(len(positive), device=positive.device))[:-1]
    return rows.clamp(min=0), rows >= 0


def _counted(positive: Tensor) -> bool:
    """Whether the number of positives is known at no cost."""
    return positive.device.type == "cpu" and not torch.compiler.is_compiling()


def _distances(predictions: Predictions, rows: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """For heads that predict distributions: the logits and true distances of the positives, in bins."""
    if predictions.distribution is None or predictions.distance_unit is None:
        return {}
    anchor = rows % len(predictions.anchors)
    true = distances(truth, predictions.anchors[anchor], predictions.distance_unit[anchor])
    distribution = predictions.distribution.flatten(0, 1)[rows]
    return {"distribution": distribution, "distances": true}
