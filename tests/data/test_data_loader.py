"""Batches do not depend on the workers, contain each image once, and resume where a run was stopped."""

import os
import signal
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from rankwise.config.recipe import parse_recipe
from rankwise.data import DataError, DetectionDataset, ImageRecord, ShapesDataset
from rankwise.data.balance import repeat_factors
from rankwise.data.loader import build_loader, collate, epoch_order, mixed
from rankwise.data.transforms import AugmentSettings, TrainTransform
from rankwise.images.settings import InputSettings
from rankwise.training import loop


@pytest.fixture(scope="module")
def dataset() -> ShapesDataset:
    transform = TrainTransform(InputSettings(64, 100), AugmentSettings(ssd=True, short_range=(48, 80)))
    return ShapesDataset("train", images=23, size=64, transform=transform)


def same(first, second) -> bool:
    return torch.equal(first.images, second.images) and all(
        a["name"] == b["name"] and torch.equal(a["boxes"], b["boxes"]) and torch.equal(a["labels"], b["labels"])
        for a, b in zip(first.targets, second.targets, strict=True)
    )


def names(batches) -> list[str]:
    return [target["name"] for batch in batches for target in batch.targets]


def item(height, width, value=200):
    return torch.full((3, height, width), value, dtype=torch.uint8), {
        "boxes": torch.zeros(0, 4),
        "size": (height, width),
    }


