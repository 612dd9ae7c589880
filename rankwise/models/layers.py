"""Building blocks shared by neck and head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class GroupNorm(nn.GroupNorm):
    """torch's GroupNorm that also accepts a single 1×1 image with one channel per group; the output is then the bias.

    torch computes the same for several such images, but raises an error for a single one.
    """

    def forward(self, input: Tensor) -> Tensor:
        return torch.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class BatchNorm2d(nn.BatchNorm2d):
    """torch's BatchNorm2d that uses its running statistics if there is only one value per channel: a single 1×1
    image."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.shape[0] * input.shape[2] * input.shape[3] == 1:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(input)


def normalization(kind: str, channels: int) -> nn.Module:
    """A normalization layer by name: none, gn or bn. There are 32 groups, or fewer if 32 does not divide the
    channels."""
    if kind == "gn":
        return GroupNorm(math.gcd(32, channels), channels)
    return BatchNorm2d(channels) if kind == "bn" else nn.Identity()
