"""The outlines in the built-in dataset: those of its classes, and clutter that belongs to no class."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rankwise.data.rendering import TURN, Dice, cosine, ellipse_ring, sine, stroke

_CIRCLE = ellipse_ring(48)


def _polar(corners: int, radii: tuple[float, ...]) -> np.ndarray:
    """Corners at equal angles around the center, the first one at the top, with the radii repeated in order."""
    angles = [-TURN // 4 + k * TURN // corners for k in range(corners)]
    return np.array(
        [(cosine(a) * radii[k % len(radii)], sine(a) * radii[k % len(radii)]) for k, a in enumerate(angles)]
    )


def _cross(dice: Dice) -> list[np.ndarray]:
    a, b = dice.between(0.26, 0.42), dice.between(0.26, 0.42)
    quarter = [(a, -1.0), (a, -b), (1.0, -b), (1.0, b), (a, b), (a, 1.0)]
    return [np.array(quarter + [(-x, -y) for x, y in quarter])]


def _crescent(dice: Dice) -> list[np.ndarray]:
    """A disc minus another disc further to the right."""
    opening = TURN // 8 + dice.below(TURN // 10)  # angle of the two tips
    tip_x, tip_y = cosine(opening), sine(opening)
    center = tip_x + dice.between(0.05, 0.45)
    square = (center - tip_x) * (center - tip_x) + tip_y * tip_y
    outer = [(cosine(a), sine(a)) for a in range(opening, TURN - opening, TURN // 48)] + [(tip_x, -tip_y)]
    inner = []
    for k in range(1, 16):  # back from tip to tip, denser near the tips
        y = tip_y * -cosine(k * TURN // 32)
        inner.append((center - math.sqrt(square - y * y), y))
    ring = np.array(outer + inner)
    ring[:, 0] -= (ring[:, 0].max() + ring[:, 0].min()) / 2
    return [ring]


#: The classes, by label: the polygons of each in the square [-1, 1]².
CLASSES: dict[str, Callable[[Dice], list[np.ndarray]]] = {
    "ellipse": lambda dice: [_CIRCLE],
    "triangle": lambda dice: [np.array([(dice.between(-0.5, 0.5), -1.0), (1.0, 1.0), (-1.0, 1.0)])],
    "rectangle": lambda dice: [np.array([(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)])],
    "pentagon": lambda dice: [_polar(5, (1.0,))],
    "star": lambda dice: [_polar(10, (1.0, dice.between(0.38, 0.52)))],
    "cross": _cross,
    "ring": lambda dice: [_CIRCLE, _CIRCLE[::-1] * dice.between(0.45, 0.68)],
    "crescent": _crescent,
}


def clutter(dice: Dice, size: float) -> list[np.ndarray]:
    """Clutter centered at the origin, not an object: a bar, an arc, a zigzag, a blob or an open polygon.

    ``size`` is about half of its extent in pixels.
    """
    kind = dice.below(5)
    width = dice.between(1.5, 2.0 + size / 6)
    turn = dice.below(TURN)
    if kind == 0:  # a bar, thinner than any rectangle
        x, y = cosine(turn) * size, sine(turn) * size
        return stroke([(-x, -y), (x, y)], width)
    if kind == 1:  # an arc of constant width, too open for a ring or a crescent
        span = TURN // 8 + dice.below(TURN // 3)
        points = [(cosine(turn + span * k // 10) * size, sine(turn + span * k // 10) * size) for k in range(11)]
        return stroke(points, width)
    if kind == 2:  # a zigzag
        count = 4 + dice.below(4)
        c, s = cosine(turn), sine(turn)
        points = []
        for k in range(count):
            along, across = size * (2 * k / (count - 1) - 1), dice.between(-0.5, 0.5) * size
            points.append((along * c - across * s, along * s + across * c))
        return stroke(points, width)
    if kind == 3:  # a blob with three bulges; two could pass for an ellipse, four for a cross, five for a star
        count = 6
        radii = [dice.between(0.75, 1.0) if k % 2 else dice.between(0.2, 0.5) for k in range(count)]
        ring = []
        for k in range(32):
            before, part = divmod(k * count, 32)
            blend = (1 - cosine(part * TURN // 64)) / 2
            radius = radii[before] + (radii[(before + 1) % count] - radii[before]) * blend
            angle = turn + k * TURN // 32
            ring.append((cosine(angle) * radius * size, sine(angle) * radius * size))
        return [np.array(ring)]
    # some sides of an open polygon
    count = 2 + dice.below(3)
    points = [(cosine(turn), sine(turn))]
    for _ in range(count):
        turn += TURN // 6 + dice.below(TURN // 6)
        points.append((cosine(turn) * dice.between(0.5, 1.0), sine(turn) * dice.between(0.5, 1.0)))
    return stroke([(x * size, y * size) for x, y in points], width)
