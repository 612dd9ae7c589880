"""Drawing with identical bytes on every machine.

Pixels depend only on integers and on operations that IEEE 754 rounds exactly (add, multiply, divide, square root).
Sines come from a table rounded to 14 bits, so that differences between math libraries vanish. Random numbers are the
raw integers of a generator whose stream NumPy guarantees.
"""

from __future__ import annotations

import math

import numpy as np

#: Angles are integers; a full turn has this many steps.
TURN = 1024
_SINES = [round(math.sin(2 * math.pi * k / TURN) * 2**14) / 2**14 for k in range(TURN)]

#: Corners lie on a grid of 1/64 pixel, so that areas are exact.
_GRID = 64
#: Sample lines per row of pixels; along a row, coverage is exact to 1/256.
_SUBROWS = 4
_FULL = _SUBROWS * 256


def sine(angle: int) -> float:
    """The sine of ``angle`` / 1024 of a turn, to 14 bits."""
    return _SINES[angle % TURN]


def cosine(angle: int) -> float:
    """The cosine of ``angle`` / 1024 of a turn, to 14 bits."""
    return _SINES[(angle + TURN // 4) % TURN]


class Dice:
    """Random numbers from raw 64-bit integers: the same key gives the same stream in every NumPy version."""

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))
        self._stock: list[int] = []

    def below(self, count: int) -> int:
        """An integer from 0 to ``count`` - 1."""
        if not self._stock:
            self._stock = self._bits.random_raw(256).tolist()
        return (self._stock.pop() >> 11) * count >> 53

    def between(self, low: float, high: float) -> float:
        """A number from ``low`` to ``high``."""
        return low + (high - low) * (self.below(1 << 53) * 2.0**-53)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.between(0, 1) < probability

    def bytes(self, count: int) -> np.ndarray:
        """Random bytes, uint8 [count]."""
        raw = self._bits.random_raw(-(-count // 8))
        return raw.astype("<u8", copy=False).view(np.uint8)[:count]


class Outline:
    """Closed polygons, [V, 2] as x, y in pixels, filled as one shape. Overlaps stay filled; polygons of opposite
    orientation are holes."""

    def __init__(self, rings: list[np.ndarray]) -> None:
        corners = np.floor(np.concatenate(rings) * _GRID + 0.5) / _GRID
        following = list(range(1, len(corners) + 1))
        first = 0
        for ring in rings:
            following[first + len(ring) - 1] = first
            first += len(ring)
        self._start, self._end = corners, corners[following]
        self.left, self.top = (math.floor(low) for low in corners.min(axis=0))
        self.right, self.bottom = (math.ceil(high) for high in corners.max(axis=0))

    def area(self) -> float:
        """The area in pixels, including parts outside the image; valid for rings that do not cross."""
        (x0, y0), (x1, y1) = self._start.T, self._end.T
        return abs(float(np.sum(x0 * y1 - x1 * y0))) / 2  # exact on the grid, in any order of summation

    def coverage(self, left: int, top: int, right: int, bottom: int) -> np.ndarray:
        """The covered fraction of each pixel in a window, 0 to 1, float32 [bottom - top, right - left].

        Where a sample line crosses an edge, everything to the right gets the sign of the direction of the edge. The
        cumulative sum along a row is the coverage.
        """
        width, height = right - left, bottom - top
        y = top + (np.arange(height * _SUBROWS) + 0.5) / _SUBROWS
        crossed = (self._start[:, 1:] <= y) ^ (self._end[:, 1:] <= y)  # [E, samples]
        edge, sample = np.divmod(np.flatnonzero(crossed), len(y))
        x0, y0 = self._start.T
        dx, dy = (self._end - self._start).T
        slope = dx / np.where(dy == 0, 1, dy)  # horizontal edges are never crossed
        x = x0[edge] + (y[sample] - y0[edge]) * slope[edge]
        x = np.floor((x - left) * 256 + 0.5).astype(np.int64)
        x = np.minimum(np.maximum(x, 0), width * 256)
        sign = np.sign(dy)[edge]
        cell = (sample // _SUBROWS) * (width + 2) + (x >> 8)
        rest = sign * (x & 255)
        sums = np.bincount(
            np.concatenate((cell, cell + 1)),
            np.concatenate((sign * 256 - rest, rest)),  # integers: their sum is exact in any order
            minlength=height * (width + 2),
        )
        filled = np.abs(np.cumsum(sums.reshape(height, width + 2)[:, :width], axis=1))
        return (np.minimum(filled, _FULL) / _FULL).astype(np.float32)


def ellipse_ring(corners: int) -> np.ndarray:
    """The unit circle as a polygon, [corners, 2]."""
    angles = [k * TURN // corners for k in range(corners)]
    return np.array([(cosine(a), sine(a)) for a in angles])


def placed(ring: np.ndarray, half_width: float, half_height: float, angle: int, x: float, y: float) -> np.ndarray:
    """A ring in the square [-1, 1]², scaled, then rotated, then moved to x, y."""
    across, down = ring[:, 0] * half_width, ring[:, 1] * half_height
    c, s = cosine(angle), sine(angle)
    return np.stack((across * c - down * s + x, across * s + down * c + y), axis=1)


def stroke(points: list[tuple[float, float]], width: float) -> list[np.ndarray]:
    """Rings that together cover a line of this width through the points; consecutive points must differ."""
    corners = np.array(points)
    steps = corners[1:] - corners[:-1]
    lengths = np.sqrt(steps[:, 0] * steps[:, 0] + steps[:, 1] * steps[:, 1])
    along = steps * (width / 2 / lengths)[:, None]
    across = np.stack((-along[:, 1], along[:, 0]), axis=1)
    # Segments are extended by a quarter of the width, so that bends have no notches.
    start, end = corners[:-1] - along / 2, corners[1:] + along / 2
    return list(np.stack((start + across, start - across, end - across, end + across), axis=1))


def smooth_noise(dice: Dice, cells: int, side: int) -> np.ndarray:
    """Smooth value noise, 0 to 1, on a grid of ``cells`` × ``cells``, float32 [side, side]."""
    values = dice.bytes((cells + 1) ** 2).reshape(cells + 1, cells + 1).astype(np.float32) / np.float32(255)
    position = (np.arange(side) + 0.5) * (cells / side)
    index = np.minimum(position.astype(np.int64), cells - 1)
    weight = (position - index).astype(np.float32)
    weight = weight * weight * (3 - 2 * weight)
    rows = values[index] + (values[index + 1] - values[index]) * weight[:, None]
    steps = rows[:, 1:] - rows[:, :-1]
    return rows.take(index, axis=1) + steps.take(index, axis=1) * weight


def waves(x: np.ndarray, y: np.ndarray, angle: int, length: float, phase: float) -> np.ndarray:
    """Stripes perpendicular to ``angle``, a triangle wave from 0 to 1, float32 [y, x]."""
    position = (y * (sine(angle) / length) + phase)[:, None] + x * (cosine(angle) / length)
    position = position.astype(np.float32)
    position -= np.floor(position)
    return np.abs(position - np.float32(0.5)) * 2