def test_a_batch_is_padded_with_the_mean_color_at_right_and_bottom():
    batch = collate([item(30, 70), item(33, 20)])
    assert batch.images.shape == (2, 3, 64, 96)
    assert batch.images.dtype == torch.uint8
    assert (batch.images[0, :, :30, :70] == 200).all()
    assert (batch.images[1, :, :33, :20] == 200).all()
    colour = torch.tensor([124, 116, 104], dtype=torch.uint8)[:, None]
    for image, (height, width) in zip(batch.images, [(30, 70), (33, 20)], strict=True):
        assert (image[:, height:].flatten(1) == colour).all()
        assert (image[:, :, width:].flatten(1) == colour).all()
    assert [target["size"] for target in batch.targets] == [(30, 70), (33, 20)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_is_padded_with_the_given_color(workers):
    small = ShapesDataset("train", images=2, size=40)
    (batch,) = build_loader(small, 2, shuffle=False, workers=workers, colour=(1, 2, 3)).epoch(0)
    assert torch.equal(batch.images, collate([small[0], small[1]], colour=(1, 2, 3)).images)
    assert (batch.images[:, :, 40:].transpose(0, 1).flatten(1) == torch.tensor([[1], [2], [3]])).all()
    assert (batch.images[:, :, :40, 40:].transpose(0, 1).flatten(1) == torch.tensor([[1], [2], [3]])).all()


def test_training_pads_with_the_mean_color_of_the_recipe(tmp_path, monkeypatch):
    class Enough(Exception):
        pass

    def build(*_, colour, **__):
        raise Enough(colour)

    monkeypatch.setattr(loop, "build_loader", build)
    recipe = parse_recipe(["--config", "shapes", "--data.shapes.train_images=4", "--model.input.mean=[0.2, 0.4, 1]"])
    with pytest.raises(Enough) as given:
        loop.train(recipe, tmp_path)
    assert given.value.args == ((51, 102, 255),)


def test_a_batch_that_fits_is_not_padded():
    assert collate([item(64, 32)]).images.shape == (1, 3, 64, 32)
    assert collate([item(65, 32)], divisor=1).images.shape == (1, 3, 65, 32)


def test_every_image_appears_once_per_epoch_in_an_order_set_by_seed_and_epoch():
    for epoch in range(3):
        assert sorted(epoch_order(50, 7, epoch, shuffle=True)) == list(range(50))
    once = epoch_order(50, 7, 1, True)
    torch.manual_seed(123)  # nothing but the arguments counts
    np.random.seed(123)  # noqa: NPY002
    assert epoch_order(50, 7, 1, True) == once
    assert epoch_order(50, 7, 1, True) != epoch_order(50, 7, 2, True)
    assert epoch_order(50, 7, 1, True) != epoch_order(50, 8, 1, True)
    assert epoch_order(5, 7, 1, False) == [0, 1, 2, 3, 4]


def test_batches_are_the_same_for_any_number_of_workers(dataset):
    alone = list(build_loader(dataset, 4, shuffle=True, seed=3, workers=0).epoch(2))
    assert len(names(alone)) == len(set(names(alone))) == 23
    for workers in (1, 2):
        others = list(build_loader(dataset, 4, shuffle=True, seed=3, workers=workers).epoch(2))
        assert len(others) == len(alone) == 6
        assert all(map(same, alone, others))


def test_augmentation_differs_between_epochs_and_seeds(dataset):
    def first(seed, epoch):
        batches = build_loader(dataset, 1, shuffle=False, seed=seed).epoch(epoch)
        return next(batches)

    assert same(first(0, 0), first(0, 0))
    assert not same(first(0, 0), first(0, 1))
    assert not same(first(0, 0), first(1, 0))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_epoch_resumes_at_the_same_batch(dataset, workers):
    whole = list(build_loader(dataset, 4, shuffle=True, seed=3).epoch(1))
    rest = list(build_loader(dataset, 4, shuffle=True, seed=3, workers=workers).epoch(1, start=2))
    assert len(rest) == 4
    assert all(map(same, whole[2:], rest))


def test_a_new_epoch_can_start_before_the_last_one_ended(dataset):
    loader = build_loader(dataset, 4, shuffle=True, seed=3, workers=2)
    next(loader.epoch(0))
    again = list(loader.epoch(1))
    assert all(map(same, again, build_loader(dataset, 4, shuffle=True, seed=3).epoch(1)))
    assert len(again) == len(loader) == 6


def test_processes_share_each_step(dataset):
    alone = [names([batch]) for batch in build_loader(dataset, 4, shuffle=True, seed=3).epoch(1)]
    shares = [list(build_loader(dataset, 4, shuffle=True, seed=3, rank=r, world_size=2).epoch(1)) for r in range(2)]
    for whole, first, second in zip(alone, *shares, strict=True):
        assert names([first]) == whole[0::2]
        assert names([second]) == whole[1::2]


def test_a_process_without_images_in_the_last_training_step_gets_a_blank_one(dataset):
    shares = [list(build_loader(dataset, 11, shuffle=True, rank=r, world_size=11).epoch(0)) for r in range(11)]
    assert {len(share) for share in shares} == {3}
    last = shares[5][-1]
    assert names([last]) == ["(blank)"]
    assert last.targets[0]["iscrowd"].tolist() == [True]
    assert Counter(name for share in shares for name in names(share))["(blank)"] == 10


def test_evaluation_uses_each_image_once_and_no_blank_ones(dataset):
    loaders = [build_loader(dataset, 11, shuffle=False, rank=r, world_size=11) for r in range(11)]
    shares = [list(loader.epoch(0)) for loader in loaders]
    assert [len(loader) for loader in loaders] == [len(share) for share in shares] == [3] + [2] * 10
    assert sorted(name for share in shares for name in names(share)) == [f"{k:06d}.png" for k in range(1, 24)]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_does_not_change_the_global_random_state(dataset, workers):
    loader = build_loader(dataset, 4, shuffle=True, workers=workers)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    list(loader.epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


def broken_dataset(tmp_path, skip_bad: bool) -> DetectionDataset:
    records = []
    for k in range(4):
        path = tmp_path / f"image{k}.png"
        if k != 2:
            from PIL import Image

            Image.new("RGB", (40, 30)).save(path)
        empty = np.zeros((0, 4), np.float32)
        none = np.zeros(0, np.int64)
        records.append(ImageRecord(k, path.name, path, 40, 30, empty, none, none.astype(bool), none.astype(float)))
    return DetectionDataset(records, ["a"], [1], skip_bad=skip_bad)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_named_without_the_traceback_of_a_worker(tmp_path, workers):
    loader = build_loader(broken_dataset(tmp_path, skip_bad=False), 2, shuffle=False, workers=workers)
    batches = loader.epoch(0)
    assert len(names([next(batches)])) == 2
    processes = loader._loader._iterator._workers if workers else []
    assert len(processes) == workers
    with pytest.raises(DataError, match=r"^.*image2\.png: the image is missing") as caught:
        next(batches)
    assert "Traceback" not in str(caught.value)
    assert not any(process.is_alive() for process in processes)  # nothing to wait for when the error is forgotten


def test_under_skip_bad_the_batch_keeps_its_size_and_names_the_fault(tmp_path):
    batches = list(build_loader(broken_dataset(tmp_path, skip_bad=True), 2, shuffle=False).epoch(0))
    assert [len(batch.targets) for batch in batches] == [2, 2]
    faults = [target.get("fault") for batch in batches for target in batch.targets]
    assert [bool(fault) for fault in faults] == [False, False, True, False]
    assert "image2.png: the image is missing" in faults[2]


def test_a_dead_worker_gives_a_clear_message(dataset):
    def die(image, target):
        os.kill(os.getpid(), signal.SIGKILL)
        return image, target

    loader = build_loader(dataset.with_transform(die), 4, shuffle=False, workers=1)
    with pytest.raises(RuntimeError, match=r"a loader worker died .*; usually memory ran out: use fewer workers"):
        next(loader.epoch(0))


def test_errors_in_settings_say_what_is_valid(dataset):
    with pytest.raises(ValueError, match="batch_size is 3, for 2 processes; it counts the images of all of them"):
        build_loader(dataset, 3, shuffle=True, world_size=2)
    with pytest.raises(DataError, match="the dataset has no images"):
        build_loader(dataset.subset([]), 3, shuffle=True)


def test_there_are_at_most_as_many_workers_as_cores_that_the_process_may_use(dataset, monkeypatch, recwarn):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)  # as after taskset
    used = {
        workers: build_loader(dataset, 5, shuffle=False, workers=workers)._loader.num_workers
        for workers in (0, 2, 4, None)
    }
    assert used == {0: 0, 2: 2, 4: 3, None: 2}
    assert not recwarn.list  # torch has one for each loader with more workers


def test_mixed_seeds_of_neighbors_are_unrelated():
    seeds = {mixed(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert mixed(1, 2) != mixed(2, 1)


@pytest.fixture
def uneven(tmp_path):
    """40 images: all with class a, 10 with b, one with c, and one without any object."""
    records = []
    for number in range(40):
        labels = [0] * (number > 0) + [1] * (number in range(1, 11)) + [2] * (number == 5)
        boxes = np.tile(np.array([[2, 2, 20, 20]], np.float32), (len(labels), 1))
        path = tmp_path / f"{number}.png"
        Image.new("RGB", (40, 32), (number, 0, 0)).save(path)
        flags = np.zeros(len(labels), bool), np.full(len(labels), 324.0)
        records.append(ImageRecord(number, f"{number}.png", path, 40, 32, boxes, np.array(labels, np.int64), *flags))
    settings = InputSettings(32, 64)
    return DetectionDataset(records, ["a", "b", "c"], [1, 2, 3], TrainTransform(settings, AugmentSettings(flip=0.5)))


def test_images_of_rare_classes_are_repeated_as_in_lvis(uneven):
    assert repeat_factors(uneven, False) is repeat_factors(uneven, 0.0) is None
    factors = repeat_factors(uneven, 0.4)
    assert factors[5] == pytest.approx((0.4 / (1 / 40)) ** 0.5) == 4
    assert factors[1] == pytest.approx((0.4 / 0.25) ** 0.5)
    assert factors[0] == factors[20] == 1
    # The median class is b: in a quarter of the images.
    assert repeat_factors(uneven, True)[5] == pytest.approx(10**0.5)
    assert max(repeat_factors(uneven, True)[6:]) == 1
    counts = np.zeros(40)
    for epoch in range(300):
        order = epoch_order(40, 3, epoch, True, factors)
        assert len(order) == round(sum(factors)) == 45
        counts += np.bincount(order, minlength=40)
        assert np.all(np.abs(np.bincount(order, minlength=40) - np.array(factors)) < 1.05)
    assert counts / 300 == pytest.approx(np.array(factors) * 45 / sum(factors), abs=0.1)
    assert order == epoch_order(40, 3, 299, True, factors) != epoch_order(40, 4, 299, True, factors)


def test_repeated_images_differ_and_are_the_same_for_any_processes_workers_and_restarts(uneven):
    whole = list(build_loader(uneven, 4, shuffle=True, seed=3, balance=0.4).epoch(1))
    loader = build_loader(uneven, 4, shuffle=True, seed=3, balance=0.4, workers=1)
    assert (len(loader), loader.images, len(names(whole))) == (12, 45, 45)
    assert all(map(same, whole[5:], loader.epoch(1, start=5)))
    assert names(whole).count("5.png") in (3, 4)
    shares = [
        list(build_loader(uneven, 4, shuffle=True, seed=3, rank=rank, world_size=2, balance=0.4).epoch(1))
        for rank in range(2)
    ]
    for step, batch in enumerate(whole[:-1]):
        targets = [target for pair in zip(*(share[step].targets for share in shares), strict=True) for target in pair]
        assert [target["name"] for target in targets] == [target["name"] for target in batch.targets]
        assert all(torch.equal(a["boxes"], b["boxes"]) for a, b in zip(targets, batch.targets, strict=True))
    # Flipped or not: in some epoch the copies of one image differ.
    lefts = {
        tuple(target["boxes"][0, 0].item() for batch in loader.epoch(epoch) for target in batch.targets
              if target["name"] == "5.png")
        for epoch in range(6)
    }  # fmt: skip
    assert any(len(set(values)) == 2 for values in lefts)
