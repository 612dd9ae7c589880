"""Positives by what the detector itself makes of them: two clusters of candidates for each object."""

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
    """What the candidates of every object fell into, best first in every row.

    Attributes:
        candidates: All candidates of the batch.
        candidate: The clustered ones, as indices into the candidates, int64 [T, n], -1 where an object has no more.
        values: The clustering input, float64 [T, n].
        lower: Members of the better cluster, bool [T, n].
        positive: Those of them that their object wants as its positives, bool [T, n].
    """

    candidates: Candidates
    candidate: Tensor
    values: Tensor
    lower: Tensor
    positive: Tensor


class PAA(Assigner):
    """Makes positive what the detector already ranks and localises well: ``PAA()`` is the PAA* of the APE paper.

    After Probabilistic Anchor Assignment (https://arxiv.org/abs/2007.08103). Candidates of an object are the anchors
    that overlap with it best, from an IoU of ``candidate_iou`` on, and its own best anchor. Of these the best ``k`` of
    every level by the clustering input are taken, and a mixture of two Gaussians is fitted to their inputs. Positive
    are the members of the lower component, in order of the input, up to and including the one that is most likely under
    the mixture (the first of equals). All other anchors are negative.

    - The clustering input, smaller is better, is (1 − ranking score) + (1 − localisation score): the sigmoid of the
      logit of the object's class, and the IoU of the predicted box. Each score is first normalised to 0–1 over *all*
      candidates of the object, as in the published code: the choice of the best ``k`` already reads the input. Where
      all are equal they become 0.
    - An object with one or two candidates keeps them as its positives. One whose lower component has no members, which
      takes candidates that are equal but for less than a thousandth, keeps its best candidate.
    - An anchor wanted by several objects goes to the one with the best anchor IoU. An object that so loses all it
      wanted is counted in the assignment's ``unmatched``.

    Args:
        k: How many candidates to take from each level at most.
        candidate_iou: IoU of anchor and object from which on an anchor is a candidate.
        clustering: What to cluster: "scores" (both), only the "ranking" or only the "localization" score, or the
            "losses" of the original PAA: focal loss (α 0.25, γ 2, summed over the classes) plus 1.3 times GIoU loss.
        normalize: Bring the scores to 0–1 for each object. Losses are always taken as they are, like in the original.
    """

    def __init__(
        self,
        k: int = 9,
        candidate_iou: float = 0.1,
        clustering: Clustering = "scores",
        normalize: bool = True,
    ) -> None:
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        if not 0 < candidate_iou <= 1:
            raise ValueError(f"candidate_iou must be above 0 and at most 1, not {candidate_iou}")
        if clustering not in get_args(Clustering):
            raise ValueError(f"clustering must be one of {', '.join(get_args(Clustering))}, not {clustering!r}")
        self.k = k
        self.candidate_iou = candidate_iou
        self.clustering = clustering
        self.normalize = normalize

    def claims(self, predictions: Predictions, objects: Objects) -> Claims:
        clusters = self.clusters(predictions, objects)
        anchor = clusters.candidates.anchor[clusters.candidate]  # [T, n]; any where there is no candidate
        iou = paired_iou(objects.boxes.unsqueeze(1), predictions.anchors.float()[anchor])
        iou = torch.where(clusters.positive, iou, 0)
        owner = torch.arange(len(objects), device=iou.device).unsqueeze(1).expand_as(anchor)
        return Claims(owner.flatten(), anchor.flatten(), iou.flatten())

    @torch.no_grad()
    def clusters(self, predictions: Predictions, objects: Objects) -> Clusters:
        """The candidates of every object and the clusters they fall into, before objects compete for anchors.

        Args:
            predictions: The detector's output for the batch.
            objects: The objects of the batch.
        """
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
        """How bad each candidate is for its object, float64 [N].

        Args:
            candidates: The candidates of all objects.
            predictions: The detector's output for the batch.
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
