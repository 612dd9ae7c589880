"""Train the detectors of Hugging Face transformers by ranking: RT-DETR, D-FINE, Deformable DETR and similar models."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torchvision.ops import box_convert

from rankwise.boxes import paired_iou
from rankwise.distributed import single_process
from rankwise.eager import eager
from rankwise.integrations.queries import rank_queries
from rankwise.integrations.softmax import log_odds
from rankwise.losses import APELoss
from rankwise.losses.base import Loss, check_loss
from rankwise.losses.inputs import check_factors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    Model = TypeVar("Model", bound=PreTrainedModel)

#: The classification losses of the criteria in transformers, with the names of their values in the loss dict.
CLASSIFICATION = {"labels": "loss_ce", "vfl": "loss_vfl", "focal": "loss_focal", "bce": "loss_bce", "mal": "loss_mal"}

#: A matched query is positive even if its box misses the object.
LEAST_QUALITY = 1e-6

Match = tuple[Tensor, Tensor]


def use_ranking(model: Model, loss: Loss | None = None, weight: float = 1.0, keep: float = 0.0) -> Model:
    """Makes a detector of transformers train by ranking and returns it; the model is modified in place.

    The call ``model(pixel_values, labels=labels).loss`` does not change. The ranking loss replaces the classification
    loss (varifocal, focal, cross entropy), with the same name in ``loss_dict`` and the weight of the config. Matching
    and box losses do not change. Samples are queries × classes: the class of a matched query is a positive, with the
    IoU of its predicted box as quality; all others are negatives.

    Every output with a classification loss is ranked separately: the last decoder layer, the auxiliary layers, the
    encoder proposals and the denoising queries, where queries with little noise rank above those with so much noise
    that they count as background. Query groups (LW-DETR, RF-DETR) are ranked separately, and the loss is their mean.
    For models with a softmax and a background class (DETR, YOLOS), the log-odds are ranked. For models that score text
    tokens (Grounding DINO), the tokens of the class of a matched query are the positives.

    A batch without objects has no denoising queries, so they may exist in only some processes. Each process therefore
    ranks its own denoising queries, even with ``scope="world"``.

    Args:
        model: An object detection model of transformers.
        loss: Any loss of ``rankwise.losses``; APE loss by default. ``APELoss(scope="image")`` ranks each image
            separately.
        weight: Factor on the ranking loss, in addition to the weight of the config.
        keep: Weight of the original classification loss; 0 removes it.

    Raises:
        TypeError: If the model is not a detector of transformers, if its loss cannot be replaced, if ``loss`` is not a
            loss, or a factor is not a number.
        ValueError: If a factor is negative or not finite.
    """
    check_factors(weight=weight, keep=keep)
    loss = APELoss() if loss is None else check_loss(loss)
    detector = getattr(model, "_orig_mod", model)  # of a compiled model
    own = getattr(detector, "loss_function", None)
    if isinstance(own, _RankingFunction):
        own = own.own
    if not isinstance(own, FunctionType) or not _criteria(own) or not _calls_loss_function(type(detector)):
        raise TypeError(
            "use_ranking takes a detector of transformers with a criterion, such as RT-DETR, D-FINE or deformable "
            f"DETR, not a {type(detector).__name__}"
        )
    detector.loss_function = _RankingFunction(own, loss, weight, keep)
    return model


class _RankingFunction:
    """Replaces the loss function of a model. Not a module, so that the state dict of the model does not change.

    Args:
        own: The original loss function of the model.
        loss: The loss that replaces the classification loss.
        weight: Weight of the loss.
        keep: Weight of the original classification loss.
    """

    def __init__(self, own: FunctionType, loss: Loss, weight: float, keep: float) -> None:
        self.own = own
        self.loss = loss
        self.weight = weight
        self.keep = keep

    @eager  # every call creates a new function, so a compiler would recompile the model in every step
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The original function creates a new criterion in every call, so there is none to change in advance. A copy of
        # the function with other globals creates ours instead, and other models are not affected.
        ours = {name: partial(self.criterion, kind) for name, kind in _criteria(self.own).items()}
        names = {**self.own.__globals__, **ours}
        copy = FunctionType(self.own.__code__, names, self.own.__name__, self.own.__defaults__, self.own.__closure__)
        copy.__kwdefaults__ = self.own.__kwdefaults__
        return copy(*args, **kwargs)

    def criterion(self, kind: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The original criterion of the model with another classification loss."""
        criterion = kind(*args, **kwargs)
        criterion.get_loss = partial(self.get_loss, criterion, criterion.get_loss)
        if hasattr(criterion, "get_cdn_matched_indices"):
            criterion.get_cdn_matched_indices = partial(_remember, criterion, criterion.get_cdn_matched_indices)
        return criterion

    def get_loss(
        self,
        criterion: Any,
        own: Callable[..., dict[str, Tensor]],
        name: str,
        outputs: dict[str, Tensor],
        targets: list[dict[str, Tensor]],
        indices: list[Match],
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """One loss for one output of the model; replaces ``get_loss`` of the criterion."""
        if name not in CLASSIFICATION:
            return own(name, outputs, targets, indices, *args, **kwargs)
        denoising = indices is getattr(criterion, "denoising", None)
        with single_process() if denoising else nullcontext():
            groups = 1 if denoising else getattr(criterion, "group_detr", 1)
            value = self.weight * (
                self.ranking_of_tokens(outputs, targets, indices)
                if "text_mask" in outputs
                else self.ranking(outputs, targets, indices, criterion.num_classes, groups)
            )
        if self.keep:
            value = value + self.keep * own(name, outputs, targets, indices, *args, **kwargs)[CLASSIFICATION[name]]
        return {CLASSIFICATION[name]: value}

    def ranking(
        self,
        outputs: dict[str, Tensor],
        targets: list[dict[str, Tensor]],
        indices: list[Match],
        classes: int,
        groups: int,
    ) -> Tensor:
        """The ranking loss over all queries of a batch.

        Args:
            outputs: ``logits`` [B, Q, C] (or C + 1 with the background last) and ``pred_boxes`` [B, Q, 4], cxcywh.
            targets: ``class_labels`` and ``boxes``, one per image.
            indices: The matched queries and their objects, one per image.
            classes: C.
            groups: Number of query groups, which are ranked separately.
        """
        logits, boxes = outputs["logits"].float(), outputs["pred_boxes"].detach().float()
        if logits.shape[-1] == classes + 1:
            logits = log_odds(logits, background=classes)
        return rank_queries(self.loss, logits, *_matched(boxes, targets, indices), groups)

    def ranking_of_tokens(
        self, outputs: dict[str, Any], targets: list[dict[str, Tensor]], indices: list[Match]
    ) -> Tensor:
        """The ranking loss of a model that scores text tokens: all tokens of the class of a matched query are positive.

        Args:
            outputs: ``logits`` [B, Q, T], ``pred_boxes`` [B, Q, 4], ``text_mask``, the valid tokens, [B, *, T], and
                ``label_maps``, the tokens of the classes of each image, [classes, T].
            targets: ``class_labels`` and ``boxes``, one per image.
            indices: The matched queries and their objects, one per image.
        """
        logits, boxes = outputs["logits"].float(), outputs["pred_boxes"].detach().float()
        (image, query), kinds, iou = _matched(boxes, targets, indices)
        dense = torch.zeros_like(logits)
        tokens = [outputs["label_maps"][number][kind] for number, kind in zip(image.tolist(), kinds, strict=True)]
        if tokens:
            dense[image, query] = torch.stack(tokens).to(dense) * iou.clamp(min=LEAST_QUALITY)[:, None]
        return self.loss.to(logits.device).dense(logits, dense, mask=outputs["text_mask"][:, :1].expand_as(logits))


def _matched(
    boxes: Tensor, targets: list[dict[str, Tensor]], indices: list[Match]
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Image and query of each match, its class, and the IoU of the predicted box with the object."""
    image = torch.cat([torch.full_like(query, number) for number, (query, _) in enumerate(indices)]).to(boxes.device)
    query = torch.cat([query for query, _ in indices]).to(boxes.device)
    pairs = list(zip(targets, (matched for _, matched in indices), strict=True))
    truth = torch.cat([target["boxes"][matched] for target, matched in pairs]).to(boxes)
    kinds = torch.cat([target["class_labels"][matched] for target, matched in pairs]).to(boxes.device).long()
    return (image, query), kinds, paired_iou(_corners(boxes[image, query]), _corners(truth))


def _remember(criterion: Any, own: Callable[..., list[Match]], *args: Any) -> list[Match]:
    """Stores the matches of denoising queries in the criterion, to recognize their outputs later."""
    criterion.denoising = own(*args)
    matches: list[Match] = criterion.denoising
    return matches


def _calls_loss_function(kind: type) -> bool:
    """Whether a method of a model reads its ``loss_function``. Detectors without a training loss only inherit it, and
    wrappers such as PEFT's pass it on from a model that would not see another one."""
    methods = (inspect.unwrap(value) for base in kind.__mro__ for value in vars(base).values() if callable(value))
    return any("loss_function" in method.__code__.co_names for method in methods if isinstance(method, FunctionType))


def _criteria(function: FunctionType) -> dict[str, Callable[..., Any]]:
    """The criterion classes that a loss function of transformers uses, by their name in it."""
    found = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and hasattr(kind, "get_loss")}


def _corners(boxes: Tensor) -> Tensor:
    return box_convert(boxes, "cxcywh", "xyxy")
