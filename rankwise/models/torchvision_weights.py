"""Converts the weights of torchvision's RetinaNet and FCOS to detectors of rankwise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rankwise.errors import ModelError
from rankwise.models.backbone import read_tensors
from rankwise.models.pretrained import is_reachable
from rankwise.models.settings import AnchorSettings, BackboneSettings, DetectorSettings, HeadSettings, NeckSettings
from rankwise.models.weights import Content

#: Prefixes of weight names in torchvision, and their names here. The centerness branch of FCOS is dropped.
_NAMES = (
    (r"backbone\.body\.", "backbone.net."),
    (r"backbone\.fpn\.inner_blocks\.(\d)\.0\.", r"neck.lateral.\1."),
    (r"backbone\.fpn\.layer_blocks\.(\d)\.0\.", r"neck.output.\1."),
    (r"backbone\.fpn\.extra_blocks\.p6\.", "neck.extra.0."),
    (r"backbone\.fpn\.extra_blocks\.p7\.", "neck.extra.1."),
    (r"head\.classification_head\.cls_logits\.", "head.class_output."),
    (r"head\.regression_head\.bbox_reg\.", "head.box_output."),
)
_TOWERS = {"classification": "class_tower", "regression": "box_tower"}
_DROPPED = "head.regression_head.bbox_ctrness."


def _retinanet_anchors() -> AnchorSettings:
    """Three sizes and three ratios per level, ordered by ratio and rounded to pixels as in torchvision."""
    levels = []
    for side in (32, 64, 128, 256, 512):
        sides = [side, int(side * 2 ** (1 / 3)), int(side * 2 ** (2 / 3))]
        halves = [(root, size) for root in (0.5**0.5, 1.0, 2**0.5) for size in sides]
        levels.append(tuple((2.0 * round(size / root / 2), 2.0 * round(size * root / 2)) for root, size in halves))
    return AnchorSettings(levels=tuple(levels), offset=0.0)


#: The first stages and all batch norms stay frozen, as in torchvision's fine-tuning.
_BACKBONE = BackboneSettings("resnet50", frozen_stages=2, frozen_norm=True)
SETTINGS = {
    "retinanet_resnet50_fpn_v2": DetectorSettings(
        backbone=_BACKBONE,
        neck=NeckSettings(extra_from="c5"),
        head=HeadSettings(level_scale=False, delta_std=(1.0, 1.0, 1.0, 1.0)),
        anchors=_retinanet_anchors(),
    ),
    "fcos_resnet50_fpn": DetectorSettings(
        backbone=_BACKBONE,
        neck=NeckSettings(extra_from="p5"),
        head=HeadSettings(level_scale=False, coding="ltrb_relu", bias=True),
        anchors=AnchorSettings(offset=0.0),
    ),
}


def read_torchvision(spec: str) -> Content:
    """Loads a torchvision detector, with its COCO weights (downloaded by torchvision) or with weights from a file.

    ``spec`` is such as ``retinanet_resnet50_fpn_v2``, or ``retinanet_resnet50_fpn_v2=FILE.pth``.
    """
    from torchvision.models import get_model_weights

    name, _, file = spec.partition("=")
    if name not in SETTINGS:
        raise ModelError(f"--init torchvision:{name}: choose {' or '.join(SETTINGS)}")
    weights = get_model_weights(name).DEFAULT
    classes = [str(category) for category in weights.meta["categories"]]
    if file:
        return convert(name, read_tensors(Path(file)), classes)
    cached = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
    if not cached.is_file() and not is_reachable(weights.url):
        raise ModelError(
            f"--init torchvision:{name}: {weights.url} does not answer. Download it elsewhere and pass the file: "
            f"--init torchvision:{name}=FILE"
        )
    return convert(name, weights.get_state_dict(check_hash=True), classes)


def convert(name: str, tensors: Mapping[str, Tensor], classes: list[str]) -> Content:
    """Renames the weights of a torchvision detector to those of a :class:`Detector`; ``classes`` has the background
    first.

    Logits and boxes equal those of torchvision if each side of the padded image is a multiple of 128. At other sizes,
    torchvision rounds the stride of the coarsest levels down.
    """
    settings = SETTINGS[name]
    own = {_renamed(key): tensor for key, tensor in tensors.items() if not key.startswith(_DROPPED)}
    own["head.scales"] = torch.ones(len(settings.backbone.strides) + settings.neck.extra_levels)
    # The background also has a logit, and several labels are called N/A, but names must be unique.
    named = [label if classes.count(label) == 1 else f"{label} {index}" for index, label in enumerate(classes)]
    return Content(own, settings, named)


def _renamed(key: str) -> str:
    tower = re.fullmatch(r"head\.(classification|regression)_head\.conv\.(\d+)\.(?:(\d)\.)?(weight|bias)", key)
    if tower:
        # RetinaNet has blocks of convolution and norm; FCOS has one flat sequence of convolution, norm and ReLU.
        block, part = (int(tower[2]), int(tower[3])) if tower[3] else divmod(int(tower[2]), 3)
        where = f"norms.{block}.0" if part else f"convolutions.{block}"
        return f"head.{_TOWERS[tower[1]]}.{where}.{tower[4]}"
    for pattern, name in _NAMES:
        renamed, count = re.subn(f"^{pattern}", name, key)
        if count:
            return renamed
    raise ModelError(f"{key} is not a weight of the torchvision detectors that rankwise knows")
