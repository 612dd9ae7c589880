"""Input settings of a detector, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rankwise.errors import ModelError

#: Minimum input side in pixels: torch cannot shrink an image of bytes to a single pixel.
LEAST_SIDE = 2

#: Maximum input side in pixels, because the settings may come from untrusted weights.
MOST_SIDE = 20_000


def require(condition: bool, message: str) -> None:
    """Raises a ModelError with this message unless the condition holds."""
    if not condition:
        raise ModelError(message)


@dataclass(frozen=True)
class InputSettings:
    """How images are resized, padded and normalized for the detector.

    Args:
        short_side: The shorter side after resizing, in pixels.
        max_side: Maximum longer side; it takes precedence over ``short_side``.
        keep_ratio: Keep the aspect ratio. Otherwise the shorter side becomes exactly ``short_side`` and the longer one
            exactly ``max_side``; with equal values every image becomes a square.
        divisor: Images are padded at the right and bottom to a multiple of this.
        mean: Mean of red, green and blue, for values from 0 to 1; subtracted first.
        std: Standard deviation of red, green and blue; the divisor after that.
    """

    short_side: int = 800
    max_side: int = 1333
    keep_ratio: bool = True
    divisor: int = 32
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        require(
            self.short_side >= LEAST_SIDE, f"input.short_side is {self.short_side}: it must be at least {LEAST_SIDE}"
        )
        require(
            self.max_side >= self.short_side,
            f"input.max_side is {self.max_side}: it must be at least input.short_side, which is {self.short_side}",
        )
        require(self.max_side <= MOST_SIDE, f"input.max_side is {self.max_side}: it must be at most {MOST_SIDE}")
        require(1 <= self.divisor <= 1024, f"input.divisor is {self.divisor}: it must be 1 to 1024")
        require(all(value > 0 for value in self.std), f"input.std is {self.std}: all three must be above 0")

    @property
    def mean_colour(self) -> tuple[int, int, int]:
        """The padding color in bytes: close to 0 after normalization."""
        red, green, blue = (round(255 * value) for value in self.mean)
        return red, green, blue

    def resized(self, short_side: int, max_side: int | None = None) -> InputSettings:
        """The same settings for another size, for test-time augmentation or multi-scale training.

        Args:
            short_side: The new short side.
            max_side: The new maximum long side; unchanged if not given. With ``keep_ratio`` false, the ratio of
                ``max_side`` to ``short_side`` is kept instead.
        """
        stretched = int(short_side * self.max_side / self.short_side + 0.5)
        long = (max_side or self.max_side) if self.keep_ratio else stretched
        sides = min(short_side, long), long
        return self if sides == (self.short_side, self.max_side) else replace(self, short_side=sides[0], max_side=long)

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of a resized image, without padding."""
        short, long = self.short_side, self.max_side
        if not self.keep_ratio:
            return (short, long) if height <= width else (long, short)
        scale = min(short / min(height, width), long / max(height, width))
        return max(1, round(height * scale)), max(1, round(width * scale))


def padded_size(sizes: Iterable[tuple[int, int]], divisor: int) -> tuple[int, int]:
    """Height and width of a padded batch of images with these (height, width), multiples of the divisor."""
    height, width = (-(-max(sides) // divisor) * divisor for sides in zip(*sizes, strict=True))
    return height, width


#: Default padding color: the ImageNet mean, in bytes.
MEAN_COLOUR = InputSettings().mean_colour
