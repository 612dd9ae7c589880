"""Test-time augmentation: the candidates of several views of an image (sizes, flips) go through one NMS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankwise.images.tensors import resize_for_input, sizes_of, stack_images
from rankwise.models.postprocess import Candidates, detections, find_candidates, joined
from rankwise.models.settings import InputSettings, PostprocessSettings, TestSettings
from rankwise.types import Detections, Predictions, to_device


@dataclass(frozen=True)
class View:
    """One view of an image: its input settings, and whether it is flipped."""

    input: InputSettings
    flip: bool = False


def tta_views(settings: InputSettings, test: TestSettings) -> list[View]:
    """The views of the settings, at least one; by default only the unchanged image."""
    sizes = [settings.resized(short, test.max_side) for short in test.short_sides] or [settings]
    return [View(size, flip) for size in sizes for flip in ((False, True) if test.flip else (False,))]


@torch.no_grad()
def detect_with_tta(
    forward: Callable[[Tensor], Predictions],
    images: Sequence[Tensor],
    views: Sequence[View],
    settings: PostprocessSettings,
    device: torch.device | None = None,
) -> list[Detections]:
    """The detections of each image, best first, in its original pixels, from all views together.

    Images are uint8 [3, H, W] at their original size, resized on their device. The score threshold and ``topk`` apply
    to each view. Only the candidates of each view are kept, so more views take more time but hardly more memory.
    """
    found = []
    originals = sizes_of(images)
    for view in views:
        resized = [resize_for_input(image, view.input) for image in images]
        seen = [image.flip(-1) for image in resized] if view.flip else resized
        predictions = forward(stack_images(seen, view.input).to(device))
        candidates = find_candidates(predictions, sizes_of(resized), originals, settings)
        found.append(_mirrored(candidates, originals) if view.flip else candidates)
    return detections(joined(found), len(images), settings)


def _mirrored(candidates: Candidates, sizes: Sequence[tuple[int, int]]) -> Candidates:
    """Maps the candidates of flipped images back to the original images."""
    widths = torch.tensor([size[1] for size in sizes], dtype=candidates.boxes.dtype)
    width = to_device(widths, candidates.boxes.device)[candidates.image]
    left, top, right, bottom = candidates.boxes.unbind(1)
    return replace(candidates, boxes=torch.stack([width - right, top, width - left, bottom], dim=1))
