"""How an image is made ready for a detector, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.errors import ModelError


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ModelError(message)


@dataclass(frozen=True)
class InputSettings:
    """How an image is made ready for the detector.

    Args:
        short_side: Length in pixels that the shorter side is resized to.
        max_side: Longest the longer side may become; it takes precedence over ``short_side``.
        keep_ratio: Keep the ratio of the sides. Otherwise the image is stretched until its shorter side is exactly
            ``short_side`` and its longer one exactly ``max_side``; with equal numbers every image becomes a square.
        divisor: Images are padded at the right and bottom to a multiple of this.
        mean: Mean of red, green and blue over many images, of values from 0 to 1; subtracted first.
        std: Standard deviation of red, green and blue; divided by next.
    """

    short_side: int = 800
    max_side: int = 1333
    keep_ratio: bool = True
    divisor: int = 32
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        _require(self.short_side >= 1, f"input.short_side is {self.short_side}: it must be at least 1")
        _require(
            self.max_side >= self.short_side,
            f"input.max_side is {self.max_side}: it must be at least input.short_side, which is {self.short_side}",
        )
        _require(self.divisor >= 1, f"input.divisor is {self.divisor}: it must be at least 1")
        _require(all(value > 0 for value in self.std), f"input.std is {self.std}: all three must be above 0")
