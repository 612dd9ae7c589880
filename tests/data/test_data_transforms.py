"""Boxes follow their pixels through every transform, and per-box entries are kept with their boxes."""

import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from rankwise.data.hue import Distort, rotate_hue
from rankwise.data.transforms import AugmentSettings, EvalTransform, TrainTransform
from rankwise.images.settings import InputSettings

#: Nothing but the resize.
PLAIN = AugmentSettings(flip=0)


def sample(height=60, width=100, boxes=((10, 20, 40, 50), (70, 5, 90, 45)), crowd=None):
    """An image with one bright rectangle a box, in a channel of its own, and the target."""
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    for channel, (x0, y0, x1, y1) in enumerate(boxes):
        image[channel, y0:y1, x0:x1] = 255
    target = {
        "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        "labels": torch.arange(len(boxes)),
        "iscrowd": torch.tensor(crowd or [False] * len(boxes), dtype=torch.bool),
        "name": "a.jpg",
        "image_id": 1,
        "size": (height, width),
        "original_size": (height, width),
    }
    return image, target


def bright_box(channel: torch.Tensor) -> list[float]:
    y, x = torch.nonzero(channel > 127, as_tuple=True)
    return [x.min().item(), y.min().item(), x.max().item() + 1, y.max().item() + 1]


def assert_boxes_are_around_their_pixels(image, target, tolerance=1.0):
    for box, label in zip(target["boxes"], target["labels"], strict=True):
        assert torch.tensor(bright_box(image[label])).sub(box).abs().max() <= tolerance


@pytest.mark.parametrize(
    ("size", "settings", "expected"),
    [
        ((60, 100), InputSettings(120, 1000), (120, 200)),
        ((60, 100), InputSettings(120, 150), (90, 150)),
        ((100, 60), InputSettings(30, 1000), (50, 30)),
        ((61, 97), InputSettings(200, 1000), (200, 318)),
        ((60, 100), InputSettings(96, 96, keep_ratio=False), (96, 96)),
        ((3, 500), InputSettings(64, 100), (1, 100)),
        ((60, 100), InputSettings(60, 100), (60, 100)),
    ],
)
def test_evaluation_resizes_images_to_the_sides_of_the_settings(size, settings, expected):
    image, target = sample(*size, boxes=())
    image, target = EvalTransform(settings)(image, target)
    assert image.shape == (3, *expected)
    assert image.dtype == torch.uint8
    assert target["size"] == expected
    assert target["original_size"] == size


@pytest.mark.parametrize("keep_ratio", [True, False])
@pytest.mark.parametrize("side", [47, 60, 150])
def test_boxes_stay_around_their_pixels_when_resized(keep_ratio, side):
    image, target = EvalTransform(InputSettings(side, 2 * side, keep_ratio=keep_ratio))(*sample())
    assert_boxes_are_around_their_pixels(image, target)
    height, width = target["size"]
    back = target["boxes"] * torch.tensor([100 / width, 60 / height] * 2)
    assert torch.allclose(back, sample()[1]["boxes"], atol=1e-4)


def test_a_flip_mirrors_image_and_boxes():
    image, target = TrainTransform(InputSettings(60, 100), AugmentSettings(flip=1))(*sample())
    assert target["boxes"].tolist() == [[60, 20, 90, 50], [10, 5, 30, 45]]
    assert_boxes_are_around_their_pixels(image, target, 0)


def test_flip_probability_is_respected():
    transform = TrainTransform(InputSettings(60, 100), AugmentSettings(flip=0.3))
    torch.manual_seed(0)
    flips = sum(transform(*sample())[1]["boxes"][0, 0] == 60 for _ in range(1000))
    assert 250 < flips < 350


def test_multi_scale_draws_from_the_given_sides():
    torch.manual_seed(0)
    transform = TrainTransform(InputSettings(60, 500), AugmentSettings(flip=0, short_sides=(30, 60, 90)))
    assert {transform(*sample())[1]["size"] for _ in range(40)} == {(30, 50), (60, 100), (90, 150)}
    transform = TrainTransform(InputSettings(60, 500), AugmentSettings(flip=0, short_range=(58, 61), max_side=101))
    sizes = {transform(*sample())[1]["size"] for _ in range(60)}
    assert sizes == {(58, 97), (59, 98), (60, 100), (61, 101)}
    transform = TrainTransform(InputSettings(60, 60, keep_ratio=False), AugmentSettings(flip=0, short_sides=(32, 96)))
    assert {transform(*sample())[1]["size"] for _ in range(40)} == {(32, 32), (96, 96)}


def test_square_training_does_not_change_the_aspect_ratio_in_evaluation():
    settings = InputSettings(50, 83)
    image, target = TrainTransform(settings, AugmentSettings(flip=0, square=64))(*sample())
    assert image.shape == (3, 64, 64)
    assert_boxes_are_around_their_pixels(image, target)
    assert EvalTransform(settings)(*sample())[1]["size"] == (50, 83)


def test_the_maximum_long_side_limits_multi_scale_sizes():
    transform = TrainTransform(InputSettings(60, 100), AugmentSettings(flip=0, short_sides=(900,)))
    assert transform(*sample())[1]["size"] == (60, 100)


