"""Backbones: timm networks that return features of the chosen strides."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from rankwise.errors import ModelError
from rankwise.files.names import did_you_mean
from rankwise.models.deformable import make_deformable
from rankwise.models.pretrained import locate
from rankwise.models.settings import BackboneSettings
from rankwise.models.weights import differences

log = logging.getLogger(__name__)

#: Prefix of the backbone weights in the file of a detector.
_IN_DETECTOR = "backbone.net."


class Backbone(nn.Module):
    """A timm network that returns features of the chosen strides.

    Args:
        settings: The network, and which parts of it are trained.

    Attributes:
        channels: Channels of the features, finest first.
        strides: Strides of the features, finest first.
        source: The source of its weights; empty if they are random.
    """

    def __init__(self, settings: BackboneSettings) -> None:
        super().__init__()
        found = locate(settings.name) if settings.pretrained is True and timm.is_model(settings.name) else None
        if found is not None and found.kind == "none":
            raise ModelError(
                f"no pretrained weights found for backbone {settings.name}: {found.why}. Set "
                f"--model.backbone.pretrained to a file, or to false for random weights"
            )
        file = {"pretrained_cfg_overlay": {"file": found.file}} if found is not None and found.file else {}
        net = _create(settings, **file)
        reductions = net.feature_info.reduction()
        missing = [stride for stride in settings.strides if stride not in reductions]
        if missing:
            offered = ", ".join(map(str, sorted(set(reductions))))
            raise ModelError(
                f"backbone {settings.name} has no feature of stride {missing[0]}: choose backbone.strides from "
                f"{offered}"
            )
        # If several features have the same stride, use the last one.
        chosen = [len(reductions) - 1 - reductions[::-1].index(stride) for stride in settings.strides]
        if chosen[-1] < len(reductions) - 1:  # remove unused layers, whose weights would never be trained
            net = _create(settings, out_indices=tuple(range(chosen[-1] + 1)), **file)
        self.source = f"with ImageNet weights {found}" if found is not None else ""
        if isinstance(settings.pretrained, str):
            load_weights(net, Path(settings.pretrained), settings)
            self.source = f"from {settings.pretrained}"
        make_deformable(net, settings.deformable_stages)
        self.net = net
        self.channels = tuple(net.feature_info.channels()[index] for index in chosen)
        self.strides = settings.strides
        self._chosen = chosen
        self._channels_last_output = str(getattr(net, "output_fmt", "NCHW")).endswith("NHWC")
        self._frozen_norms: list[str] = []  # by name, because norms may be converted
        self._freeze(settings)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Features [B, channels, H / stride, W / stride], finest first, of normalized images [B, 3, H, W]."""
        features = self.net(images)
        features = [features[index] for index in self._chosen]
        return [feature.permute(0, 3, 1, 2) for feature in features] if self._channels_last_output else features

    def train(self, mode: bool = True) -> Backbone:
        super().train(mode)
        for name in self._frozen_norms:
            self.net.get_submodule(name).eval()
        return self

    def _freeze(self, settings: BackboneSettings) -> None:
        if settings.frozen_stages:
            for parameter in self._before(settings):
                parameter.requires_grad_(False)
        for name, module in self.net.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                own = list(module.parameters(recurse=False))
                if settings.frozen_norm is True:
                    for parameter in own:
                        parameter.requires_grad_(False)
                untrained = bool(own) and not any(parameter.requires_grad for parameter in own)
                if untrained or settings.frozen_norm:
                    self._frozen_norms.append(name)
        self.train(self.training)

    def _before(self, settings: BackboneSettings) -> list[nn.Parameter]:
        """The parameters that the first ``frozen_stages`` features depend on, found with autograd for any network."""
        wanted = settings.frozen_stages
        parameters = list(self.net.parameters())
        training = self.net.training
        with torch.enable_grad():
            features = self.net.eval()(torch.zeros(1, 3, 64, 64))
        self.net.train(training)
        if wanted > len(features):
            raise ModelError(
                f"backbone.frozen_stages is {wanted}, but {settings.name} has {len(features)} stages up to stride "
                f"{settings.strides[-1]}"
            )
        total = sum(feature.sum() for feature in features[:wanted])
        used = torch.autograd.grad(total, parameters, allow_unused=True)
        return [parameter for parameter, grad in zip(parameters, used, strict=True) if grad is not None]


def _create(settings: BackboneSettings, **more: Any) -> Any:
    arguments = {"pretrained": settings.pretrained is True, "features_only": True, **settings.args, **more}
    if not timm.is_model(settings.name):  # refuses hub addresses too: untrusted files must not access them
        hint = did_you_mean(settings.name, timm.list_models(), "timm.list_models() has all names", most=3)
        raise ModelError(f"timm has no backbone {settings.name!r}: {hint}")
    try:
        return timm.create_model(settings.name, **arguments)
    except Exception as error:
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        advice = ""
        if settings.pretrained is True:
            advice = (
                ". If this machine is offline, download the weights elsewhere and set --model.backbone.pretrained to "
                "the file, or to false for random weights"
            )
        raise ModelError(f"timm could not create backbone {settings.name}: {reason}{advice}") from error


def load_weights(net: nn.Module, path: Path, settings: BackboneSettings) -> None:
    """Loads backbone weights from a file, with the layout of timm's ``features_only`` or of the classification model.

    From the file of a trained detector, only the backbone is used. From a .pth, .pt or .bin file of torch, only tensors
    are loaded.

    Raises:
        ModelError: If the file cannot be read or does not match; the message names missing and unexpected weights.
    """
    found = read_tensors(path)
    if inside := {name: tensor for name, tensor in found.items() if name.startswith(_IN_DETECTOR)}:
        found = {name.removeprefix(_IN_DETECTOR): tensor for name, tensor in inside.items()}
    own = net.state_dict()
    # features_only joins the first two names of a sequence of stages: stages.0.x becomes stages_0.x
    joined = {name: name.replace(".", "_", 1) for name in found if name not in own}
    renamed = {joined[name] if joined.get(name) in own else name: tensor for name, tensor in found.items()}
    if unused := renamed.keys() - own.keys():  # the classifier and unused stages
        whole = timm.create_model(settings.name, **settings.args).state_dict()
        for name in unused:
            if name in whole or name.replace("_", ".", 1) in whole:
                del renamed[name]
    if faults := differences(own, renamed):
        raise ModelError(
            f"{path} does not match backbone {settings.name}: {faults}. "
            "Set backbone.name and backbone.args to those of the file."
        )
    net.load_state_dict(renamed, strict=False)
    log.info("%s: %d tensors loaded into %s, %d not needed", path, len(own), settings.name, len(found) - len(own))


def read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ModelError(f"{path}: no such file of weights")
    if path.suffix == ".safetensors":
        try:
            return safetensors.torch.load_file(path)
        except (safetensors.SafetensorError, OSError) as error:
            raise ModelError(f"{path} is not a readable safetensors file: {error}") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0] if str(error) else type(error).__name__
        raise ModelError(f"{path} contains other data than tensors or is damaged; nothing was run: {reason}") from error
    while isinstance(content, dict) and not all(isinstance(value, Tensor) for value in content.values()):
        inner = next((content[key] for key in ("state_dict", "model", "net") if key in content), None)
        if not isinstance(inner, dict):
            break
        content = inner
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ModelError(f"{path} contains no weights: expected a mapping of names to tensors")
    return content
