"""RankDetNet's losses: positives rank above negatives, and better boxes above worse ones."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from rankwise.losses.bins import bin_gradient, bin_sums
from rankwise.losses.inputs import Samples, check_choice
from rankwise.losses.samplewise import SamplewiseLoss, ValueAndGradient, with_gradient
from rankwise.pairsums import product_sums

#: Pairs of positives per block of the dense method: 4 million take 32 MB.
PAIRS = 1 << 22

Method = Literal["fast", "dense"]


class RankDetLoss(SamplewiseLoss):
    """RankDetNet's two ranking losses: positives above negatives, and positives in order of quality.

    Both use pairs of scores f = sigmoid(x) with an error d per pair, and both are the sum of (d / Σ d) · d: each pair
    is weighted by its error, which is a constant for the gradient.

    - Ranking: d = exp(α · (f_v − f_u)) for positives u and negatives v. The negatives are first grouped into ``groups``
      equal bins of the score range, and each group is represented by its mean score, so that the many easy negatives do
      not outweigh the hard ones.
    - IoU-guided: d = exp(−α · (f_i − f_j)(q_i − q_j)) for all pairs of positives of the same class, q their qualities.

    RankDetNet: Delving Into Ranking Constraints for Object Detection, Liu et al. 2021,
    https://openaccess.thecvf.com/content/CVPR2021/html/Liu_RankDetNet_Delving_Into_Ranking_Constraints_for_Object_Detection_CVPR_2021_paper.html

    Choices: negatives are all samples that are not positive, including the other classes of positive rows, which also
    covers the paper's ranking within each class. The paper only pairs positives of the same pyramid level, which a loss
    does not know here. Only the scores get gradients. The paper starts from a detector warmed up with
    focal loss, because gradients are small if scores are near 0. All samples of this process are ranked together.

    Args:
        alpha: α, the steepness of the error of a pair.
        groups: Number of groups of negatives. With few groups, an untrained head learns slowly.
        method: "fast" computes the pairs of positives exactly at linear cost; "dense" computes them one by one, as in
            the definition.
    """

    takes_weights = False
    needs_sync = True  # for the pairs of positives
    log = ("ranking", "iou_guided")

    def __init__(self, alpha: float = 1.0, groups: int = 100, method: Method = "fast") -> None:
        super().__init__()
        if not 0 < alpha <= 10 or groups < 1:
            raise ValueError(f"alpha must be in (0, 10] and groups at least 1, got {alpha} and {groups}")
        self.alpha = alpha
        self.groups = groups
        check_choice("method", method, get_args(Method))
        self.method: Method = method

    def compute(self, samples: Samples) -> ValueAndGradient:
        detached, scores = samples.values, samples.positives.double().sigmoid()
        count, score = bin_sums(samples, self.groups)
        mean = score / count.clamp(min=1)
        ranking, pull, push = self._ranking(scores, mean, count > 0)
        among, sort = self._sorting(scores, samples.positive_quality.double(), samples.classes, detached.shape[1])
        gradient = bin_gradient(samples, push / count.clamp(min=1), both=True)
        samples.write(gradient, (pull + sort) * scores * (-samples.positives.double()).sigmoid())
        return with_gradient(samples, ranking + among, gradient, ranking, among)

    def _ranking(self, scores: Tensor, mean: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The ranking loss and its gradients for the scores of positives [P] and the mean scores of groups [groups]."""
        if self.method == "dense":
            errors = torch.exp(self.alpha * (mean - scores[:, None])) * present  # [P, groups]
            terms = errors.square() / errors.sum().clamp(min=1e-12)
            return terms.sum(), -self.alpha * terms.sum(1), self.alpha * terms.sum(0)
        # Each error is a product of a factor of the positive and a factor of the group, and so are squares and sums.
        low, high = torch.exp(-self.alpha * scores), torch.exp(self.alpha * mean) * present
        total = (low.sum() * high.sum()).clamp(min=1e-12)
        of_positives = low.square() * (high.square().sum() / total)
        of_groups = high.square() * (low.square().sum() / total)
        return of_groups.sum(), -self.alpha * of_positives, self.alpha * of_groups

    def _sorting(self, scores: Tensor, quality: Tensor, classes: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """The IoU-guided loss and its gradient for the scores of positives [P]."""
        values = torch.stack([torch.ones_like(quality), quality], 1)
        sums = self._dense_sums if self.method == "dense" else product_sums
        errors = sums(scores, quality, classes, number, self.alpha, values[:, :1])[:, 0]
        squares = sums(scores, quality, classes, number, 2 * self.alpha, values)
        alike = torch.bincount(classes, minlength=number)
        has_pairs = (alike > 1).any()
        # A positive does not form a pair with itself, where the error is exactly 1 and the gradient 0.
        total = torch.where(has_pairs, (errors - 1).sum(), 1.0)
        loss = torch.where(has_pairs, (squares[:, 0] - 1).sum() / total, 0.0)
        return loss, -2 * self.alpha * (quality * squares[:, 0] - squares[:, 1]) / total

    def _dense_sums(self, f: Tensor, q: Tensor, group: Tensor, groups: int, a: float, values: Tensor) -> Tensor:
        result = torch.empty_like(values)
        rows = max(1, PAIRS // max(1, len(f)))
        for first in range(0, len(f), rows):
            block = slice(first, first + rows)
            errors = torch.exp(-a * (f[block, None] - f) * (q[block, None] - q))
            result[block] = (errors * (group[block, None] == group)) @ values
        return result
