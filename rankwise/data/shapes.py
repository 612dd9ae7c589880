"""The built-in dataset: eight classes that differ in shape, generated from a seed, identical on every machine.

Each image is a function of seed, split and index only. Boxes follow COCO's rules: tight around the visible part,
without what other objects or the image border hide.
"""

from __future__ import annotations

import copy
import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankwise.data.dataset import DetectionDataset, ImageRecord, Transform
from rankwise.data.outlines import CLASSES, clutter
from rankwise.data.rendering import TURN, Dice, Outline, placed, smooth_noise, waves
from rankwise.errors import DataError

# These set the difficulty. A small network trained for minutes should reach 30 to 70 AP, where losses still differ.
MAX_OBJECTS = 8
SMALLEST, LARGEST = 0.14, 0.85  # square root of width × height, as a fraction of the image side: a factor of 6
MAX_ASPECT = 2.5
THINNEST = 0.08  # fraction of the image side: below ten of 128 pixels, the class is no longer visible
MOST_HIDDEN = 0.5  # fraction of the area of an object, behind others and outside the image together
OUTSIDE = 0.25  # fraction of the size of an object that may be outside the image
CONTRAST = (70.0, 160.0)  # gray levels between object and background
CLUTTER = (1, 4)  # number of clutter shapes behind the objects
CLUTTER_IN_FRONT = 0.12  # probability of another one after each object
NOISE = (2.0, 8.0)  # standard deviation in gray levels

_SIZES = [
    round(SMALLEST * (LARGEST / SMALLEST) ** (k / 255) * 2**14) / 2**14 for k in range(256)
]  # uniform in the logarithm
_SPLITS = {"train": 0, "val": 1, "test": 2}
_IMAGES = {"train": 4000, "val": 500, "test": 500}
_ATTEMPTS = 8


