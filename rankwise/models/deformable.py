"""Deformable convolution v2 (https://arxiv.org/abs/1811.11168) instead of plain convolutions in a backbone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import deform_conv2d

from rankwise.errors import ModelError


class DeformableConv2d(nn.Module):
    """A modulated deformable convolution: it learns offsets and weights of the sampling locations.

    It uses the weight and bias of the convolution it replaces and initially gives the same output: the offsets start at
    0 and the modulation (2 · sigmoid) at 1, so pretrained weights remain valid.
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.weight = convolution.weight
        self.bias = convolution.bias
        self.stride = convolution.stride
        self.padding = convolution.padding
        self.dilation = convolution.dilation
        self.taps = convolution.kernel_size[0] * convolution.kernel_size[1]
        # torch declares these as tuples of any length
        shape: Any = (convolution.kernel_size, convolution.stride, convolution.padding, convolution.dilation)
        self.offset = nn.Conv2d(convolution.in_channels, 3 * self.taps, *shape)
        nn.init.zeros_(self.offset.weight)
        assert self.offset.bias is not None
        nn.init.zeros_(self.offset.bias)

    def forward(self, features: Tensor) -> Tensor:
        # The operator has no mixed-precision kernels, and offsets need more than 8 bits.
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(self.weight.dtype)
            output = self.offset(features)
            offsets, mask = output[:, : 2 * self.taps], 2 * output[:, 2 * self.taps :].sigmoid()
            return deform_conv2d(
                features, offsets, self.weight, self.bias, self.stride, self.padding, self.dilation, mask
            )


def make_deformable(backbone: nn.Module, stages: Sequence[int]) -> None:
    """Replaces the 3x3 convolutions in some stages, 2 to 5, of a timm ResNet, ResNeXt or Res2Net; stage s has stride
    2**s."""
    for stage in stages:
        name = f"layer{stage - 1}"
        layers = getattr(backbone, name, None)
        if layers is None:
            raise ModelError(
                f"backbone.deformable_stages has {stage}, but this backbone has no {name}: deformable convolution is "
                f"for stages 2 to 5 of timm's ResNet family (resnet…, resnext…, res2net…)"
            )
        for parent in list(layers.modules()):
            for key, child in list(parent.named_children()):
                if isinstance(child, nn.Conv2d) and child.kernel_size == (3, 3):
                    setattr(parent, key, DeformableConv2d(child))
