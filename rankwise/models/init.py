"""Initialization from a trained detector: all weights; in the class layer, those of classes with the same name."""

from __future__ import annotations

from pathlib import Path

import torch

from rankwise.errors import ModelError
from rankwise.models import weights
from rankwise.models.detector import Detector

_CLASS_LAYER = ("head.class_output.weight", "head.class_output.bias")
_TORCHVISION = "torchvision:"


def read_detector(spec: str) -> weights.Content:
    """The weights, settings and classes of a run folder, a .safetensors file, ``torchvision:NAME`` or
    ``torchvision:NAME=FILE``."""
    if spec.startswith(_TORCHVISION):
        from rankwise.models.torchvision_weights import read_torchvision

        return read_torchvision(spec.removeprefix(_TORCHVISION))
    return weights.read(weights.find(Path(spec)))


@torch.no_grad()
def start_from(detector: Detector, content: weights.Content, spec: str) -> str:
    """Copies the weights of a trained detector; returns a description of what happened to the classes.

    Weights that are not in ``content`` do not change. ``spec`` is its source, for messages.
    """
    own = detector.state_dict()
    given = {name: own[name] if name in _CLASS_LAYER else tensor for name, tensor in content.tensors.items()}
    if faults := weights.differences(own, given):
        raise ModelError(
            f"--init {spec} does not match the detector: {faults}. Remove the --model flags that change the network"
        )
    detector.load_state_dict({**own, **given})
    old_labels = {name.casefold(): index for index, name in enumerate(content.classes)}
    pairs = [
        (here, old_labels[name.casefold()])
        for here, name in enumerate(detector.classes)
        if name.casefold() in old_labels
    ]
    if pairs:
        here, old = (torch.tensor(column) for column in zip(*pairs, strict=True))
        for name in _CLASS_LAYER:
            target = detector.get_parameter(name)
            # Outputs are ordered by anchor, then by class: [anchors, classes, …].
            before = content.tensors[name].to(target).unflatten(0, (-1, len(content.classes)))
            target.unflatten(0, (-1, len(detector.classes)))[:, here] = before[:, old]
    new = len(detector.classes) - len(pairs)
    return f"class layer: {len(pairs)} of {len(detector.classes)} classes matched by name, {new} new"


def initialize(detector: Detector, init: str) -> str:
    """Initializes a new detector from ``init``, as for :func:`read_detector` or empty; returns the source of its
    weights in words."""
    if init:
        return f"{init}; {start_from(detector, read_detector(init), init)}"
    source = detector.backbone.source
    return f"{detector.settings.backbone.name} {source}" if source else "random"