@pytest.mark.parametrize("seed", range(30))
def test_ssd_augmentation_keeps_boxes_around_their_pixels(seed):
    torch.manual_seed(seed)
    transform = TrainTransform(InputSettings(200, 400), AugmentSettings(flip=0.5, ssd=True))
    # Colours may be permuted, so the channels cannot tell the boxes: one box, told from the mean colour around it.
    image, target = sample(boxes=((30, 15, 70, 45),))
    image = image[:1].expand(3, -1, -1).contiguous()
    image, target = transform(image, target)
    assert image.dtype == torch.uint8
    assert target["size"] == tuple(image.shape[1:])
    assert len(target["boxes"]) == len(target["labels"]) == len(target["iscrowd"]) == 1
    box = target["boxes"][0]
    assert box[0] >= 0
    assert box[1] >= 0
    assert box[2] <= image.shape[2]
    assert box[3] <= image.shape[1]
    x0, y0, x1, y1 = box.round().long().tolist()
    inside = image.float().mean(0)
    assert inside[y0 + 3 : y1 - 3, x0 + 3 : x1 - 3].min() > 130
    inside[max(0, y0 - 3) : y1 + 3, max(0, x0 - 3) : x1 + 3] = 0
    assert inside.max() < 130


def test_per_box_entries_are_dropped_with_their_box():
    transform = TrainTransform(InputSettings(60, 100), AugmentSettings(flip=0, ssd=True))
    dropped = 0
    for seed in range(60):
        torch.manual_seed(seed)
        image, target = sample()
        target["weight"] = torch.tensor([[0.5, 0.5], [1.5, 1.5]])
        target["camera"] = torch.zeros(7)
        _, target = transform(image, target)
        assert len(target["boxes"]) == len(target["labels"]) == len(target["iscrowd"]) == len(target["weight"])
        assert target["weight"][:, 0].tolist() == [0.5 + label for label in target["labels"].tolist()]
        assert target["camera"].shape == (7,)
        dropped += len(target["boxes"]) < 2
    assert dropped > 5


def test_crops_ignore_crowd_boxes_but_keep_their_visible_part():
    """The crowd covers the left 60 percent; its centre is often cut off, its pixels then still are no background."""
    transform = TrainTransform(InputSettings(60, 100), AugmentSettings(flip=0, ssd=True))
    cut = 0
    for seed in range(200):
        torch.manual_seed(seed)
        image, target = sample(boxes=((0, 0, 60, 60), (70, 10, 95, 50)), crowd=(True, False))
        image, target = transform._cropped(image, target)
        if tuple(image.shape[1:]) == (60, 100):
            continue
        assert 1 in target["labels"], "the crop is around the object"
        shown = (image[0] > 127).any(0).sum().item()
        if shown >= 1:
            assert target["iscrowd"].tolist() == [True, False]
            assert target["boxes"][0].tolist() == bright_box(image[0])
            cut += shown < 30  # the crowd's centre is out of sight
    assert cut > 5


@pytest.mark.parametrize("ssd", [False, True])
@pytest.mark.parametrize("size", [(60, 100), (1, 1), (2, 300)])
def test_images_without_objects_and_of_odd_sizes_are_accepted(ssd, size):
    transform = TrainTransform(InputSettings(64, 128), AugmentSettings(ssd=ssd))
    for seed in range(10):
        torch.manual_seed(seed)
        image, target = transform(*sample(*size, boxes=()))
        assert target["boxes"].shape == (0, 4)
        assert tuple(image.shape[1:]) == target["size"]
        full = ((0, 0, size[1], size[0]),)
        image, target = transform(*sample(*size, boxes=full))
        assert image.shape[0] == 3


def test_boxes_that_vanish_are_dropped_in_training_but_not_in_evaluation():
    tiny = ((10, 10, 11, 11), (20, 10, 80, 50))
    _, target = TrainTransform(InputSettings(30, 50), PLAIN)(*sample(boxes=tiny))
    assert target["labels"].tolist() == [1]
    _, target = EvalTransform(InputSettings(30, 50))(*sample(boxes=tiny))
    assert target["labels"].tolist() == [0, 1]


def test_a_seed_determines_the_augmentation():
    transform = TrainTransform(InputSettings(60, 100), AugmentSettings(ssd=True, short_range=(40, 80)))
    torch.manual_seed(5)
    first = transform(*sample())
    torch.manual_seed(5)
    second = transform(*sample())
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1]["boxes"], second[1]["boxes"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flip": 1.5}, "augment.flip is 1.5: it must be a probability"),
        ({"short_sides": (3,), "short_range": (1, 2)}, "set one of them"),
        ({"short_sides": (0,)}, "at least 2 pixels"),
        ({"short_range": (9, 3)}, "the smaller size first"),
        ({"square": 0}, "at least 2 pixels"),
        ({"square": 64, "short_sides": (64, 96)}, "set one of them"),
    ],
)
def test_errors_in_settings_say_what_is_valid(settings, message):
    with pytest.raises(ValueError, match=message):
        AugmentSettings(**settings)


@pytest.mark.parametrize("turn", [-0.5, -0.05, 0.0, 0.03, 0.31])
def test_hue_rotation_equals_torchvision(turn):
    image = torch.randint(0, 256, (3, 190, 200), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    image[:, :40] = image[:1, :40]  # greys
    image[:, 40:60] &= 128  # equal and empty channels
    difference = (rotate_hue(image, turn).int() - F.adjust_hue(image, turn).int()).abs()
    assert difference.max() <= 1  # where rounding decides
    assert (difference > 0).float().mean() < 0.001


def test_photometric_distortion_equals_torchvision_with_the_same_seed():
    image = torch.randint(0, 256, (3, 32, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for seed in range(40):
        torch.manual_seed(seed)
        found = Distort()(image)
        torch.manual_seed(seed)
        expected = v2.RandomPhotometricDistort()(image)
        # Contrast after the hue may double a difference of one.
        assert (found.int() - expected.int()).abs().max() <= 2, seed
        assert (found != expected).float().mean() < 0.01, seed
