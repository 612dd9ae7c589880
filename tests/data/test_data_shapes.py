"""The built-in dataset: the same seed gives the same bytes, and its objects have the documented properties."""

import hashlib
import pickle

import numpy as np
import pytest
import torch

from rankwise.data import ShapesDataset
from rankwise.data.rendering import TURN, Dice, Outline, ellipse_ring, placed, sine
from rankwise.data.shapes import LARGEST, MAX_OBJECTS, SMALLEST, draw

# The dataset is part of every published result on it. Change a dial of shapes.py and this changes: then say so in the
# change log, since older results no longer compare.
STORED = "5f5ea300400e808b5b9fed82a48a2ebf3aab89e19c24005dd2ed45d2721682a9"


def test_the_same_seed_gives_the_same_bytes_on_every_machine():
    digest = hashlib.sha256()
    for seed, split, index, side in [
        (0, 0, 0, 160),
        (0, 0, 1, 160),
        (7, 1, 499, 160),
        (123456789, 2, 3999, 97),
        (0, 1, 5, 256),
    ]:
        pixels, boxes, labels = draw(seed, split, index, side)
        digest.update(pixels.tobytes() + boxes.astype("<f4").tobytes() + labels.astype("<i8").tobytes())
    assert digest.hexdigest() == STORED


