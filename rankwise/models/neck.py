"""The feature pyramid (https://arxiv.org/abs/1612.03144), with coarser levels on top."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankwise.models.layers import normalization
from rankwise.models.settings import NeckSettings


class FeaturePyramid(nn.Module):
    """The feature pyramid: all levels have the same number of channels and include coarser features."""

    def __init__(self, settings: NeckSettings, in_channels: Sequence[int], in_strides: Sequence[int]) -> None:
        super().__init__()
        channels = settings.channels
        # A bias before a normalization has no effect.
        bias = settings.norm == "none"

        def block(inputs: int, kernel: int, stride: int = 1) -> nn.Module:
            convolution = nn.Conv2d(inputs, channels, kernel, stride, kernel // 2, bias=bias)
            nn.init.kaiming_uniform_(convolution.weight, a=1)
            if convolution.bias is not None:
                nn.init.zeros_(convolution.bias)
            return convolution if bias else nn.Sequential(convolution, normalization(settings.norm, channels))

        self.lateral = nn.ModuleList(block(inputs, 1) for inputs in in_channels)
        self.output = nn.ModuleList(block(channels, 3) for _ in in_channels)
        first = in_channels[-1] if settings.extra_from == "c5" else channels
        self.extra = nn.ModuleList(
            block(channels if index else first, 3, stride=2) for index in range(settings.extra_levels)
        )
        self.extra_from_backbone = settings.extra_from == "c5"
        self.strides = (*in_strides, *(in_strides[-1] * 2 ** (index + 1) for index in range(settings.extra_levels)))

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """The levels from the backbone features, both finest first."""
        merged = [lateral(feature) for lateral, feature in zip(self.lateral, features, strict=True)]
        for index in range(len(merged) - 2, -1, -1):
            size = merged[index].shape[-2:]  # a factor of 2 would be off by one for odd sizes
            merged[index] = merged[index] + functional.interpolate(merged[index + 1], size=size, mode="nearest")
        levels = [output(level) for output, level in zip(self.output, merged, strict=True)]
        top = features[-1] if self.extra_from_backbone else levels[-1]
        for index, extra in enumerate(self.extra):
            if top.shape[-1] == 1 and not torch.compiler.is_compiling():
                # Workaround: for width 1 and stride 2, torch 2.15 on a CPU does not write the bfloat16 gradient of the
                # weight and returns uninitialized memory.
                top = functional.pad(top, (0, 1))
            top = extra(functional.relu(top) if index else top)
            levels.append(top)
        return levels
