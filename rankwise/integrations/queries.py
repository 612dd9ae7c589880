"""Ranks the queries of DETR-like detectors."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.losses.base import Loss


def rank_queries(
    loss: Loss, logits: Tensor, matched: tuple[Tensor, Tensor], kinds: Tensor, iou: Tensor, groups: int
) -> Tensor:
    """A loss over the logits [B, Q, C] of all queries; query groups are ranked separately, and the loss is their mean.

    ``matched`` are image and query of each match, ``kinds`` its class (C for background), ``iou`` its quality. The
    remainder of a division into groups belongs to the last one, as in the matcher of LW-DETR.
    """
    labels = torch.full(logits.shape[:2], logits.shape[-1], device=logits.device)
    quality = logits.new_zeros(labels.shape)
    labels[matched], quality[matched] = kinds, iou
    loss, total, size = loss.to(logits.device), logits.new_zeros(()), labels.shape[1] // groups
    for start in range(0, groups * size, size):
        part = slice(start, None if start == (groups - 1) * size else start + size)
        total = total + loss(logits[:, part], labels[:, part], quality[:, part])
    return total / groups
