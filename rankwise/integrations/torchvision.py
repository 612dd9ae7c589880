"""Train torchvision's one-stage detectors by ranking: RetinaNet, FCOS, SSD and SSDLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torchvision.models.detection import FCOS, RetinaNet
from torchvision.models.detection.ssd import SSD
from torchvision.ops import box_convert

from rankwise.assign import ATSS
from rankwise.assign.base import Assigner
from rankwise.criterion import BoxSettings, Criterion
from rankwise.integrations.softmax import log_odds
from rankwise.losses import APELoss
from rankwise.losses.base import Loss
from rankwise.types import Predictions, Target

Model = TypeVar("Model", RetinaNet, FCOS, SSD)

#: The anchors of FCOS are one stride wide. Assigners compare anchors with objects and expect the size used by ATSS.
FCOS_ANCHOR_SCALE = 8.0

#: A logit whose sigmoid is practically 1.
CERTAIN = 20.0


def use_ranking(
    model: Model,
    loss: Loss | None = None,
    assigner: Assigner | None = None,
    box: BoxSettings | None = None,
    score_thresh: float | None = 0.0,
) -> Model:
    """Makes a torchvision detector train by ranking and returns it; the model is modified in place.

    The training call ``model(images, targets)`` returns a dict of losses with the usual names: ``classification`` is
    the ranking loss, ``bbox_regression`` the weighted GIoU loss. Inference and the names in the state dict do not
    change, so that the weights load into a plain torchvision model.

    - RetinaNet: labels are class indices, 0 to ``num_classes`` - 1, as usual.
    - SSD and SSDLite report a softmax over classes and background: the log-odds of that score are ranked. Labels start
      at 1, as usual; 0 is background.
    - FCOS: no centerness, as in the paper. Its branch is set to 1 and frozen, so that the reported score is the square
      root of the class sigmoid, here and in a plain FCOS that loads the weights; its loss is 0. For the assigner, every
      location is a square of 8 strides.

    A ranking loss decides which of two samples scores higher, not how high. All scores may drift together during
    training, and a threshold for probabilities would drop good detections. ``score_thresh`` therefore becomes 0, and
    only the limits on the number of detections apply.

    Args:
        model: A RetinaNet, FCOS, SSD or SSDLite of torchvision.
        loss: Any loss of ``rankwise.losses``; APE loss by default.
        assigner: The assigner; ATSS by default.
        box: Weight and weighting of the box loss.
        score_thresh: The new threshold for detections; None keeps the current one.

    Raises:
        TypeError: If the model is not supported, or ``loss``, ``assigner`` or ``box`` is of another kind.
    """
    if not isinstance(model, RetinaNet | FCOS | SSD):
        raise TypeError(f"use_ranking takes a torchvision RetinaNet, FCOS or SSD, not {type(model).__name__}")
    criterion = Criterion(APELoss() if loss is None else loss, ATSS() if assigner is None else assigner, box)
    if isinstance(model, FCOS):
        _leave_centerness_out(model)
    if score_thresh is not None:
        model.score_thresh = score_thresh
    before = vars(model).get("compute_loss")
    if isinstance(before, _Ranking):
        before.criterion = criterion
        return model
    ranking = _Ranking(model, criterion)
    model.head.register_forward_pre_hook(ranking.see_levels)
    model.compute_loss = ranking
    return model


class _Ranking:
    """Replaces ``compute_loss`` of a model. Not a module, so that the state dict of the model does not change.

    Args:
        model: The model.
        criterion: Assigner, ranking loss and box loss.
    """

    def __init__(self, model: nn.Module, criterion: Criterion) -> None:
        self.criterion = criterion
        self.softmax = isinstance(model, SSD)
        self.centerness = isinstance(model, FCOS)
        self.box_coder: Any = model.box_coder
        self.per_location: list[int] = model.anchor_generator.num_anchors_per_location()  # type: ignore[operator, union-attr]
        self.level_sizes: tuple[int, ...] = ()

    def see_levels(self, head: nn.Module, inputs: tuple[Sequence[Tensor]]) -> None:
        """Stores the number of anchors per level, which ``compute_loss`` cannot see."""
        sizes = zip(inputs[0], self.per_location, strict=True)
        self.level_sizes = tuple(level.shape[-2] * level.shape[-1] * count for level, count in sizes)

    def __call__(
        self, targets: list[Target], head_outputs: dict[str, Tensor], anchors: list[Tensor], *matching: Any
    ) -> dict[str, Tensor]:
        logits, codes = head_outputs["cls_logits"].float(), head_outputs["bbox_regression"].float()
        grid = anchors[0]  # the images of a batch have the same padded size and therefore the same anchors
        boxes = _decode(self.box_coder, codes, grid)
        if self.softmax:
            logits = log_odds(logits, background=0)
            targets = _without_background(targets)
        if self.centerness:
            grid = _scaled(grid, FCOS_ANCHOR_SCALE)
        terms = self.criterion.to(logits.device)(Predictions(logits, boxes, grid, self.level_sizes), targets).terms
        losses = {"classification": terms["ranking"], "bbox_regression": terms["box"]}
        return losses | {"bbox_ctrness": logits.new_zeros(())} if self.centerness else losses


def _decode(coder: Any, codes: Tensor, anchors: Tensor) -> Tensor:
    """Decodes boxes from a batch of codes [B, A, 4]."""
    repeated = anchors.repeat(len(codes), 1)
    decode = getattr(coder, "decode_single", coder.decode)  # torchvision has two box coders with different method names
    return decode(codes.flatten(0, 1), repeated).view_as(codes)


def _scaled(boxes: Tensor, factor: float) -> Tensor:
    """Boxes with the same centers, scaled in width and height."""
    centres = box_convert(boxes, "xyxy", "cxcywh")
    return box_convert(torch.cat([centres[:, :2], centres[:, 2:] * factor], dim=1), "cxcywh", "xyxy")


def _without_background(targets: list[Target]) -> list[Target]:
    """Targets with labels from 0, where those of SSD start at 1."""
    for number, target in enumerate(targets):
        if bool((target["labels"] < 1).any()):
            raise ValueError(f"target {number} of the batch has label 0: in SSD this is background, classes start at 1")
    return [{**target, "labels": target["labels"] - 1} for target in targets]


def _leave_centerness_out(model: FCOS) -> None:
    branch = model.head.regression_head.bbox_ctrness.requires_grad_(False)
    nn.init.zeros_(branch.weight)
    nn.init.constant_(branch.bias, CERTAIN)
