"""Affine augmentation, mosaic and mixup: boxes follow their pixels, and a seed determines the result."""

import numpy as np
import pytest
import torch
from data_folders import write_coco_folder
from PIL import Image
from test_data_loader import same
from test_data_transforms import bright_box, sample

from rankwise.cli import main
from rankwise.config.datasets import open_datasets
from rankwise.config.settings import DataSettings
from rankwise.data import DataError, build_loader
from rankwise.data.combine import Combine, blend, make_mosaic
from rankwise.data.transforms import AugmentSettings, TrainTransform
from rankwise.images.settings import InputSettings

AS_IT_IS = InputSettings(60, 100)


@pytest.mark.parametrize("settings", [{"scale": 0.4, "translate": 0.2}, {"degrees": 30.0}, {"shear": 20.0}])
def test_affine_augmentation_keeps_boxes_around_their_pixels(settings):
    transform = TrainTransform(AS_IT_IS, AugmentSettings(flip=0, **settings))
    original = sample(boxes=((20, 20, 50, 45), (55, 10, 90, 50)))
    seen = set()
    for seed in range(12):
        torch.manual_seed(seed)
        image, target = transform(*original)
        assert image.shape == (3, 60, 100)
        for box, label in zip(target["boxes"], target["labels"], strict=True):
            pixels = torch.tensor(bright_box(image[label]))
            if "scale" in settings:
                assert (pixels - box).abs().max() <= 1.5
            else:  # the box around the turned box; its corners are not bright enough to count
                assert (box[:2] <= pixels[:2] + 1).all()
                assert (box[2:] >= pixels[2:] - 1).all()
                assert (pixels - box).abs().max() <= 4
            seen.add(tuple(box.tolist()))
    assert len(seen) > 12
    assert image[:, 0, 0].tolist() in ([0, 0, 0], list(AS_IT_IS.mean_colour))


def test_affine_augmentation_drops_objects_outside_but_keeps_crowds():
    original = sample(boxes=((0, 10, 20, 30), (0, 40, 20, 60)), crowd=[False, True])
    transform = TrainTransform(AS_IT_IS, AugmentSettings(flip=0, translate=0.2))
    lost = slivers = 0
    for seed in range(40):
        torch.manual_seed(seed)
        image, target = transform(*original)
        widths = target["boxes"][:, 2] - target["boxes"][:, 0]
        assert (widths[~target["iscrowd"]] >= 0.2 * 20).all()
        lost += int((~target["iscrowd"]).sum() == 0)
        shown = (image[1] > 127).any(0).sum().item()  # columns of the crowd
        assert shown < 2 or target["iscrowd"].sum() == 1
        slivers += 2 <= shown < 0.2 * 20
    assert 0 < lost < 30
    assert slivers > 0  # with a part of a crowd that an object would be dropped with


def coloured(label: int, height: int = 48, width: int = 64):
    """An image with one box, in the channel of its label."""
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[label, 8:40, 8:56] = 255
    image[(label + 1) % 3] = 20 * label + 10
    target = {
        "boxes": torch.tensor([[8.0, 8.0, 56.0, 40.0]]),
        "labels": torch.tensor([label]),
        "iscrowd": torch.zeros(1, dtype=torch.bool),
        "name": str(label),
    }
    return image, target


def test_a_mosaic_shows_four_images_with_their_boxes():
    for seed in range(5):
        torch.manual_seed(seed)
        items = [coloured(0, 80, 100), coloured(1), coloured(2, 30, 90), coloured(1, 64, 48)]
        items[2][1]["boxes"] = torch.tensor([[8.0, 8.0, 56.0, 30.0]])
        image, target = make_mosaic(items)
        assert image.shape == (3, 80, 100)
        assert target["name"] == "0"
        assert len(target["boxes"]) >= 3
        assert len(target["boxes"]) == len(target["labels"]) == len(target["iscrowd"])
        assert (target["boxes"] >= 0).all()
        assert (target["boxes"] <= torch.tensor([100, 80, 100, 80])).all()
        for box, label in zip(target["boxes"].round().long().tolist(), target["labels"].tolist(), strict=True):
            inside = image[label, box[1] + 1 : box[3] - 1, box[0] + 1 : box[2] - 1]
            assert (inside > 200).float().mean() > 0.95


def test_mixup_blends_two_images_and_keeps_both_boxes():
    torch.manual_seed(0)
    image, target = blend(coloured(0), coloured(2))
    assert target["labels"].tolist() == [0, 2]
    assert torch.equal(target["boxes"][0], target["boxes"][1])
    weight = (image[0, 20, 30].item() - 50) / 205  # the other image has 50 there
    assert 0.2 < weight < 0.8
    assert image[2, 20, 30].item() == pytest.approx((1 - weight) * 255, abs=1)
    assert image[1, 0, 0].item() == pytest.approx(weight * 10, abs=1)


