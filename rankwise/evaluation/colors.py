"""Colours of classes: the same class has the same colour in every picture and figure."""

from __future__ import annotations

import colorsys

#: Okabe and Ito's palette, told apart with any kind of colour vision, and a dark red of Paul Tol's for the black.
_PALETTE = ("#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#F0E442", "#0072B2", "#882255")

#: The same palette's two for things that are no classes.
EMPHASIS, ACCENT = "#0072B2", "#D55E00"

_GOLDEN = 0.618033988749895

RGB = tuple[int, int, int]


def class_color(label: int) -> RGB:
    """The colour of a class, by its label.

    The first eight are safe for colour-blind readers; further ones walk round the colour circle by the golden ratio,
    in three degrees of lightness.

    Args:
        label: The class, from 0.
    """
    if label < len(_PALETTE):
        value = int(_PALETTE[label][1:], 16)
        return value >> 16, value >> 8 & 255, value & 255
    lightness = (0.62, 0.42, 0.76)[label % 3]
    channels = colorsys.hls_to_rgb(label * _GOLDEN % 1, lightness, 0.75)
    red, green, blue = (round(255 * channel) for channel in channels)
    return red, green, blue


def hex_color(label: int) -> str:
    """The colour of a class as ``#rrggbb``."""
    return "#{:02x}{:02x}{:02x}".format(*class_color(label))


def text_color(background: RGB) -> RGB:
    """Black or white, whichever reads better on a colour.

    Args:
        background: The colour below the text.
    """
    red, green, blue = ((channel / 255) ** 2.2 for channel in background)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return (0, 0, 0) if luminance > 0.18 else (255, 255, 255)
