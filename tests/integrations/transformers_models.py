"""The other detectors of transformers with random weights, as small as they come."""

from __future__ import annotations

from functools import partial
from typing import Any

from integration_models import CLASSES, DETR, ENCODER_DECODER, HGNET, RESNET
from transformers import (
    BertConfig,
    ConditionalDetrConfig,
    ConditionalDetrForObjectDetection,
    ConditionalDetrForSegmentation,
    DabDetrConfig,
    DabDetrForObjectDetection,
    DeformableDetrConfig,
    DeformableDetrForObjectDetection,
    Deimv2Config,
    Deimv2ForObjectDetection,
    DetrConfig,
    DetrForSegmentation,
    HGNetV2Config,
    LwDetrConfig,
    LwDetrForObjectDetection,
    LwDetrViTConfig,
    ResNetConfig,
    RfDetrConfig,
    RfDetrDinov2Config,
    RfDetrForInstanceSegmentation,
    RfDetrForObjectDetection,
    RTDetrConfig,
    RTDetrForObjectDetection,
    RTDetrResNetConfig,
    TableTransformerConfig,
    TableTransformerForObjectDetection,
    YolosConfig,
    YolosForObjectDetection,
)

GROUPS = 3
#: Of LW-DETR and RF-DETR, which train several groups of queries at once.
GROUPED: dict[str, Any] = {
    "num_labels": CLASSES,
    "d_model": 64,
    "decoder_layers": 2,
    "decoder_ffn_dim": 64,
    "decoder_self_attention_heads": 4,
    "decoder_cross_attention_heads": 4,
    "num_queries": 20,
    "group_detr": GROUPS,
    "c2f_num_blocks": 1,
}
VIT: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "out_indices": [1, 2]}
VIT |= {"image_size": 96, "patch_size": 16}


def last_level() -> ResNetConfig:
    return ResNetConfig(**RESNET | {"out_features": ["stage4"]})


def table_transformer() -> TableTransformerForObjectDetection:
    return TableTransformerForObjectDetection(TableTransformerConfig(backbone_config=last_level(), **DETR))


def conditional_detr() -> ConditionalDetrForObjectDetection:
    return ConditionalDetrForObjectDetection(ConditionalDetrConfig(backbone_config=last_level(), **DETR))


def dab_detr() -> DabDetrForObjectDetection:
    settings = {name: value for name, value in DETR.items() if name != "d_model"} | {"hidden_size": 64}
    return DabDetrForObjectDetection(DabDetrConfig(backbone_config=last_level(), **settings))


def two_stage_deformable_detr() -> DeformableDetrForObjectDetection:
    settings = DETR | {"two_stage": True, "with_box_refine": True, "two_stage_num_proposals": 30}
    config = DeformableDetrConfig(backbone_config=ResNetConfig(**RESNET), num_feature_levels=3, **settings)
    return DeformableDetrForObjectDetection(config)


def yolos() -> YolosForObjectDetection:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = YolosConfig(num_labels=CLASSES, image_size=[96, 96], num_detection_tokens=20, **sizes)
    return YolosForObjectDetection(config)


def rt_detr() -> RTDetrForObjectDetection:
    backbone = {"backbone_config": RTDetrResNetConfig(**RESNET), "encoder_in_channels": [32, 64, 128]}
    return RTDetrForObjectDetection(RTDetrConfig(freeze_backbone_batch_norms=False, **backbone, **ENCODER_DECODER))


def deim_v2() -> Deimv2ForObjectDetection:
    backbone = HGNetV2Config(**HGNET)
    settings = ENCODER_DECODER | {"encoder_in_channels": [64, 64, 128], "freeze_backbone_batch_norms": False}
    return Deimv2ForObjectDetection(Deimv2Config(backbone_config=backbone, **settings))


def lw_detr() -> LwDetrForObjectDetection:
    backbone = LwDetrViTConfig(pretrain_image_size=96, num_windows=4, window_block_indices=[0], **VIT)
    return LwDetrForObjectDetection(LwDetrConfig(backbone_config=backbone, projector_scale_factors=[1.0], **GROUPED))


def rf_detr() -> RfDetrForObjectDetection:
    return RfDetrForObjectDetection(RfDetrConfig(backbone_config=RfDetrDinov2Config(num_windows=1, **VIT), **GROUPED))


def grounding_dino(kind: Any) -> Any:
    text = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=1100)
    sizes = {"encoder_layers": 1, "encoder_ffn_dim": 64, "encoder_attention_heads": 4, "max_text_len": 16}
    sizes |= {"decoder_layers": 2, "decoder_ffn_dim": 64, "decoder_attention_heads": 4}
    backbone = {"backbone_config": ResNetConfig(**RESNET), "num_feature_levels": 3, "num_queries": 20, "d_model": 64}
    settings = {"text_config": text, "auxiliary_loss": True, "two_stage": True, "text_enhancer_dropout": 0.0}
    return kind(kind.config_class(**backbone, **sizes, **settings, dropout=0.0, fusion_droppath=0.0))


def segmentation(kind: Any, config: Any) -> Any:
    backbone = ResNetConfig(**RESNET | {"out_features": ["stage1", "stage2", "stage3", "stage4"]})
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}  # the mask head needs multiples of eight
    return kind(config(backbone_config=backbone, **DETR | heads))


def rf_detr_segmentation() -> RfDetrForInstanceSegmentation:
    return RfDetrForInstanceSegmentation(rf_detr().config)


SEGMENTATION = {
    "detr": partial(segmentation, DetrForSegmentation, DetrConfig),
    "conditional_detr": partial(segmentation, ConditionalDetrForSegmentation, ConditionalDetrConfig),
    "rf_detr": rf_detr_segmentation,
}

MORE = {
    "table_transformer": table_transformer,
    "yolos": yolos,
    "conditional_detr": conditional_detr,
    "dab_detr": dab_detr,
    "two_stage_deformable_detr": two_stage_deformable_detr,
    "rt_detr": rt_detr,
    "deim_v2": deim_v2,
    "lw_detr": lw_detr,
    "rf_detr": rf_detr,
}
