"""PAA: positives by clustering the candidates of each object into two groups."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch

from rankwise.assign.base import Assigner, Claims
from rankwise.assign.candidates import Candidates, best_of_levels
from rankwise.assign.gmm import fit_mixtures
from rankwise.boxes import paired_iou

if TYPE_CHECKING:
    from torch import Tensor

    from rankwise.assign.objects import Objects
    from rankwise.types import Predictions

Clustering = Literal["scores", "ranking", "localization", "losses"]


@dataclass(frozen=True)
class Clusters:
    """The clusters of the candidates of every object, best first in every row.

    Attributes:
        candidates: All candidates of the batch.
        candidate: Indices of the clustered candidates, int64 [T, n], -1 for padding.
        values: The clustering input, float64 [T, n].
        lower: Members of the better cluster, bool [T, n].
        positive: Those that their object claims as positives, bool [T, n].
    """

    candidates: Candidates
    candidate: Tensor
    values: Tensor
    lower: Tensor
    positive: Tensor


class PAA(Assigner):
    """Probabilistic anchor assignment; ``PAA()`` is the PAA* of the APE paper.

    See https://arxiv.org/abs/2007.08103. The candidates of an object are the anchors that overlap it more than other
    objects, with an IoU of at least ``candidate_iou``, and its best anchor. A mixture of two Gaussians is fitted to the
    clustering inputs of the best ``k`` candidates of every level. The members of the lower component are positive, in
    order of the input, up to and including the most likely one under the mixture. All other anchors are negative.

    - The clustering input, smaller is better, is (1 − ranking score) + (1 − localization score): the sigmoid of the
      logit of the class of the object, and the IoU of the predicted box. Each score is first normalized to 0–1 over
      *all* candidates of the object, as in the published code, because the selection of the best ``k`` already uses the
      input. Equal scores become 0.
    - An object with one or two candidates keeps them as positives. If the lower component has no members, which only
      happens if the candidates differ by less than a thousandth, the best candidate is positive.
    - If several objects claim an anchor, the one with the best anchor IoU gets it. An object that loses all its claims
      is counted in ``unmatched``.

    Args:
        k: Maximum number of candidates per level.
        candidate_iou: Minimum IoU of anchor and object for a candidate.
        clustering: The clustering input: "scores" (both), only the "ranking" or only the "localization" score, or the
            "losses" of the original PAA: focal loss (α 0.25, γ 2, summed over the classes) plus 1.3 times GIoU loss.
        normalize: Normalize the scores to 0–1 per object. Losses are never normalized, as in the original.
    """

    def __init__(
        self,
        k: int = 9,
        candidate_iou: float = 0.1,
        clustering: Clustering = "scores",
        normalize: bool = True,
    ) -> None:
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be an integer of at least 1, not {k}")
        if not 0 < candidate_iou <= 1:
            raise ValueError(f"candidate_iou must be above 0 and at most 1, not {candidate_iou}")
        if clustering not in get_args(Clustering):
            raise ValueError(f"clustering must be one of {', '.join(get_args(Clustering))}, not {clustering!r}")
        if not isinstance(normalize, bool):
            raise ValueError(f"normalize must be True or False, not {normalize!r}")
        self.k = k
        self.candidate_iou = candidate_iou
        self.clustering = clustering
        self.normalize = normalize

    def claims(self, predictions: Predictions, objects: Objects) -> Claims:
        clusters = self.clusters(predictions, objects)
        anchor = clusters.candidates.anchor[clusters.candidate]  # [T, n]; arbitrary for padding
        iou = paired_iou(objects.boxes.unsqueeze(1), predictions.anchors.float()[anchor])
        iou = torch.where(clusters.positive, iou, 0)
        owner = torch.arange(len(objects), device=iou.device).unsqueeze(1).expand_as(anchor)
        return Claims(owner.flatten(), anchor.flatten(), iou.flatten())

    @torch.no_grad()
    def clusters(self, predictions: Predictions, objects: Objects) -> Clusters:
        """The candidates of every object and the clusters they fall into, before objects compete for anchors."""
        candidates = Candidates.of(objects, predictions.anchors.float(), self.candidate_iou)
        values = self.clustering_input(candidates, predictions, objects)
        candidate, values = best_of_levels(candidates, values, len(objects), predictions.level_sizes, self.k)
        valid = candidate >= 0
        lower, likelihood = fit_mixtures(values, valid).assess(values)
        lower &= valid
        peak = likelihood.masked_fill(~lower, -math.inf).argmax(1, keepdim=True)
        column = torch.arange(candidate.shape[1], device=candidate.device)
        few = valid.sum(1, keepdim=True) <= 2
        chosen = torch.where(lower.any(1, keepdim=True), lower & (column <= peak), column == 0)
        return Clusters(candidates, candidate, values, lower, valid & (few | chosen))

    def clustering_input(self, candidates: Candidates, predictions: Predictions, objects: Objects) -> Tensor:
        """The clustering input of each candidate, float64 [N].

        Args:
            candidates: The candidates of all objects.
            predictions: The predictions for the batch.
            objects: The objects of the batch.
        """
        if self.clustering == "losses":
            return candidates.losses(predictions, objects)
        ranking, localization = candidates.scores(predictions, objects)
        if self.normalize:
            ranking, localization = candidates.normalized(torch.stack([ranking, localization]), len(objects))
        if self.clustering == "ranking":
            return 1 - ranking
        if self.clustering == "localization":
            return 1 - localization
        return (1 - ranking) + (1 - localization)
