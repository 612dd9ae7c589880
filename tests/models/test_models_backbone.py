"""Backbones: features, pretrained weights of both layouts, frozen stages, deformable convolution."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from small_detectors import SLIM
from torch import nn

from rankwise.errors import ModelError
from rankwise.models.backbone import Backbone
from rankwise.models.deformable import DeformableConv2d
from rankwise.models.pretrained import Weights
from rankwise.models.settings import BackboneSettings

IMAGES = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "settings",
    [
        SLIM,
        BackboneSettings("test_resnet", strides=(4, 8)),
        BackboneSettings("mobilenetv3_small_050", strides=(8, 16, 32)),
        BackboneSettings("test_convnext"),
        BackboneSettings("test_efficientnet", strides=(16,)),
    ],
    ids=lambda settings: settings.name,
)
def test_features_have_the_stated_strides_and_channels(settings: BackboneSettings) -> None:
    backbone = Backbone(settings)
    features = backbone(IMAGES)
    shapes = [tuple(feature.shape) for feature in features]
    strides = zip(backbone.channels, settings.strides, strict=True)
    assert shapes == [(2, channels, 64 // stride, 96 // stride) for channels, stride in strides]


def test_channels_last_networks_return_channels_first_features() -> None:
    settings = BackboneSettings(
        "swin_tiny_patch4_window7_224",
        args={"embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "strict_img_size": False},
    )
    features = Backbone(settings)(IMAGES)
    assert [tuple(feature.shape) for feature in features] == [(2, 32, 8, 12), (2, 64, 4, 6), (2, 128, 2, 3)]


def test_unused_stages_are_removed() -> None:
    backbone = Backbone(replace(SLIM, strides=(8, 16)))
    sum(feature.sum() for feature in backbone(IMAGES)).backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (BackboneSettings("resnet5"), "timm has no backbone 'resnet5': did you mean 'resnet"),
        (BackboneSettings("resnet18", strides=(8, 64)), "no feature of stride 64: .* 2, 4, 8, 16, 32"),
        (BackboneSettings("resnet18", args={"widht": 3}), "timm could not create .*widht"),
        (replace(SLIM, frozen_stages=6), "frozen_stages is 6, but resnet10t has 5 stages"),
        (replace(SLIM, deformable_stages=(6,)), "deformable_stages has 6"),
        (
            BackboneSettings("mobilenetv3_small_050", deformable_stages=(3,)),
            "for stages 2 to 5 of timm's ResNet family",
        ),
    ],
)
def test_impossible_backbones_are_refused(settings: BackboneSettings, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Backbone(settings)


def moved(backbone: Backbone) -> set[str]:
    """Which parameters and statistics one large step of training changes, by their first name."""
    before = copy.deepcopy(backbone.state_dict())
    backbone.train()
    optimizer = torch.optim.SGD(
        [parameter for parameter in backbone.parameters() if parameter.requires_grad], lr=1.0, weight_decay=0.1
    )
    sum(feature.square().mean() for feature in backbone(IMAGES)).backward()
    optimizer.step()
    after = backbone.state_dict()
    return {name.split(".")[1] for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize(
    ("frozen", "still"),
    [
        (0, set()),
        (1, {"conv1", "bn1"}),
        (2, {"conv1", "bn1", "layer1"}),
        (3, {"conv1", "bn1", "layer1", "layer2"}),
        (5, {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4"}),
    ],
)
def test_frozen_stages_change_neither_weights_nor_statistics(frozen: int, still: set[str]) -> None:
    everything = {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4"}
    backbone = Backbone(replace(SLIM, frozen_stages=frozen))
    if frozen == 5:
        assert not any(parameter.requires_grad for parameter in backbone.parameters())
    else:
        assert moved(backbone) == everything - still


def test_stages_of_any_network_can_be_frozen() -> None:
    backbone = Backbone(BackboneSettings("mobilenetv3_small_050", frozen_stages=2))
    held = {name for name, parameter in backbone.net.named_parameters() if not parameter.requires_grad}
    assert {name.rsplit(".", 1)[0].split(".")[0] for name in held} == {"conv_stem", "bn1", "blocks"}
    assert all(name.startswith(("conv_stem", "bn1", "blocks.0.")) for name in held)


def test_frozen_norms_keep_their_statistics_while_the_rest_trains() -> None:
    backbone = Backbone(replace(SLIM, frozen_norm=True)).train()
    norms = [module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [copy.deepcopy(norm.state_dict()) for norm in norms]
    assert "layer3" in moved(backbone)
    for norm, state in zip(norms, before, strict=True):
        assert not norm.training
        assert all(torch.equal(value, state[name]) for name, value in norm.state_dict().items())


def test_norms_with_frozen_statistics_still_train_their_parameters() -> None:
    backbone = Backbone(replace(SLIM, frozen_norm="statistics", frozen_stages=1)).train()
    norms = {name: module for name, module in backbone.net.named_modules() if isinstance(module, nn.BatchNorm2d)}
    before = copy.deepcopy(backbone.net.state_dict())
    moved(backbone)
    after = backbone.net.state_dict()
    for name, norm in norms.items():
        assert not norm.training
        assert torch.equal(before[f"{name}.running_mean"], after[f"{name}.running_mean"])
    assert torch.equal(before["bn1.weight"], after["bn1.weight"])  # the stem is frozen altogether
    assert not torch.equal(before["layer3.0.bn1.weight"], after["layer3.0.bn1.weight"])


def test_frozen_norms_stay_frozen_in_copies_and_after_conversion() -> None:
    backbone = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(Backbone(replace(SLIM, frozen_norm=True))))
    backbone.train()
    norms = [module for module in backbone.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert not any(norm.training for norm in norms)


NETWORKS = {
    "resnet10t": SLIM,
    "test_convnext": BackboneSettings("test_convnext"),  # its stages are renamed by features_only
    "mobilenetv3_small_050": BackboneSettings("mobilenetv3_small_050"),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("layout", ["features", "classifier"])
@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
def test_weights_of_both_layouts_are_loaded(name: str, layout: str, ending: str, tmp_path: Path) -> None:
    settings = NETWORKS[name]
    torch.manual_seed(1)
    source = timm.create_model(name, features_only=layout == "features", **settings.args)
    path = tmp_path / f"weights{ending}"
    if ending == ".pth":
        torch.save({"state_dict": source.state_dict(), "epoch": 3}, path)
    else:
        save_file(source.state_dict(), path)
    backbone = Backbone(replace(settings, pretrained=str(path)))
    own = backbone.net.state_dict()
    theirs = {key if key in own else key.replace(".", "_", 1): value for key, value in source.state_dict().items()}
    assert all(torch.equal(value, theirs[key]) for key, value in own.items())


def test_weights_load_into_a_backbone_of_fewer_stages(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    given = timm.create_model("resnet10t", features_only=True, **SLIM.args).state_dict()
    save_file(given, path)
    loaded = Backbone(replace(SLIM, strides=(8,), pretrained=str(path))).net.state_dict()
    assert 0 < len(loaded) < len(given)
    assert all(torch.equal(value, given[name]) for name, value in loaded.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("layer2.0.conv1.weight"), "1 missing, such as layer2.0.conv1.weight"),
        (lambda state: state.update({"other.weight": torch.zeros(1)}), "1 unknown, such as other.weight"),
        (
            lambda state: state.update({"layer1.0.conv1.weight": torch.zeros(8, 9, 3, 3)}),
            r"1 of another shape, such as layer1.0.conv1.weight is \(8, 9, 3, 3\) in the file and \(8, 16, 3, 3\)",
        ),
    ],
)
def test_mismatched_weights_are_named(change: Any, message: str, tmp_path: Path) -> None:
    state = timm.create_model("resnet10t", features_only=True, **SLIM.args).state_dict()
    change(state)
    path = tmp_path / "weights.pth"
    torch.save(state, path)
    with pytest.raises(ModelError, match=message):
        Backbone(replace(SLIM, pretrained=str(path)))


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
def test_malicious_weights_files_run_no_code(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{ending}"
    if ending == ".pth":
        torch.save({"state_dict": Bomb(tmp_path / "ran")}, path)
    else:
        path.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(ModelError, match="weights"):
        Backbone(replace(SLIM, pretrained=str(path)))
    assert not (tmp_path / "ran").exists()


def test_a_missing_file_and_one_without_weights_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        Backbone(replace(SLIM, pretrained=str(tmp_path / "none.pth")))
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ModelError, match="contains no weights"):
        Backbone(replace(SLIM, pretrained=str(tmp_path / "list.pth")))


def test_unavailable_weights_give_a_message_on_how_to_use_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(timm, "create_model", offline)
    monkeypatch.setattr("rankwise.models.backbone.locate", lambda name: Weights("hub"))
    with pytest.raises(ModelError, match=r"no route to host.*offline.*--model.backbone.pretrained to the file"):
        Backbone(replace(SLIM, pretrained=True))


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        (BackboneSettings("resnet26", args={"channels": [8, 8, 16, 16], "stem_width": 8}), 6),
        (BackboneSettings("resnext26ts", args={}), None),
        (BackboneSettings("res2net50_26w_4s", args={"layers": [1, 1, 1, 1], "base_width": 8}), 9),
        (BackboneSettings("res2net101d", args={"layers": [1, 1, 1, 1], "base_width": 8}), 9),
        (BackboneSettings("resnext101_64x4d", args={"layers": [1, 1, 1, 1], "channels": [16, 16, 16, 32]}), 3),
    ],
)
def test_deformable_convolution_initially_equals_the_convolution_it_replaces(
    settings: BackboneSettings, count: int | None
) -> None:
    if count is None:  # a network with other names is refused, not half changed
        with pytest.raises(ModelError, match="ResNet family"):
            Backbone(replace(settings, deformable_stages=(3,)))
        return
    torch.manual_seed(0)
    # timm begins with blocks that add nothing, where everything would be the same.
    settings = replace(settings, args={**settings.args, "zero_init_last": False})
    plain = Backbone(settings).eval()
    deformable = Backbone(replace(settings, deformable_stages=(3, 4, 5))).eval()
    deformable.load_state_dict(plain.state_dict(), strict=False)
    assert sum(isinstance(module, DeformableConv2d) for module in deformable.modules()) == count
    assert not any(isinstance(module, DeformableConv2d) for module in deformable.net.layer1.modules())
    for one, other in zip(plain(IMAGES), deformable(IMAGES), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_deformable_convolution_learns_offsets() -> None:
    # timm begins with blocks that add nothing, where nothing can be learned in the first step.
    settings = replace(SLIM, args={**SLIM.args, "zero_init_last": False}, deformable_stages=(5,))
    backbone = Backbone(settings)
    backbone(IMAGES)[-1].square().mean().backward()
    offsets = [module.offset for module in backbone.modules() if isinstance(module, DeformableConv2d)]
    assert offsets
    assert all(offset.weight.grad.abs().sum() > 0 for offset in offsets)


def test_deformable_convolution_works_under_autocast() -> None:
    backbone = Backbone(replace(SLIM, deformable_stages=(4, 5))).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = backbone(IMAGES)
    for feature, exact in zip(features, backbone(IMAGES), strict=True):
        torch.testing.assert_close(feature.float(), exact, atol=0.1, rtol=0.1)
