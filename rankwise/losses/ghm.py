"""Gradient harmonizing: samples with frequent gradient norms are down-weighted."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from rankwise.distributed import all_reduce_mean
from rankwise.losses.bins import bin_gradient, bin_sums, histogram, score_bin
from rankwise.losses.inputs import Samples
from rankwise.losses.samplewise import SamplewiseLoss, ValueAndGradient, with_gradient


class GHMLoss(SamplewiseLoss):
    """GHM-C: cross entropy that down-weights samples whose gradient norm is frequent.

    The gradient norm of a sample is g = |p − target|, p = sigmoid(x). The range of g is divided into ``bins`` regions.
    The loss is the mean, over the non-empty regions, of (sum of the cross entropy in the region) / S, where S is the
    running average of its number of samples. Both easy negatives and outliers therefore have little weight.

    Gradient Harmonized Single-stage Detector, Li et al. 2019, https://arxiv.org/abs/1811.05181

    Choices: as in the published code, the mean is over the non-empty regions (the paper's text uses all ``bins``), and
    the average of an empty region does not change. Averages start at the first count, not at zero. Samples are
    counted over all processes. The averages are buffers and are only updated in training mode.

    Args:
        bins: Number of regions.
        momentum: Weight of the old value in the running averages; 0 uses only the current batch.
    """

    counts: Tensor

    needs_quality = False
    takes_weights = False

    def __init__(self, bins: int = 30, momentum: float = 0.75) -> None:
        super().__init__()
        if bins < 1 or not 0 <= momentum < 1:
            raise ValueError(f"bins must be at least 1 and momentum in [0, 1), got {bins} and {momentum}")
        self.bins = bins
        self.momentum = momentum
        self.register_buffer("counts", torch.zeros(bins, dtype=torch.float64))

    def compute(self, samples: Samples) -> ValueAndGradient:
        mirrored = samples.positives.neg()  # the gradient norm of a positive is 1 − p
        regions = score_bin(mirrored, mirrored.sigmoid(), self.bins)  # [P]
        ones = samples.only_positives(torch.ones_like(mirrored))
        count, entropy = bin_sums(samples, self.bins, softplus=True)
        now = all_reduce_mean(count + histogram(regions, self.bins, ones))
        average = torch.where(self.counts > 0, self.momentum * self.counts + (1 - self.momentum) * now, now)
        average = torch.where(now > 0, average, self.counts)
        if self.training:
            self.counts.copy_(average)
        weights = (now > 0) / average.clamp(min=1e-12) / (now > 0).sum().clamp(min=1)
        own = weights.to(mirrored.dtype)[regions] * ones

        gradient = bin_gradient(samples, weights, both=False)
        negative = (weights * entropy).sum()
        positive = (own * F.softplus(mirrored)).sum(dtype=torch.float64)
        samples.write(gradient, -own * mirrored.sigmoid())
        return with_gradient(samples, positive + negative, gradient, positive, negative)
