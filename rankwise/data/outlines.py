"""The outlines that the built-in dataset draws: its classes, and the clutter that belongs to none."""

from __future__ import annotations

import math

import numpy as np

from rankwise.data.rendering import TURN, Dice, cosine, ellipse_ring, sine, stroke

_CIRCLE = ellipse_ring(48)


def _polar(corners: int, radii: tuple[float, ...], start: int = -TURN // 4) -> np.ndarray:
    """Corners evenly around the centre, their radii repeating in turn."""
    angles = [start + k * TURN // corners for k in range(corners)]
    return np.array(
        [(cosine(a) * radii[k % len(radii)], sine(a) * radii[k % len(radii)]) for k, a in enumerate(angles)]
    )


def _ellipse(dice: Dice) -> list[np.ndarray]:
    return [_CIRCLE]


def _triangle(dice: Dice) -> list[np.ndarray]:
    return [np.array([(dice.between(-0.5, 0.5), -1.0), (1.0, 1.0), (-1.0, 1.0)])]


def _rectangle(dice: Dice) -> list[np.ndarray]:
    return [np.array([(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)])]


def _pentagon(dice: Dice) -> list[np.ndarray]:
    return [_polar(5, (1.0,))]


def _star(dice: Dice) -> list[np.ndarray]:
    return [_polar(10, (1.0, dice.between(0.38, 0.52)))]


def _cross(dice: Dice) -> list[np.ndarray]:
    a, b = dice.between(0.26, 0.42), dice.between(0.26, 0.42)
    quarter = [(a, -1.0), (a, -b), (1.0, -b), (1.0, b), (a, b), (a, 1.0)]
    return [np.array(quarter + [(-x, -y) for x, y in quarter])]


def _ring(dice: Dice) -> list[np.ndarray]:
    return [_CIRCLE, _CIRCLE[::-1] * dice.between(0.45, 0.68)]


def _crescent(dice: Dice) -> list[np.ndarray]:
    """A disc from which another one, further to the right, takes a bite."""
    opening = TURN // 8 + dice.below(TURN // 10)  # the horns are at this angle, above and below
    tip_x, tip_y = cosine(opening), sine(opening)
    centre = tip_x + dice.between(0.05, 0.45)
    square = (centre - tip_x) * (centre - tip_x) + tip_y * tip_y
    outer = [(cosine(a), sine(a)) for a in range(opening, TURN - opening, TURN // 48)] + [(tip_x, -tip_y)]
    inner = []
    for k in range(1, 16):  # back from horn to horn, closer together near them
        y = tip_y * -cosine(k * TURN // 32)
        inner.append((centre - math.sqrt(square - y * y), y))
    ring = np.array(outer + inner)
    ring[:, 0] -= (ring[:, 0].max() + ring[:, 0].min()) / 2
    return [ring]


#: The classes, by label.
CLASSES = {
    "ellipse": _ellipse,
    "triangle": _triangle,
    "rectangle": _rectangle,
    "pentagon": _pentagon,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
    "crescent": _crescent,
}


def clutter(dice: Dice, size: float) -> list[np.ndarray]:
    """Something around 0, 0 that is no object: a bar, an arc, a zigzag, a lump or a bent line.

    Args:
        dice: Where the choice comes from.
        size: About half its extent in pixels.
    """
    kind = dice.below(5)
    width = dice.between(1.5, 2.0 + size / 6)
    turn = dice.below(TURN)
    if kind == 0:  # a bar, too thin for a rectangle
        x, y = cosine(turn) * size, sine(turn) * size
        return stroke([(-x, -y), (x, y)], width)
    if kind == 1:  # an arc of even width, too open for a ring or a crescent
        span = TURN // 8 + dice.below(TURN // 3)
        points = [(cosine(turn + span * k // 10) * size, sine(turn + span * k // 10) * size) for k in range(11)]
        return stroke(points, width)
    if kind == 2:  # a zigzag or a squiggle
        count = 4 + dice.below(4)
        c, s = cosine(turn), sine(turn)
        points = []
        for k in range(count):
            along, across = size * (2 * k / (count - 1) - 1), dice.between(-0.5, 0.5) * size
            points.append((along * c - across * s, along * s + across * c))
        return stroke(points, width)
    if kind == 3:  # a lump with three bulges: two would pass for an ellipse, four for a cross, five for a star
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
    # a few sides of a polygon that does not close
    count = 2 + dice.below(3)
    points = [(cosine(turn), sine(turn))]
    for _ in range(count):
        turn += TURN // 6 + dice.below(TURN // 6)
        points.append((cosine(turn) * dice.between(0.5, 1.0), sine(turn) * dice.between(0.5, 1.0)))
    return stroke([(x * size, y * size) for x, y in points], width)
