"""Detectors of torchvision and transformers with random weights, small enough to train within a test."""

from __future__ import annotations

import os
from collections import OrderedDict
from functools import partial
from itertools import pairwise
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # a config must do: nothing may be fetched

from torch import Tensor, nn
from torchvision.models.detection import FCOS, RetinaNet, ssdlite320_mobilenet_v3_large
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.detection.ssd import SSD
from transformers import (
    DeformableDetrConfig,
    DeformableDetrForObjectDetection,
    DetrConfig,
    DetrForObjectDetection,
    DFineConfig,
    DFineForObjectDetection,
    HGNetV2Config,
    ResNetConfig,
    RTDetrResNetConfig,
    RTDetrV2Config,
    RTDetrV2ForObjectDetection,
)

CLASSES = 8
HGNET: dict[str, Any] = {
    "stem_channels": [3, 16, 16],
    "stage_in_channels": [16, 32, 64, 64],
    "stage_mid_channels": [8, 16, 32, 32],
    "stage_out_channels": [32, 64, 64, 128],
    "stage_num_blocks": [1, 1, 1, 1],
    "stage_numb_of_layers": [2, 2, 2, 2],
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [32, 64, 64, 128],
    "embedding_size": 16,
    "out_features": ["stage2", "stage3", "stage4"],
}
RESNET: dict[str, Any] = {
    "embedding_size": 16,
    "hidden_sizes": [16, 32, 64, 128],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage2", "stage3", "stage4"],
}
ENCODER_DECODER: dict[str, Any] = {
    "num_labels": CLASSES,
    "encoder_hidden_dim": 64,
    "encoder_ffn_dim": 128,
    "encoder_attention_heads": 4,
    "d_model": 64,
    "decoder_in_channels": [64, 64, 64],
    "decoder_ffn_dim": 128,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "num_queries": 40,
    "num_denoising": 20,
}
DETR: dict[str, Any] = {
    "num_labels": CLASSES,
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_queries": 30,
    "auxiliary_loss": True,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,  # versions before 5 have one by default, beside the one that is given
}


class Backbone(nn.Module):
    """A few convolutions that give levels of stride 8, 16 and 32."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        widths = [3, 16, 32, channels, channels, channels]
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *self._layer(before, after, stride=2),
                *self._layer(after, after, stride=1),
            )
            for before, after in pairwise(widths)
        )
        self.out_channels = channels

    @staticmethod
    def _layer(before: int, after: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        levels: OrderedDict[str, Tensor] = OrderedDict()
        for number, block in enumerate(self.blocks):
            images = block(images)
            if number >= 2:
                levels[str(number)] = images
        return levels


def retinanet(size: int = 96) -> RetinaNet:
    """A RetinaNet with three anchors a location, for images of so many pixels a side."""
    anchors = AnchorGenerator(((20,), (40,), (80,)), ((0.5, 1.0, 2.0),) * 3)
    head = RetinaNetHead(64, 3, CLASSES, norm_layer=partial(nn.GroupNorm, 16))
    return RetinaNet(Backbone(), CLASSES, anchor_generator=anchors, head=head, min_size=size, max_size=size)


def fcos(size: int = 96) -> FCOS:
    """An FCOS of three levels."""
    anchors = AnchorGenerator(((8,), (16,), (32,)), ((1.0,),) * 3)
    return FCOS(Backbone(), CLASSES, anchor_generator=anchors, min_size=size, max_size=size)


def ssdlite() -> SSD:
    """The SSDLite of torchvision, for 320 pixels; its labels begin at 1."""
    return ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=CLASSES + 1)


def rt_detr_v2() -> RTDetrV2ForObjectDetection:
    """An RT-DETR v2 with two decoder layers."""
    return RTDetrV2ForObjectDetection(
        RTDetrV2Config(
            backbone_config=RTDetrResNetConfig(**RESNET),
            encoder_in_channels=[32, 64, 128],
            freeze_backbone_batch_norms=False,
            **ENCODER_DECODER,
        )
    )


def d_fine() -> DFineForObjectDetection:
    """A D-FINE with two decoder layers."""
    backbone = HGNetV2Config(**HGNET)
    return DFineForObjectDetection(
        DFineConfig(
            backbone_config=backbone,
            encoder_in_channels=[64, 64, 128],
            freeze_backbone_batch_norms=False,
            **ENCODER_DECODER,
        )
    )


def deformable_detr() -> DeformableDetrForObjectDetection:
    """A deformable DETR with two decoder layers, both with losses."""
    config = DeformableDetrConfig(backbone_config=ResNetConfig(**RESNET), num_feature_levels=3, **DETR)
    return DeformableDetrForObjectDetection(config)


def detr() -> DetrForObjectDetection:
    """A DETR, which reports a softmax with the background as its last class."""
    backbone = ResNetConfig(**RESNET | {"out_features": ["stage4"]})
    return DetrForObjectDetection(DetrConfig(backbone_config=backbone, **DETR))


TORCHVISION = {"retinanet": retinanet, "fcos": fcos, "ssdlite": ssdlite}
TRANSFORMERS = {"rt_detr_v2": rt_detr_v2, "d_fine": d_fine, "deformable_detr": deformable_detr, "detr": detr}
