"""Reference assigners: plain loops over images and objects."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import box_iou

from rankwise.types import Assignment, Predictions, Target


def settle(claims: list[tuple[int, int, float]], anchors: int) -> list[int]:
    """The object each anchor goes to: claims are (object, anchor, IoU); the highest IoU wins, then the first object."""
    owner = [-1] * anchors
    highest = [0.0] * anchors
    for thing, anchor, iou in sorted(claims):
        if iou > highest[anchor]:
            owner[anchor], highest[anchor] = thing, iou
    return owner


def label(
    predictions: Predictions, targets: list[Target], claims: list[list[tuple[int, int, float]]], ignored: Tensor
) -> Assignment:
    """Labels from each image's claims, with the treatment of crowds."""
    images, anchors, classes = predictions.logits.shape
    labels = torch.full((images, anchors), classes)
    matched = torch.full((images, anchors), -1)
    unmatched = 0
    for image, target in enumerate(targets):
        crowd = crowds(target)
        labels[image, ignored[image]] = -1
        for box in target["boxes"][crowd]:
            for anchor, (x1, y1, x2, y2) in enumerate(predictions.anchors.tolist()):
                width = max(0.0, min(x2, float(box[2])) - max(x1, float(box[0])))
                height = max(0.0, min(y2, float(box[3])) - max(y1, float(box[1])))
                if width * height > 0.5 * (x2 - x1) * (y2 - y1):
                    labels[image, anchor] = -1
        for anchor, thing in enumerate(settle(claims[image], anchors)):
            if thing >= 0:
                labels[image, anchor] = target["labels"][thing]
                matched[image, anchor] = thing
        for thing in range(len(target["boxes"])):
            unmatched += not crowd[thing] and not bool((matched[image] == thing).any())
    return Assignment(labels, matched, torch.tensor(unmatched))


def crowds(target: Target) -> Tensor:
    """Which boxes are crowd regions."""
    return target.get("iscrowd", torch.zeros(len(target["boxes"]))).bool()


def things(target: Target) -> list[int]:
    """The objects that are no crowd regions."""
    return (~crowds(target)).nonzero().flatten().tolist()


def owned(anchors: Tensor, target: Target, threshold: float, low_quality: float) -> list[tuple[int, int, float]]:
    """Claims by IoU: of the best object from the threshold on, and of each object on its best anchors."""
    objects = things(target)
    if not objects:
        return []
    iou = box_iou(target["boxes"][objects], anchors)
    claims = []
    for anchor in range(len(anchors)):
        best = int(iou[:, anchor].argmax())
        if iou[best, anchor] >= threshold:
            claims.append((objects[best], anchor, float(iou[best, anchor])))
    for row, thing in enumerate(objects):
        best_iou = iou[row].max()
        if best_iou > 0 and best_iou >= low_quality:
            claims += [(thing, a, float(best_iou)) for a in (iou[row] == best_iou).nonzero().flatten().tolist()]
    return claims


def iou_threshold(
    predictions: Predictions, targets: list[Target], positive: float = 0.5, negative: float = 0.4, low: float = 0.0
) -> Assignment:
    """IoUThreshold, one ground truth after the other."""
    claims = []
    ignored = torch.zeros(predictions.logits.shape[:2], dtype=torch.bool)
    for image, target in enumerate(targets):
        claims.append(owned(predictions.anchors, target, positive, low))
        for thing in things(target):
            ignored[image] |= box_iou(target["boxes"][thing, None], predictions.anchors)[0] >= negative
    return label(predictions, targets, claims, ignored)


def atss_claims(box: Tensor, thing: int, anchors: Tensor, level_sizes: tuple[int, ...], k: int) -> list:
    """What one object wants by ATSS."""
    centre = (anchors[:, :2] + anchors[:, 2:]) / 2
    distance = (centre - (box[:2] + box[2:]) / 2).square().sum(1)
    candidates = []
    start = 0
    for size in level_sizes:
        order = distance[start : start + size].sort(stable=True).indices
        candidates.append(order[:k] + start)
        start += size
    chosen = torch.cat(candidates)
    iou = box_iou(box[None], anchors[chosen])[0]
    wide = iou.double()
    threshold = wide.mean() + (wide.std() if len(wide) > 1 else 0)
    low, high = centre[chosen] - box[:2], box[2:] - centre[chosen]
    positive = (wide >= threshold) & (torch.cat([low, high], 1).min(1).values > 0.01)
    return [(thing, a, v) for a, v in zip(chosen[positive].tolist(), iou[positive].tolist(), strict=True)]


def atss(predictions: Predictions, targets: list[Target], k: int = 9) -> Assignment:
    """ATSS, one ground truth after the other."""
    claims = [
        [
            claim
            for thing in things(target)
            for claim in atss_claims(target["boxes"][thing], thing, predictions.anchors, predictions.level_sizes, k)
        ]
        for target in targets
    ]
    return label(predictions, targets, claims, torch.zeros(predictions.logits.shape[:2], dtype=torch.bool))
