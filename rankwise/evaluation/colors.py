"""Colors of classes, the same in all images and figures."""

from __future__ import annotations

import colorsys
from functools import lru_cache
from itertools import product

import numpy as np

#: The palette of Okabe and Ito, which is safe for color-blind readers, with a dark red of Paul Tol instead of black.
_PALETTE = ("#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#F0E442", "#0072B2", "#882255")

#: Two colors of the same palette for things other than classes.
EMPHASIS, ACCENT = "#0072B2", "#D55E00"

RGB = tuple[int, int, int]


def class_color(label: int) -> RGB:
    """The color of a class by its label.

    The first eight are safe for color-blind readers. Each further color is the one that differs most from all previous
    ones. They repeat after about two hundred.
    """
    colors = _all_colors()
    return colors[label % len(colors)]


@lru_cache(maxsize=1)
def _all_colors() -> list[RGB]:
    """The palette, then colors from a grid of hue, lightness and saturation, each the farthest from all previous
    ones."""
    first = np.asarray([[int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in _PALETTE], dtype=np.float64)
    grid = product(np.arange(24) / 24, (0.35, 0.5, 0.65, 0.8), (0.45, 0.9))
    rest = np.asarray([colorsys.hls_to_rgb(*point) for point in grid]).round(2) * 255
    weights = np.sqrt([2.0, 4.0, 3.0])  # approximate perceptual weights of red, green and blue
    distance = np.linalg.norm((rest[:, None] - first) * weights, axis=-1).min(axis=1)
    chosen = list(first)
    for _ in range(len(rest)):
        best = int(distance.argmax())
        chosen.append(rest[best])
        distance = np.minimum(distance, np.linalg.norm((rest - rest[best]) * weights, axis=-1))
    return [(int(red), int(green), int(blue)) for red, green, blue in np.asarray(chosen).round()]


def hex_color(label: int) -> str:
    """The color of a class as ``#rrggbb``."""
    return "#{:02x}{:02x}{:02x}".format(*class_color(label))


def text_color(background: RGB) -> RGB:
    """Black or white, whichever is more readable on a color."""
    red, green, blue = ((channel / 255) ** 2.2 for channel in background)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return (0, 0, 0) if luminance > 0.18 else (255, 255, 255)
