"""Reference PAA: one object at a time, with scikit-learn's mixtures."""

from __future__ import annotations

import warnings

import torch
from plain_assigners import label, owned, settle, things
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor
from torchvision.ops import box_iou, generalized_box_iou_loss, sigmoid_focal_loss

from rankwise.types import Assignment, Predictions, Target


def fitted(values: Tensor) -> GaussianMixture:
    """Scikit-learn's mixture of two components for one object's sorted values."""
    column = values.double().numpy()[:, None]
    mixture = GaussianMixture(
        2, weights_init=[0.5, 0.5], means_init=[column.min(0), column.max(0)], precisions_init=[[[1.0]], [[1.0]]]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return mixture.fit(column)


def stretched(scores: Tensor) -> Tensor:
    """Scores brought to 0–1."""
    spread = scores.max() - scores.min()
    return (scores - scores.min()) / (spread if spread > 0 else 1)


def clustering_input(logits: Tensor, boxes: Tensor, box: Tensor, kind: int, clustering: str, normalize: bool) -> Tensor:
    """How bad each candidate of one object is: logits [n, C], predicted boxes [n, 4], the object's box and class."""
    logits, boxes, box = logits.double(), boxes.double(), box.double()
    if clustering == "losses":
        truth = torch.zeros_like(logits)
        truth[:, kind] = 1
        focal = sigmoid_focal_loss(logits, truth, alpha=0.25, gamma=2).sum(1)
        return focal + 1.3 * generalized_box_iou_loss(boxes, box.expand_as(boxes))
    ranking, localization = logits[:, kind].sigmoid(), box_iou(boxes, box[None])[:, 0]
    if normalize:
        ranking, localization = stretched(ranking), stretched(localization)
    return {
        "scores": (1 - ranking) + (1 - localization),
        "ranking": 1 - ranking,
        "localization": 1 - localization,
    }[clustering]


def choose(values: Tensor) -> list[int]:
    """Which of one object's sorted clustering inputs are its positives."""
    if len(values) <= 2:
        return list(range(len(values)))
    column = values.double().numpy()[:, None]
    mixture = fitted(values)
    members = (mixture.predict(column) == 0).nonzero()[0]
    if not len(members):
        return [0]
    return members[: mixture.score_samples(column)[members].argmax() + 1].tolist()


def paa(
    predictions: Predictions,
    targets: list[Target],
    k: int = 9,
    candidate_iou: float = 0.1,
    clustering: str = "scores",
    normalize: bool = True,
) -> Assignment:
    """PAA, one ground truth after the other."""
    anchors = predictions.anchors
    level = torch.repeat_interleave(torch.tensor(predictions.level_sizes))
    all_claims = []
    for image, target in enumerate(targets):
        claims: list[tuple[int, int, float]] = []
        owner = torch.tensor(settle(owned(anchors, target, candidate_iou, 0), len(anchors)))
        for thing in things(target):
            box = target["boxes"][thing]
            iou = box_iou(box[None], anchors)[0]
            mine = owner == thing
            if iou.max() > 0:
                mine[iou.argmax()] = True
            candidates = mine.nonzero().flatten()
            if not len(candidates):
                continue
            values = clustering_input(
                predictions.logits[image, candidates],
                predictions.boxes[image, candidates],
                box,
                int(target["labels"][thing]),
                clustering,
                normalize,
            )
            kept = []
            for number in range(len(predictions.level_sizes)):
                here = (level[candidates] == number).nonzero().flatten()
                kept.append(here[values[here].argsort(stable=True)[:k]])
            chosen = torch.cat(kept)
            chosen = chosen[values[chosen].argsort(stable=True)]
            for place in choose(values[chosen]):
                anchor = int(candidates[chosen[place]])
                claims.append((thing, anchor, float(iou[anchor])))
        all_claims.append(claims)
    return label(predictions, targets, all_claims, torch.zeros(predictions.logits.shape[:2], dtype=torch.bool))
