"""The head: two towers of convolutions, shared by all levels, that predict class logits and box codes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankwise.models.layers import normalization
from rankwise.models.settings import HeadSettings


class Tower(nn.Module):
    """Stacked 3x3 convolutions with normalization and ReLU; batch norm keeps separate statistics per level."""

    def __init__(self, settings: HeadSettings, in_channels: int, levels: int) -> None:
        super().__init__()
        inputs = [in_channels] + [settings.channels] * (settings.depth - 1)
        with_norm = settings.norm != "none"
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs[index], settings.channels, 3, padding=1, bias=settings.bias or not with_norm)
            for index in range(settings.depth)
        )
        own = levels if settings.norm == "bn" else 1
        self.norms = nn.ModuleList(
            nn.ModuleList(normalization(settings.norm, settings.channels) for _ in range(own))
            for _ in range(settings.depth)
        )
        for convolution in self.convolutions.children():
            assert isinstance(convolution, nn.Conv2d)
            if with_norm:
                nn.init.normal_(convolution.weight, std=0.01)
            else:  # without normalization, the initialization must preserve the scale of the signal
                nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            if convolution.bias is not None:
                nn.init.zeros_(convolution.bias)

    def forward(self, features: Tensor, level: int) -> Tensor:
        for convolution, norms in zip(self.convolutions, self.norms, strict=True):
            assert isinstance(norms, nn.ModuleList)
            norm = norms[level if len(norms) > 1 else 0]
            features = functional.relu(norm(convolution(features)), inplace=True)
        return features


class Head(nn.Module):
    """Predicts class logits and box codes at each location of each level.

    ``first_codes`` are the initial box output for the anchors of one location, [k, size of a code].
    """

    def __init__(
        self, settings: HeadSettings, in_channels: int, levels: int, classes: int, first_codes: Tensor
    ) -> None:
        super().__init__()
        self.classes = classes
        self.anchors_per_location, self.code_size = first_codes.shape
        self.class_tower = Tower(settings, in_channels, levels)
        self.box_tower = Tower(settings, in_channels, levels)
        width = settings.channels if settings.depth else in_channels
        self.class_output = nn.Conv2d(width, self.anchors_per_location * classes, 3, padding=1)
        self.box_output = nn.Conv2d(width, first_codes.numel(), 3, padding=1)
        self.scales = nn.Parameter(torch.ones(levels), requires_grad=settings.level_scale)
        for output in (self.class_output, self.box_output):
            nn.init.normal_(output.weight, std=0.01)
        assert self.class_output.bias is not None
        assert self.box_output.bias is not None
        nn.init.constant_(self.class_output.bias, -math.log((1 - settings.prior) / settings.prior))
        with torch.no_grad():
            self.box_output.bias.copy_(first_codes.flatten())

    def forward(self, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Logits [B, A, C] and codes [B, A, size of a code] over the anchors of all levels, finest level first."""
        logits, codes = [], []
        for index, level in enumerate(levels):
            class_output = self.class_output(self.class_tower(level, index))
            box_output = self.box_output(self.box_tower(level, index)) * self.scales[index]
            logits.append(_by_anchor(class_output, self.classes))
            codes.append(_by_anchor(box_output, self.code_size))
        return torch.cat(logits, dim=1), torch.cat(codes, dim=1)


def _by_anchor(output: Tensor, size: int) -> Tensor:
    """[B, k · size, H, W] to [B, H · W · k, size]: only a view if the output is channels-last or k is 1."""
    batch = output.shape[0]
    return output.flatten(2).transpose(1, 2).reshape(batch, -1, size)