def test_mosaic_and_mixup_probabilities_are_respected_and_tiny_images_skipped():
    counts = {"mosaic": 0, "mixup": 0}
    torch.manual_seed(0)
    for name in counts:
        combine = Combine(**{"mosaic": 0.0, "mixup": 0.0, name: 0.5})
        for _ in range(200):
            _, target = combine(*coloured(0), lambda: coloured(1))
            counts[name] += len(target["labels"]) > 1
    assert all(70 < count < 130 for count in counts.values())
    tiny = coloured(0)[0][:, :10, :10], coloured(0)[1]
    image, target = Combine(1.0, 1.0)(*tiny, lambda: coloured(1))
    assert torch.equal(image, tiny[0])
    assert len(Combine(1.0, 1.0)(*coloured(0), lambda: None)[1]["labels"]) == 1  # the others cannot be read


@pytest.fixture
def settings(coco_folder):
    augment = AugmentSettings(degrees=10, scale=0.2, shear=5, translate=0.1, mosaic=0.6, mixup=0.4)
    return DataSettings(path=str(coco_folder), augment=augment)


def test_a_seed_determines_batches_for_any_workers_processes_and_restarts(settings):
    dataset, val = open_datasets(settings, InputSettings(48, 64))
    assert dataset.combine is not None
    assert val.combine is None
    whole = list(build_loader(dataset, 4, shuffle=True, seed=3).epoch(1))
    other = build_loader(dataset, 4, shuffle=True, seed=3, workers=2)
    assert all(map(same, whole[1:], other.epoch(1, start=1)))
    assert not all(map(same, whole, other.epoch(2)))
    half = list(build_loader(dataset, 4, shuffle=True, seed=3, rank=1, world_size=2).epoch(1))
    for batch, part in zip(whole, half, strict=True):
        for target, own in zip(batch.targets[1::2], part.targets, strict=True):
            assert torch.equal(target["boxes"], own["boxes"])
    assert max(len(target["labels"]) for batch in whole for target in batch.targets) > 3  # more than an image has


def test_mosaics_skip_unreadable_images_only_with_skip_bad(tmp_path):
    root = write_coco_folder(tmp_path / "data", train=4)
    for name in ("picture001.jpg", "picture002.jpg", "picture003.jpg"):
        (root / "train" / name).write_text("no image")
    for skip_bad in (True, False):
        data = DataSettings(path=str(root), augment=AugmentSettings(mosaic=1.0), skip_bad=skip_bad)
        dataset, _ = open_datasets(data, InputSettings(48, 64))
        if not skip_bad:
            with pytest.raises(DataError, match=r"picture00[123]\.jpg: cannot be read"):
                dataset[0]
            continue
        image, target = dataset[0]
        assert image.shape[1:] == target["size"]
        assert "fault" not in target


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mosaic": 1.5}, "augment.mosaic is 1.5: it must be a probability from 0 to 1"),
        ({"mixup": -1}, "augment.mixup is -1: it must be a probability"),
        ({"degrees": 200}, "augment.degrees is 200: it must be from 0 to 180"),
        ({"scale": 1.0}, r"augment.scale is 1.0: it must be from 0 to 0\.95"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AugmentSettings(**settings)


def test_data_show_draws_the_first_training_images(coco_folder, tmp_path, capsys):
    out = tmp_path / "sheets" / "sheet.png"
    words = ["data", "show", str(coco_folder), "small_scratch", "--size", "64", "--images", "5", "--out", str(out)]
    main([*words, "--data.augment.mosaic", "1", "--data.balance"])
    said = capsys.readouterr().out
    assert f"{out}: 5 of " in said
    assert "as the detector sees them (flip 0.5, mosaic 1)" in said
    sheet = np.asarray(Image.open(out))
    assert sheet.shape[1] > 3 * 400  # four columns, of which some may be narrow
    assert len(np.unique(sheet.reshape(-1, 3), axis=0)) > 500
    main([*words[:-1], str(out.with_suffix(".WebP"))])
    with Image.open(out.with_suffix(".WebP")) as picture:
        assert picture.format == "WEBP"
    capsys.readouterr()
    for wrong, message in (([], "expected the folder of a dataset"), ([*words[2:], "--out=a.gif"], "a.gif: a picture")):
        with pytest.raises(SystemExit):
            main(["data", "show", *wrong])
        assert message in capsys.readouterr().err
