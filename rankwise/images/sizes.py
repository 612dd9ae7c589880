"""The size that an image has when it goes into a detector."""

from __future__ import annotations

from rankwise.images.settings import InputSettings


def input_size(height: int, width: int, settings: InputSettings) -> tuple[int, int]:
    """Height and width that an image of this size is resized to.

    Args:
        height: Of the original image.
        width: Of the original image.
        settings: The detector's.
    """
    short, long = settings.short_side, settings.max_side
    if not settings.keep_ratio:
        return (short, long) if height <= width else (long, short)
    scale = min(short / min(height, width), long / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))
