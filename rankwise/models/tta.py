"""Several looks at the same images, larger, smaller and mirrored, whose finds are taken together before suppression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankwise.images.tensors import resize_for_input, sizes_of, stack_images
from rankwise.models.postprocess import Candidates, detections, find_candidates, joined
from rankwise.models.settings import InputSettings, PostprocessSettings, TestSettings
from rankwise.types import Detections, Predictions


@dataclass(frozen=True)
class Look:
    """One look at an image.

    Attributes:
        input: How it is made ready.
        flip: Whether it is mirrored.
    """

    input: InputSettings
    flip: bool = False


def looks_of(settings: InputSettings, test: TestSettings) -> list[Look]:
    """The looks that settings ask for, at least one; by default the plain one alone.

    Args:
        settings: The detector's input settings.
        test: Sizes and mirroring.
    """
    sizes = [_resized(settings, short, test.max_side) for short in test.short_sides] or [settings]
    return [Look(size, flip) for size in sizes for flip in ((False, True) if test.flip else (False,))]


@torch.no_grad()
def detect_in_looks(
    forward: Callable[[Tensor], Predictions],
    images: Sequence[Tensor],
    looks: Sequence[Look],
    settings: PostprocessSettings,
    device: torch.device | None = None,
) -> list[Detections]:
    """Detections of each image, best first, in its own pixels, from all looks together.

    Of each look only the candidates are kept, so that more looks take more time but hardly more memory.

    Args:
        forward: The detector, in evaluation mode.
        images: uint8 [3, H, W] each, in their original size; they are resized where they are.
        looks: How to look at them.
        settings: Thresholds and numbers; the score threshold and ``topk`` hold for each look.
        device: Where the detector is, if the images are elsewhere.
    """
    found = []
    originals = sizes_of(images)
    for look in looks:
        resized = [resize_for_input(image, look.input) for image in images]
        seen = [image.flip(-1) for image in resized] if look.flip else resized
        predictions = forward(stack_images(seen, look.input).to(device))
        candidates = find_candidates(predictions, sizes_of(resized), originals, settings)
        found.append(_mirrored(candidates, originals) if look.flip else candidates)
    return detections(joined(found), len(images), settings)


def _resized(settings: InputSettings, short: int, max_side: int | None) -> InputSettings:
    if settings.keep_ratio:
        long = max_side or settings.max_side
    else:  # stretched to exactly these, whose ratio stays
        long = int(short * settings.max_side / settings.short_side + 0.5)
    return replace(settings, short_side=min(short, long), max_side=long)


def _mirrored(candidates: Candidates, sizes: Sequence[tuple[int, int]]) -> Candidates:
    """What was found in mirrored images, where it is in the images themselves."""
    width = candidates.boxes.new_tensor([size[1] for size in sizes])[candidates.image]
    left, top, right, bottom = candidates.boxes.unbind(1)
    return replace(candidates, boxes=torch.stack([width - right, top, width - left, bottom], dim=1))
