"""Train Roboflow's RF-DETR (the package ``rfdetr``) by ranking."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torchvision.ops import box_convert

from rankwise.boxes import paired_iou
from rankwise.integrations.queries import rank_queries
from rankwise.losses import APELoss
from rankwise.losses.base import Loss, check_loss

Given = TypeVar("Given")


def use_ranking(model: Given, loss: Loss | None = None) -> Given:
    """Makes RF-DETR train by ranking and returns it. Then call ``model.train(…)`` as usual.

    The ranking loss replaces the IoU-aware cross entropy of the classes, with the same name ``loss_ce`` and weight
    ``cls_loss_coef``. The outputs of the last decoder layer, the auxiliary layers and the encoder are ranked
    separately. Query groups are ranked separately too, and the loss is their mean. Matching and box losses do not
    change.

    Args:
        model: An ``RFDETRNano()`` or another model of rfdetr, an ``RFDETRModelModule``, or a ``SetCriterion``.
        loss: Any loss of ``rankwise.losses``; APE loss by default.

    Raises:
        TypeError: If ``model`` is not one of these, or ``loss`` is not a loss.
    """
    loss = APELoss() if loss is None else check_loss(loss)
    from rfdetr.detr import RFDETR
    from rfdetr.models.criterion import SetCriterion

    if isinstance(model, RFDETR):
        model.train = partial(_train, type(model).train, model, loss)
        return model
    criterion: Any = getattr(model, "criterion", model)
    if not isinstance(criterion, SetCriterion):
        raise TypeError(f"use_ranking takes a model of rfdetr or its criterion, not {type(model).__name__}")
    criterion.__class__ = _ranking_class(SetCriterion)
    criterion.ranking = loss
    return model


def _train(own: Any, model: Any, loss: Loss, **settings: Any) -> Any:
    """The training of the model; the Lightning module that it creates gets the ranking loss."""
    from rfdetr import training

    kind = training.RFDETRModelModule
    training.RFDETRModelModule = lambda *args: use_ranking(kind(*args), loss)
    try:
        return own(model, **settings)
    finally:
        training.RFDETRModelModule = kind


def _ranking_class(base: Any) -> Any:
    """A subclass of the criterion with a ranking loss: compiled training does not replace the losses of subclasses."""

    class RankingCriterion(base):
        ranking: Loss

        def loss_labels(
            self,
            outputs: dict[str, Any],
            targets: list[dict[str, Tensor]],
            indices: list[tuple[Tensor, Tensor]],
            num_boxes: Tensor,
            log: bool = True,
            matched_targets: Any = None,
        ) -> dict[str, Tensor]:
            logits, boxes = outputs["pred_logits"].float(), outputs["pred_boxes"].detach().float()
            classes, at = logits.shape[-1], self._get_src_permutation_idx(indices)
            pairs = [(target, matched) for target, (_, matched) in zip(targets, indices, strict=True)]
            kinds = torch.cat([target["labels"][matched] for target, matched in pairs])
            truth = torch.cat([target["boxes"][matched] for target, matched in pairs]).to(boxes)
            valid = self._matched_valid_mask(targets, indices)  # padding in the targets is background
            if valid is not None:
                kinds = torch.where(valid.bool(), kinds, classes)
            iou = paired_iou(*(box_convert(part, "cxcywh", "xyxy") for part in (boxes[at], truth)))
            groups = self.group_detr if self.training else 1
            # Callers may pass 1 to divide by the number of boxes themselves.
            share = (kinds < classes).sum() / num_boxes
            return {"loss_ce": rank_queries(self.ranking, logits, at, kinds, iou, groups) * share}

    return RankingCriterion