def test_no_sine_is_near_the_edge_where_libraries_could_round_it_differently():
    exact = np.sin(2 * np.pi * np.arange(TURN) / TURN) * 2**14
    assert np.abs(np.abs(exact - np.floor(exact)) - 0.5).min() > 1e-6
    assert sine(0) == sine(TURN // 2) == 0
    assert sine(TURN // 4) == 1


def test_images_do_not_depend_on_those_drawn_before():
    forwards = ShapesDataset("train", images=5)
    backwards = ShapesDataset("train", images=9, cache=False)
    images = [forwards[i][0] for i in range(5)]
    for i in reversed(range(5)):
        assert torch.equal(backwards[i][0], images[i])


def test_splits_and_seeds_have_different_images():
    first = ShapesDataset("train", images=1)[0][0]
    assert not torch.equal(first, ShapesDataset("val", images=1)[0][0])
    assert not torch.equal(first, ShapesDataset("test", images=1)[0][0])
    assert not torch.equal(first, ShapesDataset("train", images=1, seed=1)[0][0])


def test_the_cache_changes_nothing():
    dataset = ShapesDataset("val", images=3)
    first, again = dataset[1], dataset[1]
    fresh = ShapesDataset("val", images=3, cache=False)[1]
    for other in (again, fresh):
        assert torch.equal(first[0], other[0])
        assert torch.equal(first[1]["boxes"], other[1]["boxes"])
        assert torch.equal(first[1]["labels"], other[1]["labels"])
    again[0].zero_()
    assert torch.equal(dataset[1][0], first[0])


def test_forked_processes_share_the_cache():
    dataset = ShapesDataset("val", images=4)
    context = torch.multiprocessing.get_context("fork")
    process = context.Process(target=dataset.load, args=(2,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert dataset._cache is not None
    assert dataset._cache.drawn.tolist() == [0, 0, 1, 0]


@pytest.fixture(scope="module")
def many() -> list:
    return list(ShapesDataset("train", images=150).records)


def test_every_image_has_one_to_eight_objects_and_all_classes_occur(many):
    counts = {len(record.labels) for record in many}
    assert counts == set(range(1, MAX_OBJECTS + 1))
    assert set(np.concatenate([record.labels for record in many]).tolist()) == set(range(8))


def test_boxes_have_area_and_lie_inside_the_image(many):
    boxes = np.concatenate([record.boxes for record in many])
    assert boxes.min() >= 0
    assert boxes.max() <= 160
    assert (boxes[:, 2:] - boxes[:, :2]).min() >= 4
    assert np.concatenate([record.area for record in many]).min() > 0


def test_sizes_span_a_factor_of_six(many):
    area = np.concatenate([record.area for record in many])
    assert (area.max() / area.min()) ** 0.5 > 6
    assert LARGEST / SMALLEST > 6


def test_objects_are_partly_hidden_but_never_more_than_half(monkeypatch):
    from rankwise.data import shapes

    hidden = []
    paint = shapes._Scene.boxes

    def look(scene):
        for number, least in enumerate(scene.least):
            full = least / (1 - shapes.MOST_HIDDEN)
            hidden.append(1 - np.count_nonzero(scene.owner == number + 1) / full)
        return paint(scene)

    monkeypatch.setattr(shapes._Scene, "boxes", look)
    for index in range(40):
        draw(3, 0, index, 160)
    assert max(hidden) <= 0.5
    assert sum(share > 0.2 for share in hidden) > 10


def test_color_does_not_reveal_the_class():
    """A class's mean colour is as far from the other classes' as chance has it."""
    dataset = ShapesDataset("train", images=150)
    colours: dict[int, list] = {label: [] for label in range(8)}
    for image, target in dataset:
        for box, label in zip(target["boxes"].long().tolist(), target["labels"].tolist(), strict=True):
            x, y = (box[0] + box[2]) // 2, (box[1] + box[3]) // 2
            colours[label].append(image[:, y, x].double())
    everything = torch.stack([c for group in colours.values() for c in group])
    for group in colours.values():
        error = everything.std(0) / len(group) ** 0.5
        assert ((torch.stack(group).mean(0) - everything.mean(0)).abs() < 4 * error).all()


def test_subsets_and_pickles_have_the_same_images():
    dataset = ShapesDataset("train", images=6)
    subset = dataset.subset([4, 2])
    assert len(subset) == len(subset.records) == 2
    assert torch.equal(subset[0][0], dataset[4][0])
    assert [record.image_id for record in subset.records] == [5, 3]
    assert torch.equal(pickle.loads(pickle.dumps(subset))[1][0], dataset[2][0])


def test_errors_in_settings_say_what_is_valid():
    with pytest.raises(ValueError, match="the built-in dataset has no vall split, only train, val, test"):
        ShapesDataset("vall")
    with pytest.raises(ValueError, match="at least 1 image of 32 pixels"):
        ShapesDataset("val", size=8)


def test_coverage_equals_supersampling():
    ring = placed(ellipse_ring(48), 14.3, 6.1, 100, 20.3, 17.8)
    hole = placed(ellipse_ring(48)[::-1], 7.0, 3.0, 100, 20.3, 17.8)
    outline = Outline([ring, hole])
    mask = outline.coverage(0, 0, 40, 36)
    fine = (np.arange(40 * 16) + 0.5) / 16
    y, x = np.meshgrid(fine[: 36 * 16], fine, indexing="ij")
    inside = _inside(ring, x, y) & ~_inside(hole, x, y)
    counted = inside.reshape(36, 16, 40, 16).mean(axis=(1, 3))
    assert np.abs(mask - counted).max() < 0.12
    assert np.abs(mask.sum() - outline.area()) < 0.5
    part = outline.coverage(12, 10, 30, 20)
    assert np.array_equal(part, mask[10:20, 12:30])


def _inside(ring: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Even-odd rule, edge by edge."""
    inside = np.zeros(x.shape, bool)
    for (x0, y0), (x1, y1) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        if y0 != y1:
            inside ^= ((y0 <= y) != (y1 <= y)) & (x > x0 + (y - y0) * (x1 - x0) / (y1 - y0))
    return inside


def test_random_numbers_are_uniform():
    dice = Dice(1, 2, 3)
    counts = np.bincount([dice.below(10) for _ in range(20_000)], minlength=10)
    assert np.abs(counts - 2000).max() < 200
    assert np.abs(dice.bytes(100_000).mean() - 127.5) < 1
