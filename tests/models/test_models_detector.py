"""The detector: shapes, initial predictions, precision, memory formats."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from small_detectors import CLASSES, KINDS, SLIM, lively, small
from torch import nn

from rankwise.images.settings import InputSettings
from rankwise.models import (
    AnchorSettings,
    Detector,
    DetectorSettings,
    HeadSettings,
    ModelError,
    NeckSettings,
    atss,
    fcos,
)
from rankwise.models.layers import normalization
from rankwise.models.neck import FeaturePyramid


def images(height: int, width: int, batch: int = 2) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8, generator=random)


@pytest.mark.parametrize("channels", [1, 16, 32, 64])
@pytest.mark.parametrize("norm", ["gn", "bn"])
def test_one_image_with_a_level_of_one_pixel_trains_and_predicts(norm: str, channels: int) -> None:
    neck, head = NeckSettings(channels, extra_levels=2, norm=norm), HeadSettings(channels, depth=1, norm=norm)
    detector = Detector(small(atss(), neck=neck, head=head), CLASSES)
    predictions = detector(images(64, 64, batch=1))
    assert predictions.level_sizes[-2:] == (1, 1)
    (predictions.logits.sum() + predictions.boxes.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in detector.parameters() if parameter.grad is not None)
    detector.eval()
    both = detector(images(64, 64, batch=2))
    alone = detector(images(64, 64, batch=2)[:1])
    assert torch.allclose(alone.logits[0], both.logits[0], atol=1e-5)


@pytest.mark.parametrize(("kind", "plain"), [("gn", nn.GroupNorm(32, 32)), ("bn", nn.BatchNorm2d(32))])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(2, 32, 1, 1), (1, 32, 1, 2), (3, 32, 4, 5)])
def test_normalizations_equal_torch_where_torch_has_enough_values(
    kind: str, plain: nn.Module, training: bool, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    plain = copy.deepcopy(plain).train(training)
    nn.init.normal_(plain.weight)
    nn.init.normal_(plain.bias)
    ours = normalization(kind, 32).train(training)
    ours.load_state_dict(plain.state_dict())
    values = torch.randn(shape)
    assert torch.equal(ours(values), plain(values))
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in ours.state_dict().items())


def test_batch_norm_uses_running_statistics_for_a_single_value() -> None:
    norm = normalization("bn", 4)
    norm(torch.randn(3, 4, 2, 2) * 3 + 1)
    before = copy.deepcopy(norm.state_dict())
    value = torch.randn(1, 4, 1, 1)
    trained = norm(value)
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    assert torch.equal(trained, norm.eval()(value))


@pytest.mark.parametrize("size", [(64, 96), (33, 47), (1, 1), (97, 131), (20, 700), (700, 31)])
def test_predictions_cover_images_of_any_size(settings: DetectorSettings, size: tuple[int, int]) -> None:
    detector = Detector(settings, CLASSES).eval()
    predictions = detector(images(*size))
    padded = [math.ceil(side / 32) * 32 for side in size]
    k = settings.anchors.per_location
    expected = tuple(k * math.prod(math.ceil(side / stride) for side in padded) for stride in detector.neck.strides)
    total = sum(expected)
    assert predictions.level_sizes == expected
    assert predictions.logits.shape == (2, total, 3)
    assert predictions.boxes.shape == (2, total, 4)
    assert predictions.anchors.shape == (total, 4)
    assert predictions.logits.isfinite().all()
    assert predictions.boxes.isfinite().all()


def test_levels_have_the_strides_of_backbone_and_extra_levels() -> None:
    for extra, strides in ((0, (8, 16, 32)), (2, (8, 16, 32, 64, 128)), (3, (8, 16, 32, 64, 128, 256))):
        assert Detector(small(atss(), neck=NeckSettings(16, extra)), CLASSES).neck.strides == strides
    finer = small(atss(), backbone=replace(SLIM, strides=(4, 8, 16)), neck=NeckSettings(16, extra_levels=1))
    assert Detector(finer, CLASSES).neck.strides == (4, 8, 16, 32)
    coarser = small(atss(), backbone=replace(SLIM, strides=(32,)), neck=NeckSettings(16, extra_levels=1))
    assert Detector(coarser, CLASSES)(images(64, 64)).level_sizes == (4, 1)


@pytest.mark.parametrize("source", ["c5", "p5"])
def test_extra_levels_use_the_configured_input(source: str) -> None:
    torch.manual_seed(0)
    pyramid = FeaturePyramid(NeckSettings(8, extra_from=source), (4, 6), (16, 32))
    features = [torch.randn(1, 4, 9, 7), torch.randn(1, 6, 5, 4)]
    levels = pyramid(features)
    assert [tuple(level.shape[2:]) for level in levels] == [(9, 7), (5, 4), (3, 2), (2, 1)]
    first = pyramid.extra[0](features[-1] if source == "c5" else levels[1])
    torch.testing.assert_close(levels[2], first)
    torch.testing.assert_close(levels[3], pyramid.extra[1](first.relu()))


def test_coarse_levels_influence_fine_ones() -> None:
    pyramid = FeaturePyramid(NeckSettings(8, extra_levels=0), (4, 4, 4), (8, 16, 32))
    top = torch.zeros(1, 4, 2, 2, requires_grad=True)
    pyramid([torch.zeros(1, 4, 7, 5), torch.zeros(1, 4, 4, 3), top])[0].sum().backward()
    assert top.grad is not None
    assert top.grad.abs().sum() > 0


def test_first_scores_are_the_prior_and_first_boxes_the_anchors() -> None:
    for preset in (atss(), fcos()):
        head = HeadSettings(16, 2, prior=0.02, coding=preset.head.coding)
        detector = Detector(small(preset, head=head), CLASSES)
        nn.init.zeros_(detector.head.class_output.weight)
        nn.init.zeros_(detector.head.box_output.weight)
        predictions = detector(images(64, 96))
        torch.testing.assert_close(predictions.logits.sigmoid(), torch.full_like(predictions.logits, 0.02))
        torch.testing.assert_close(predictions.boxes, predictions.anchors.expand(2, -1, -1), atol=1e-3, rtol=1e-5)


def test_each_anchor_of_a_location_has_its_own_outputs() -> None:
    settings = small(
        fcos(), anchors=AnchorSettings(4.0, (1.0, 2.0), (0.5, 1.0, 2.0)), neck=NeckSettings(16, extra_levels=0)
    )
    detector = Detector(settings, CLASSES)
    nn.init.zeros_(detector.head.class_output.weight)
    nn.init.zeros_(detector.head.box_output.weight)
    with torch.no_grad():
        detector.head.class_output.bias.copy_(torch.arange(18.0))
    predictions = detector(images(32, 64))
    torch.testing.assert_close(predictions.logits[0, 6:12].flatten(), torch.arange(18.0))
    # Six shapes at a location: each begins as its own anchor.
    torch.testing.assert_close(predictions.boxes[1], predictions.anchors, atol=1e-3, rtol=1e-5)


def test_outputs_are_ordered_like_the_anchors() -> None:
    settings = small(atss(), neck=NeckSettings(16, extra_levels=0), head=HeadSettings(16, 0))
    detector = Detector(settings, CLASSES)
    nn.init.zeros_(detector.head.class_output.weight)
    with torch.no_grad():
        detector.head.class_output.weight[:, 0, 1, 1] = 1.0
        detector.head.class_output.bias.zero_()
    level = torch.zeros(1, 16, 4, 6)
    level[0, 0, 2, 5] = 1.0  # row 2, column 5 of stride 8
    logits, _ = detector.head([level, torch.zeros(1, 16, 2, 3), torch.zeros(1, 16, 1, 2)])
    grid = detector.anchors([(4, 6), (2, 3), (1, 2)], torch.device("cpu"))
    centre = grid.boxes[int(logits[0, :, 0].argmax())].reshape(2, 2).mean(dim=0)
    assert centre.tolist() == [5.5 * 8, 2.5 * 8]


def test_a_level_scale_only_affects_the_boxes_of_its_level() -> None:
    detector = lively(small(atss()))
    before = detector(images(64, 64))
    with torch.no_grad():
        detector.head.scales[1] = 2.0
    after = detector(images(64, 64))
    changed = [
        not torch.equal(one, other)
        for one, other in zip(
            before.boxes.split(before.level_sizes, dim=1), after.boxes.split(before.level_sizes, dim=1), strict=True
        )
    ]
    assert changed == [False, True, False, False, False]
    assert torch.equal(before.logits, after.logits)


def test_batch_norm_in_the_head_keeps_statistics_for_each_level() -> None:
    detector = Detector(small(atss(), head=HeadSettings(16, 1, norm="bn")), CLASSES).train()
    detector(images(128, 128))
    means = [norm.running_mean for norm in detector.head.class_tower.norms[0]]
    assert len(means) == 5
    assert not any(torch.allclose(means[0], other) for other in means[1:])


def test_predictions_include_the_distribution_and_its_unit() -> None:
    predictions = Detector(KINDS["distribution"](), CLASSES)(images(64, 64))
    assert predictions.distribution is not None
    assert predictions.distance_unit is not None
    assert predictions.distribution.shape == (2, sum(predictions.level_sizes), 4, 9)
    units = predictions.distance_unit.split(predictions.level_sizes)
    assert [unit.unique().tolist() for unit in units] == [[8], [16], [32], [64], [128]]
    mean = predictions.distribution.softmax(dim=-1) @ torch.arange(9.0) * predictions.distance_unit[:, None]
    centers = (predictions.anchors[:, :2] + predictions.anchors[:, 2:]) / 2
    torch.testing.assert_close(predictions.boxes[..., :2], centers - mean[..., :2])
    torch.testing.assert_close(predictions.boxes[..., 2:], centers + mean[..., 2:])


def test_other_kinds_have_no_distribution() -> None:
    predictions = Detector(KINDS["fcos"](), CLASSES)(images(32, 32))
    assert predictions.distribution is None
    assert predictions.distance_unit is None


def test_every_trained_parameter_gets_a_gradient(settings: DetectorSettings) -> None:
    detector = Detector(settings, CLASSES).train()
    predictions = detector(images(64, 64))
    (predictions.logits.square().mean() + (predictions.boxes / 64).square().mean()).backward()
    without = [name for name, value in detector.named_parameters() if value.requires_grad and value.grad is None]
    assert not without


def test_byte_and_float_images_give_the_same_result(detector: Detector) -> None:
    batch = images(70, 50)
    one, other = detector(batch), detector(batch.float() / 255)
    torch.testing.assert_close(one.logits, other.logits, atol=1e-4, rtol=1e-4)


def test_the_network_gets_normalized_images() -> None:
    detector = Detector(small(atss(), input=InputSettings(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))), CLASSES)
    seen: list[torch.Tensor] = []
    detector.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    batch = images(40, 64)
    detector(batch)
    mean, std = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1), torch.tensor([0.5, 0.25, 2.0]).view(3, 1, 1)
    torch.testing.assert_close(seen[0][:, :, :40], (batch / 255 - mean) / std, atol=1e-5, rtol=1e-5)
    assert seen[0].shape == (2, 3, 64, 64)
    assert not seen[0][:, :, 40:].any()


def test_padding_by_the_detector_or_by_the_caller_is_equivalent(detector: Detector) -> None:
    batch = images(70, 50).float() / 255
    mean = torch.tensor(detector.settings.input.mean).view(1, 3, 1, 1)
    outside = mean.expand(2, 3, 96, 64).clone()
    outside[:, :, :70, :50] = batch
    torch.testing.assert_close(detector(batch).logits, detector(outside).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.zeros(3, 32, 32), r"shape \[batch, 3, height, width\], not \[3, 32, 32\]"),
        (torch.zeros(1, 1, 32, 32), r"not \[1, 1, 32, 32\]"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.int64), "uint8, or float"),
    ],
)
def test_batches_of_the_wrong_type_are_refused(detector: Detector, batch: torch.Tensor, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        detector(batch)


def test_one_pixel_levels_have_correct_gradients_in_bfloat16() -> None:
    torch.manual_seed(0)
    pyramid = FeaturePyramid(NeckSettings(16, extra_levels=3), (4,), (32,))
    exact = copy.deepcopy(pyramid)
    for _ in range(5):
        feature = torch.randn(2, 4, 3, 2)
        torch.full((16 * 16 * 9,), float("nan"))  # what may lie in memory where a gradient should be written
        with torch.autocast("cpu", dtype=torch.bfloat16):
            sum(level.float().square().sum() for level in pyramid([feature])).backward()
        sum(level.square().sum() for level in exact([feature])).backward()
        for one, other in zip(pyramid.parameters(), exact.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            torch.testing.assert_close(one.grad, other.grad, atol=float(other.grad.abs().max()) / 20, rtol=0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_boxes_are_float32_under_autocast(settings: DetectorSettings, dtype: torch.dtype) -> None:
    detector = lively(settings)
    exact = detector(images(64, 64))
    with torch.autocast("cpu", dtype=dtype):
        predictions = detector(images(64, 64))
        (predictions.boxes.mean() + predictions.logits.float().mean()).backward()
    assert predictions.boxes.dtype == torch.float32
    assert predictions.boxes.isfinite().all()
    pair = torch.stack([predictions.logits.float().flatten(), exact.logits.flatten()])
    assert torch.corrcoef(pair)[0, 1] > 0.98
    assert all(value.grad is None or value.grad.isfinite().all() for value in detector.parameters())


def test_channels_last_only_changes_the_memory_layout(settings: DetectorSettings) -> None:
    detector = lively(settings)
    other = copy.deepcopy(detector).to(memory_format=torch.channels_last)
    one = detector(images(64, 96))
    two = other(images(64, 96).to(memory_format=torch.channels_last))
    torch.testing.assert_close(one.logits, two.logits, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(one.boxes, two.boxes, atol=1e-2, rtol=1e-3)
    assert two.logits.is_contiguous()


def test_a_detector_exports_with_dynamic_batch_and_height() -> None:
    class Plain(nn.Module):
        def __init__(self, detector: Detector) -> None:
            super().__init__()
            self.detector = detector

        def forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            predictions = self.detector(batch)
            return predictions.logits, predictions.boxes

    plain = Plain(lively(small(atss(), neck=NeckSettings(16, extra_levels=0)))).eval()
    anything = torch.export.Dim.DYNAMIC  # of the width as well, but that takes the tracer half a minute
    exported = torch.export.export(plain, (torch.rand(2, 3, 100, 64),), dynamic_shapes=({0: anything, 2: anything},))
    for size in ((1, 3, 71, 64), (3, 3, 128, 64)):
        batch = torch.rand(size)
        for one, other in zip(exported.module()(batch), plain(batch), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("classes", "message"),
    [([], "at least one class"), (["a", "b", "a"], "a appears twice"), ("cat", "'cat': give a list of names")],
)
def test_impossible_classes_are_refused(classes: list[str], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Detector(small(atss()), classes)
