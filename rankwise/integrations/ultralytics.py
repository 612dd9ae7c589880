"""Train ultralytics' YOLO models by ranking: detection, segmentation, pose and oriented boxes, v8 to 26.

ultralytics is licensed under AGPL-3.0. It is not a dependency of rankwise and not imported here: this module works on
the objects that its trainer passes to a callback.
"""

from __future__ import annotations

import copy
import os
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankwise.losses import APELoss
from rankwise.losses.base import Loss, check_loss
from rankwise.losses.inputs import check_factors
from rankwise.losses.ranking import RankingLoss

#: Tasks with boxes and classes.
TASKS = ("detect", "segment", "pose", "obb")

#: Default weight of a ranking loss without the cross entropy: with 1, it is too weak beside the box losses. Added to
#: the cross entropy, a weight as large lowers all scores.
WEIGHT_ALONE = 5.0


def use_ranking(yolo: Any, loss: Loss | None = None, keep: float = 1.0, weight: float | None = None) -> Any:
    """Makes a YOLO model of ultralytics train by ranking and returns it. Then call ``yolo.train(…)`` as usual.

    ``weight`` times a ranking loss plus ``keep`` times the cross entropy replaces the binary cross entropy of the class
    scores, in both branches of an end-to-end head; the ``cls`` gain of the trainer multiplies both. The alignment score
    of the assigner is the quality of a positive. Box losses, augmentation, several GPUs and resuming work as usual
    (call ``use_ranking`` on the resumed model). Checkpoints load without rankwise.

    Args:
        yolo: ``ultralytics.YOLO(…)`` for the task detect, segment, pose or obb.
        loss: Any loss of ``rankwise.losses``; APE loss by default.
        keep: Weight of the original cross entropy. With 0, the scores are no longer probabilities and nothing exceeds
            the default ``conf=0.25``. Validation during training then uses all boxes, and ``rankwise.calibrate``
            restores the scale afterwards.
        weight: Weight of the loss; by default 1, or 5 for a ranking loss if ``keep`` is 0.

    Raises:
        TypeError: If ``yolo`` is not such a model, ``loss`` is not a loss, or a weight is not a number.
        ValueError: If a weight is negative or not finite.
        RuntimeError: If there are several GPUs and this version of ultralytics would not rank on them.
    """
    if not hasattr(yolo, "add_callback") or getattr(yolo, "task", None) not in TASKS:
        raise TypeError(f"use_ranking takes an ultralytics YOLO for {', '.join(TASKS)}, not {_described(yolo)}")
    check_factors(keep=keep, weight=1.0 if weight is None else weight)
    _check_launcher()
    event = "on_pretrain_routine_end"
    loss = APELoss() if loss is None else check_loss(loss)
    if weight is None:
        weight = WEIGHT_ALONE if isinstance(loss, RankingLoss) and not keep else 1.0
    yolo.callbacks[event] = [other for other in yolo.callbacks[event] if not isinstance(other, _Install)]
    yolo.add_callback(event, _Install(RankingTerm(loss, keep, weight)))
    return yolo


class RankingTerm(nn.Module):
    """Replaces ``criterion.bce``: called with logits and targets [B, A, C], it returns a scalar, which the criterion
    divides by the sum of the targets."""

    def __init__(self, loss: Loss, keep: float, weight: float) -> None:
        super().__init__()
        self.loss = loss
        self.keep = keep
        self.weight = weight

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits, targets = logits.float(), targets.float()
        quality, labels = targets.max(-1)
        labels = labels.masked_fill(quality <= 0, targets.shape[-1])
        value = self.weight * targets.sum().clamp(min=1) * self.loss.to(logits.device)(logits, labels, quality)
        if self.keep:
            value = value + self.keep * F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
        return value


class _Install:
    """A callback that replaces the loss before the training starts; it can be pickled, for training on several GPUs."""

    def __init__(self, term: RankingTerm) -> None:
        self.term = term

    def __call__(self, trainer: Any) -> None:
        if getattr(trainer.args, "cls_pw", 0):
            raise ValueError("class weights (cls_pw) are not supported by ranking losses: leave cls_pw at 0")
        models = [getattr(trainer.model, "module", trainer.model)]
        if trainer.ema is not None:
            models.append(trainer.ema.ema)
        for model in models:
            if getattr(model, "criterion", None) is None:  # it already exists when resuming
                model.criterion = model.init_criterion()
            criterion = model.criterion
            parts: list[Any] = [criterion, *(getattr(criterion, name, None) for name in ("one2many", "one2one"))]
            branches = [part for part in parts if hasattr(part, "bce")]
            if not branches:
                raise TypeError(f"{type(criterion).__name__} has no classification cross entropy to replace")
            for branch in branches:
                branch.bce = copy.deepcopy(self.term)
        if not self.term.keep and getattr(trainer, "validator", None) is not None:
            trainer.validator.args.conf = 0.0


def _check_launcher() -> None:
    """Raises an error if training on several GPUs would lose the callbacks, and with them the ranking."""
    launcher = sys.modules.get("ultralytics.utils.dist")
    if launcher is None or "callbacks" in launcher.generate_ddp_file.__code__.co_names:
        return
    if torch.accelerator.device_count() > 1 and "LOCAL_RANK" not in os.environ:
        raise RuntimeError(
            "this version of ultralytics trains on several GPUs without the callbacks of the model, so it would not "
            "rank: update ultralytics, start your script with torchrun, or make one GPU visible (CUDA_VISIBLE_DEVICES)"
        )


def _described(value: Any) -> str:
    task = getattr(value, "task", None)
    return type(value).__name__ + (f" for {task}" if task else "")
