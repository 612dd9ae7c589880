"""From predictions to detections, for a whole batch at once: best samples, suppression, voting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankwise.errors import ModelError
from rankwise.models.nms import grouped_nms, vote
from rankwise.models.settings import PostprocessSettings
from rankwise.types import Detections, Predictions

Sizes = Sequence[tuple[int, int]] | Tensor


@dataclass(frozen=True)
class Candidates:
    """Boxes of a batch that may become detections. Those of several passes over the same images can be joined.

    Attributes:
        boxes: xyxy in pixels of the original images, [N, 4].
        scores: [N].
        labels: int64 [N].
        image: Which image of the batch each is from, int64 [N].
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    image: Tensor


def postprocess(
    predictions: Predictions, sizes: Sizes, original_sizes: Sizes, settings: PostprocessSettings
) -> list[Detections]:
    """Detections of each image, best first, in pixels of the original images.

    Args:
        predictions: The detector's output.
        sizes: (height, width) of each image as the detector saw it, without padding.
        original_sizes: (height, width) of each image before it was resized.
        settings: Thresholds and numbers.
    """
    candidates = find_candidates(predictions, sizes, original_sizes, settings)
    return detections(candidates, len(predictions.logits), settings)


@torch.no_grad()
def find_candidates(
    predictions: Predictions, sizes: Sizes, original_sizes: Sizes, settings: PostprocessSettings
) -> Candidates:
    """The best samples of each level above the score threshold, their boxes cut and mapped to the original images.

    Args:
        predictions: The detector's output.
        sizes: (height, width) of each image as the detector saw it, without padding.
        original_sizes: (height, width) of each image before it was resized.
        settings: Thresholds and numbers.

    Raises:
        ModelError: If logits or boxes are not numbers.
    """
    batch, _, classes = predictions.logits.shape
    device = predictions.logits.device
    best, samples = [], []
    start = 0
    for level, level_logits in zip(
        predictions.level_sizes, predictions.logits.split(predictions.level_sizes, dim=1), strict=True
    ):
        flat = level_logits.reshape(batch, -1)
        # The score rises with the logit, so the sigmoid can wait until few are left; NaN comes first in topk.
        logits, index = flat.topk(min(settings.topk, flat.shape[1]), dim=1, sorted=False)
        best.append(logits)
        samples.append(index + start * classes)
        start += level
    logits, index = torch.cat(best, dim=1).float(), torch.cat(samples, dim=1)  # [B, K]
    keep = logits.sigmoid() >= settings.score_threshold
    boxes = predictions.boxes.gather(1, (index // classes)[..., None].expand(-1, -1, 4)).float()  # [B, K, 4]
    _check_numbers(logits, boxes)

    seen = _as_tensor(sizes, batch, device)
    boxes = torch.minimum(boxes.clamp(min=0), seen.flip(1).repeat(1, 2)[:, None])
    boxes = boxes * (_as_tensor(original_sizes, batch, device) / seen).flip(1).repeat(1, 2)[:, None]
    keep &= (boxes[..., 2] > boxes[..., 0]) & (boxes[..., 3] > boxes[..., 1])
    image, sample = keep.nonzero(as_tuple=True)
    return Candidates(boxes[image, sample], logits[image, sample].sigmoid(), index[image, sample] % classes, image)


def joined(passes: Sequence[Candidates]) -> Candidates:
    """The candidates of several passes over the same images as one.

    Args:
        passes: At least one.
    """
    if len(passes) == 1:
        return passes[0]
    return Candidates(**{name: torch.cat([getattr(one, name) for one in passes]) for name in vars(passes[0])})


@torch.no_grad()
def detections(candidates: Candidates, images: int, settings: PostprocessSettings) -> list[Detections]:
    """Suppresses what is found twice and gives each image its own detections, best first.

    Args:
        candidates: Of all images.
        images: How many images there are.
        settings: Thresholds and numbers.
    """
    boxes, scores, labels, image = candidates.boxes, candidates.scores, candidates.labels, candidates.image
    group = image * (int(labels.max()) + 1 if len(labels) else 1) + labels if settings.per_class else image
    kept = grouped_nms(boxes, scores, group, settings.nms_threshold)
    kept = kept[scores[kept].argsort(descending=True, stable=True)]
    kept = kept[image[kept].argsort(stable=True)]
    counts = torch.bincount(image[kept], minlength=images)
    first = counts.cumsum(0) - counts
    position = torch.arange(len(kept), device=kept.device) - first[image[kept]]
    kept = kept[position < settings.max_detections]
    voted = vote(boxes, scores, group, kept, settings.voting_sigma) if settings.score_voting else boxes[kept]
    split = counts.clamp(max=settings.max_detections).tolist()
    parts = zip(voted.split(split), scores[kept].split(split), labels[kept].split(split), strict=True)
    return [{"boxes": box, "scores": score, "labels": label} for box, score, label in parts]


def _check_numbers(logits: Tensor, boxes: Tensor) -> None:
    bad = torch.stack([logits.isnan().any(dim=1), (~boxes.isfinite()).flatten(1).any(dim=1)])  # [2, B]
    if bad.any():
        what = " and ".join(
            name for name, one in zip(("class logits", "boxes"), bad.any(dim=1).tolist(), strict=True) if one
        )
        where = ", ".join(map(str, bad.any(dim=0).nonzero().flatten().tolist()))
        raise ModelError(
            f"the detector's {what} are not numbers (NaN or infinite) in image {where} of the batch: its weights are "
            "broken, as after a training that diverged. Take earlier weights, or train with a lower learning rate."
        )


def _as_tensor(sizes: Sizes, batch: int, device: torch.device) -> Tensor:
    result = torch.as_tensor(sizes, dtype=torch.float32, device=device).reshape(-1, 2)
    if len(result) != batch:
        raise ModelError(f"{len(result)} image sizes were given for a batch of {batch}")
    return result
