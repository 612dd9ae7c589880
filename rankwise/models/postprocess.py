"""From predictions to detections, for a whole batch: top samples, NMS, score voting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from rankwise.errors import ModelError
from rankwise.models.nms import grouped_nms, vote
from rankwise.models.settings import PostprocessSettings
from rankwise.types import Detections, Predictions, to_device

Sizes = Sequence[tuple[int, int]] | Tensor


@dataclass(frozen=True)
class Candidates:
    """Boxes of a batch that may become detections. Candidates of several passes over the same images can be joined.

    Attributes:
        boxes: xyxy in pixels of the original images, [N, 4].
        scores: [N].
        labels: int64 [N].
        image: Index of the image in the batch, int64 [N].
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    image: Tensor


def postprocess(
    predictions: Predictions, sizes: Sizes, original_sizes: Sizes, settings: PostprocessSettings
) -> list[Detections]:
    """Detections of each image, best first, in pixels of the original images.

    ``sizes`` are (height, width) of each input image without padding, ``original_sizes`` before resizing.
    """
    candidates = find_candidates(predictions, sizes, original_sizes, settings)
    return detections(candidates, len(predictions.logits), settings)


@torch.no_grad()
def find_candidates(
    predictions: Predictions, sizes: Sizes, original_sizes: Sizes, settings: PostprocessSettings
) -> Candidates:
    """The best samples of each level above the score threshold, with boxes clipped and mapped to the original images.

    Raises:
        ModelError: If logits or boxes are not finite.
    """
    batch, _, classes = predictions.logits.shape
    device = predictions.logits.device
    best, samples = [], []
    start = 0
    for level, level_logits in zip(
        predictions.level_sizes, predictions.logits.split(predictions.level_sizes, dim=1), strict=True
    ):
        flat = level_logits.reshape(batch, -1)
        # The sigmoid is monotonic, so it can be applied after topk. NaN comes first in topk.
        logits, index = flat.topk(min(settings.topk, flat.shape[1]), dim=1, sorted=False)
        best.append(logits)
        samples.append(index + start * classes)
        start += level
    logits, index = torch.cat(best, dim=1).float(), torch.cat(samples, dim=1)  # [B, K]
    boxes = predictions.boxes.gather(1, (index // classes)[..., None].expand(-1, -1, 4)).float()  # [B, K, 4]
    bad = torch.stack([logits.isnan().any(1), ~boxes.isfinite().flatten(1).all(1)])  # [2, B]

    limit, scale = _limits(sizes, original_sizes, batch, device)
    boxes = torch.minimum(boxes.clamp(min=0), limit[:, None]) * scale[:, None]
    has_area = (boxes[..., 2:] > boxes[..., :2]).all(-1)
    keep = (logits.sigmoid() >= settings.score_threshold) & has_area
    # The only point where the host waits: for the number of candidates and whether they are finite.
    number, *broken = torch.cat([keep.sum().view(1), bad.flatten()]).tolist()
    if any(broken):
        _raise_not_numbers(broken[:batch], broken[batch:])
    chosen = keep.flatten().byte().sort(descending=True, stable=True).indices[:number]
    return Candidates(
        boxes.flatten(0, 1)[chosen],
        logits.flatten()[chosen].sigmoid(),
        index.flatten()[chosen] % classes,
        chosen // index.shape[1],
    )


def joined(passes: Sequence[Candidates]) -> Candidates:
    """Joins the candidates of one or several passes over the same images."""
    if len(passes) == 1:
        return passes[0]
    return Candidates(**{name: torch.cat([getattr(one, name) for one in passes]) for name in vars(passes[0])})


@torch.no_grad()
def detections(candidates: Candidates, images: int, settings: PostprocessSettings) -> list[Detections]:
    """Applies NMS to the candidates of a number of images and returns the detections of each, best first."""
    boxes, scores, labels, image = candidates.boxes, candidates.scores, candidates.labels, candidates.image
    group = labels * images + image if settings.per_class else image
    kept = grouped_nms(boxes, scores, group, settings.nms_threshold)
    kept = kept[scores[kept].argsort(descending=True, stable=True)]
    of_image, order = image[kept].sort(stable=True)
    kept = kept[order]
    ends = torch.searchsorted(of_image, torch.arange(images, device=kept.device), right=True).tolist()
    begins = [0, *ends[:-1]]
    split = [min(end - begin, settings.max_detections) for begin, end in zip(begins, ends, strict=True)]
    kept = torch.cat([kept[begin : begin + count] for begin, count in zip(begins, split, strict=True)])
    voted = vote(boxes, scores, group, kept, settings.voting_sigma) if settings.score_voting else boxes[kept]
    parts = zip(voted.split(split), scores[kept].split(split), labels[kept].split(split), strict=True)
    return [{"boxes": box, "scores": score, "labels": label} for box, score, label in parts]


def _raise_not_numbers(logits: list[int], boxes: list[int]) -> NoReturn:
    """Raises an error that names the invalid outputs and the images."""
    what = " and ".join(name for name, bad in (("class logits", logits), ("boxes", boxes)) if any(bad))
    where = ", ".join(str(image) for image, bad in enumerate(zip(logits, boxes, strict=True)) if any(bad))
    raise ModelError(
        f"the {what} of the detector are not finite (NaN or infinite) in image {where} of the batch: its weights are "
        f"broken, as after a diverged training. Use earlier weights, or train with a lower learning rate."
    )


def _limits(sizes: Sizes, original_sizes: Sizes, batch: int, device: torch.device) -> Tensor:
    """The upper limits of boxes and their scale factors, both for x, y, x, y, [2, B, 4]."""
    seen, original = (torch.as_tensor(one, dtype=torch.float32).reshape(-1, 2) for one in (sizes, original_sizes))
    for one in (seen, original):
        if len(one) != batch:
            raise ModelError(f"{len(one)} image sizes were given for a batch of {batch}")
    return to_device(torch.stack([seen, original / seen]).flip(2).repeat(1, 1, 2), device)