class _Scene:
    """One image while it is drawn."""

    def __init__(self, dice: Dice, side: int) -> None:
        self.dice = dice
        self.side = side
        self.pixels = self._background()  # float32 [3, side, side]
        self.owner = np.zeros((side, side), np.uint8)  # the visible object at each pixel, 0 for none
        self.labels: list[int] = []
        self.seen: list[int] = []  # visible pixels of each object
        self.least: list[float] = []  # the minimum of those
        self.windows: list[tuple[slice, slice]] = []

    def _background(self) -> np.ndarray:
        dice, side = self.dice, self.side
        x = np.arange(side, dtype=np.float64)
        self.hills = smooth_noise(dice, 3 + dice.below(4), side)
        self.grain = smooth_noise(dice, 14 + dice.below(14), side)
        one, two, three = (_colour(dice, 30.0, 225.0) for _ in range(3))
        blend = self.hills if dice.chance(0.6) else waves(x, x, dice.below(TURN), side * dice.between(0.15, 1.5), 0.0)
        fine = (self.grain - np.float32(0.5)) * np.float32(dice.between(0.1, 0.5))
        keep = np.float32(dice.between(0.2, 0.8))  # weight of the second color
        pixels = one + (two - one) * keep * blend
        pixels += (three - one) * fine
        return pixels

    def clutter(self) -> None:
        """Draws clutter, unless it would hide too much of an object."""
        dice, side = self.dice, self.side
        x, y = dice.between(0, side), dice.between(0, side)
        rings = clutter(dice, side * _SIZES[dice.below(200)] * 0.5)
        self._paint(Outline([np.add(ring, (x, y)) for ring in rings]), label=None)

    def object(self) -> None:
        """Draws one object, if a free position is found in a few attempts."""
        dice, side = self.dice, self.side
        label = dice.below(len(CLASSES))
        size = side * _SIZES[dice.below(256)]
        most = max(1.0, min(MAX_ASPECT, size * size / (THINNEST * side * THINNEST * side)))
        stretch = math.sqrt(dice.between(1.0, most))
        half_width, half_height = size * stretch / 2, size / stretch / 2
        rings = list(CLASSES.values())[label](dice)
        angle = dice.below(TURN)
        margin = size * (0.5 - OUTSIDE)
        for _ in range(_ATTEMPTS):
            x, y = dice.between(margin, side - margin), dice.between(margin, side - margin)
            outline = Outline([placed(ring, half_width, half_height, angle, x, y) for ring in rings])
            if self._paint(outline, label):
                return

    def _paint(self, outline: Outline, label: int | None) -> bool:
        left, top = max(outline.left, 0), max(outline.top, 0)
        right, bottom = min(outline.right, self.side), min(outline.bottom, self.side)
        if right <= left or bottom <= top:
            return False
        mask = outline.coverage(left, top, right, bottom)
        window = (slice(top, bottom), slice(left, right))
        solid = mask >= np.float32(0.5)
        visible = int(np.count_nonzero(solid))
        least = 0.0 if label is None else (1 - MOST_HIDDEN) * outline.area()
        if visible < least:
            return False
        owner = self.owner[window]
        if self.labels:
            covered = np.bincount(owner[solid], minlength=len(self.labels) + 1)[1:].tolist()
            seen = [before - lost for before, lost in zip(self.seen, covered, strict=True)]
            if any(now < needed for now, needed in zip(seen, self.least, strict=True)):
                return False
            self.seen = seen
        view = self.pixels[:, top:bottom, left:right]
        view += (self._texture(window, mask) - view) * mask
        if label is None:
            owner[solid] = 0
        else:
            self.labels.append(label)
            self.seen.append(visible)
            self.least.append(least)
            self.windows.append(window)
            owner[solid] = len(self.labels)
        return True

    def _texture(self, window: tuple[slice, slice], mask: np.ndarray) -> np.ndarray:
        """Colors for a window, [3, h, w], with a random contrast to the background."""
        dice = self.dice
        view = self.pixels[:, window[0], window[1]]
        h, w = mask.shape
        behind = np.floor(view[:, h // 4 :: max(1, h // 2), w // 4 :: max(1, w // 2)]).mean(axis=(1, 2))
        contrast = dice.between(*CONTRAST)
        away = _colour(dice, -1.0, 1.0)
        away[dice.below(3)] = 1.0 if dice.chance(0.5) else -1.0  # at least one channel has the full contrast
        step = away * np.float32(contrast)
        one = behind[:, None, None].astype(np.float32) + step
        # A channel that would leave the range moves the other way, which keeps the contrast.
        one = np.where((one < 8) | (one > 247), one - 2 * step, one)
        kind = dice.below(6)
        other = _colour(dice, -0.7, 0.7) * np.float32(contrast)
        y, x = (np.arange(s.start, s.stop, dtype=np.float64) for s in window)
        if kind == 0:
            return np.broadcast_to(one, view.shape)
        if kind == 1:  # a slow gradient
            blend = waves(x, y, dice.below(TURN), 3.0 * (h + w), dice.between(0, 1))
        elif kind in (2, 3):  # soft or hard stripes
            blend = waves(x, y, dice.below(TURN), dice.between(4.0, 6.0 + (h + w) / 8), dice.between(0, 1))
            if kind == 3:
                blend = np.clip(blend * 4 - np.float32(1.5), 0, 1)
        elif kind == 4:  # dots
            turn, length = dice.below(TURN), dice.between(4.0, 6.0 + (h + w) / 10)
            blend = waves(x, y, turn, length, 0.0) * waves(x, y, turn + TURN // 4, length, 0.0)
        else:
            blend = (self.grain if dice.chance(0.5) else self.hills)[window]
        return one + other * blend

    def finish(self) -> np.ndarray:
        """The image with noise, uint8 [3, side, side]."""
        count = 3 * self.side * self.side
        # The difference of two random bytes has a triangular distribution with a standard deviation of 104.5.
        grains = self.dice.bytes(2 * count).astype(np.int16)
        grains = (grains[:count] - grains[count:]).reshape(self.pixels.shape)
        pixels = self.pixels + grains * np.float32(self.dice.between(*NOISE) / 104.5)
        return np.clip(np.floor(pixels + np.float32(0.5)), 0, 255).astype(np.uint8)

    def boxes(self) -> np.ndarray:
        """Boxes around the visible part of each object, xyxy, float32 [N, 4]."""
        boxes = np.zeros((len(self.labels), 4), np.float32)
        for number, (rows, columns) in enumerate(self.windows):
            seen = self.owner[rows, columns] == number + 1
            y, x = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
            boxes[number] = (
                columns.start + x[0],
                rows.start + y[0],
                columns.start + x[-1] + 1,
                rows.start + y[-1] + 1,
            )
        return boxes


def _colour(dice: Dice, low: float, high: float) -> np.ndarray:
    return np.array([dice.between(low, high) for _ in range(3)], np.float32)[:, None, None]


def draw(seed: int, split: int, index: int, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One image of the dataset: pixels uint8 [3, side, side], boxes float32 [N, 4], labels int64 [N]."""
    dice = Dice(seed, split, index)
    scene = _Scene(dice, side)
    for _ in range(CLUTTER[0] + dice.below(CLUTTER[1] - CLUTTER[0] + 1)):
        scene.clutter()
    wanted = 1 + dice.below(MAX_OBJECTS)
    for _ in range(wanted):
        scene.object()
        if dice.chance(CLUTTER_IN_FRONT):
            scene.clutter()
    while not scene.labels:  # every image has an object
        scene.object()
    return scene.finish(), scene.boxes(), np.array(scene.labels, np.int64)


class _Cache:
    """A cache of generated images, shared with forked workers; whichever process generates an image stores it.

    Uses anonymous shared memory instead of files in /dev/shm, which is small in containers.
    """

    def __init__(self, images: int, side: int) -> None:
        self.pixels = self._shared((images, 3, side, side), np.uint8)
        self.boxes = self._shared((images, MAX_OBJECTS, 5), np.int16)  # xyxy and label + 1; 0 for unused rows
        self.drawn = self._shared((images,), np.uint8)

    @staticmethod
    def _shared(shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
        count = math.prod(shape)
        return np.frombuffer(mmap.mmap(-1, max(1, count * np.dtype(dtype).itemsize)), dtype, count).reshape(shape)

    def __reduce__(self) -> tuple[type[_Cache], tuple[int, int]]:
        # Shared memory survives a fork but not pickling: other processes get an empty cache.
        return _Cache, (len(self.pixels), self.pixels.shape[-1])

    def put(self, index: int, pixels: np.ndarray, boxes: np.ndarray, labels: np.ndarray) -> None:
        self.pixels[index] = pixels
        self.boxes[index, : len(labels), :4] = boxes
        self.boxes[index, : len(labels), 4] = labels + 1
        self.drawn[index] = 1  # last, so that no process reads an incomplete image

    def get(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        if not self.drawn[index]:
            return None
        rows = self.boxes[index]
        rows = rows[rows[:, 4] > 0]
        return self.pixels[index].copy(), rows[:, :4].astype(np.float32), rows[:, 4].astype(np.int64) - 1


class _Records(Sequence[ImageRecord]):
    """Records that are generated on access."""

    def __init__(self, dataset: ShapesDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        return self._dataset.load(index)[1]


class ShapesDataset(DetectionDataset):
    """Shapes on busy backgrounds, generated on access: no files, no download.

    Eight classes that differ in shape, 1 to 8 objects per image, with sizes over a factor of 6, at any rotation and
    aspect ratio, up to half hidden, textured, with clutter and noise. The same seed gives the same images everywhere.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``; they have no image in common.
        images: Number of images; by default 4000 for training and 500 otherwise.
        size: Width and height of the images in pixels.
        seed: Random seed of the images.
        cache: Keep generated images in memory, shared with the loader workers.
        transform: Applied to each image and its target.
    """

    def __init__(
        self,
        split: str = "train",
        images: int | None = None,
        size: int = 128,
        seed: int = 0,
        cache: bool = True,
        transform: Transform | None = None,
    ) -> None:
        if split not in _SPLITS:
            raise DataError(f"the built-in dataset has no {split} split, only {', '.join(_SPLITS)}")
        images = _IMAGES[split] if images is None else images
        if images < 1 or size < 32 or seed < 0:
            raise DataError(
                f"images is {images}, size {size}, seed {seed}; the built-in dataset needs at least 1 image of "
                "32 pixels per side and a seed that is not negative"
            )
        self.split, self.size, self.seed = split, size, seed
        self._indices: Sequence[int] = range(images)
        self._cache = _Cache(images, size) if cache else None
        super().__init__(_Records(self), list(CLASSES), list(range(1, len(CLASSES) + 1)), transform)

    def __len__(self) -> int:
        return len(self._indices)

    def load(self, index: int) -> tuple[Tensor, ImageRecord]:
        number = self._indices[index]
        drawn = self._cache.get(number) if self._cache else None
        if drawn is None:
            drawn = draw(self.seed, _SPLITS[self.split], number, self.size)
            if self._cache:
                self._cache.put(number, *drawn)
        pixels, boxes, labels = drawn
        area = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).astype(np.float64)
        record = ImageRecord(
            image_id=number + 1,
            name=f"{number + 1:06d}.png",
            path=None,
            width=self.size,
            height=self.size,
            boxes=boxes,
            labels=labels,
            iscrowd=np.zeros(len(labels), bool),
            area=area,
        )
        return torch.from_numpy(pixels), record

    def fingerprint(self) -> str:
        return repr((self.split, self.size, self.seed, len(self)))  # the images are a function of these

    def subset(self, indices: Sequence[int]) -> ShapesDataset:
        other = copy.copy(self)
        other._indices = [self._indices[index] for index in indices]
        other.records = _Records(other)
        return other
