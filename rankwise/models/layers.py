"""The one building block that neck and head share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class GroupNorm(nn.GroupNorm):
    """torch's, that also takes one image of 1×1 pixel with one channel a group: what comes out is the bias.

    That is what torch computes for several such images; of one alone it raises an error.
    """

    def forward(self, input: Tensor) -> Tensor:
        return torch.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class BatchNorm2d(nn.BatchNorm2d):
    """torch's, that takes its running statistics where there is but one value a channel: one image of 1×1 pixel."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.shape[0] * input.shape[2] * input.shape[3] == 1:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(input)


def normalisation(kind: str, channels: int) -> nn.Module:
    """A normalisation by its name in the settings: none, gn or bn. Groups are 32, or fewer where 32 do not divide."""
    if kind == "gn":
        return GroupNorm(math.gcd(32, channels), channels)
    return BatchNorm2d(channels) if kind == "bn" else nn.Identity()
