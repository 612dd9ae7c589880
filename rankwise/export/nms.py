"""Post-processing in NumPy, equivalent to ``rankwise.models.postprocess`` in torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankwise.errors import ModelError
from rankwise.models.settings import PostprocessSettings
from rankwise.numpy_boxes import nms, paired_iou

Floats = NDArray[np.floating]
Integers = NDArray[np.int64]


def find_detections(
    scores: Floats,
    boxes: Floats,
    levels: Integers,
    size: tuple[int, int],
    original_size: tuple[int, int],
    settings: PostprocessSettings,
) -> dict[str, np.ndarray]:
    """Detections of one image, best first, in pixels of the original image.

    ``scores`` [A, C] and ``boxes`` [A, 4], in pixels of the input, are those of every anchor, and ``levels`` [A] its
    level. Sizes are (height, width), without padding. Of equal scores the first anchor is best, as in ONNX.
    """
    if not (np.isfinite(scores).all() and np.isfinite(boxes).all()):
        raise ModelError("the output of the model is not finite (NaN or infinite): its weights are broken")
    classes = scores.shape[1]
    flat = scores.reshape(-1)
    chosen = []
    for level in np.unique(levels):
        index = (np.flatnonzero(levels == level)[:, None] * classes + np.arange(classes)).reshape(-1)
        index = index[flat[index] >= settings.score_threshold]
        if len(index) > settings.topk:
            least = np.partition(flat[index], -settings.topk)[-settings.topk]
            better, equal = index[flat[index] > least], index[flat[index] == least]
            index = np.concatenate([better, equal[: settings.topk - len(better)]])
        chosen.append(index)
    index = np.concatenate(chosen)
    height, width = size
    clipped = np.clip(boxes[index // classes], 0, np.array([width, height] * 2, dtype=np.float32))
    clipped = clipped * np.array([original_size[1] / width, original_size[0] / height] * 2, dtype=np.float32)
    real = (clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1])
    clipped, values, labels = clipped[real], flat[index[real]], index[real] % classes
    group = labels if settings.per_class else np.zeros_like(labels)
    kept = grouped_nms(clipped, values, group, settings.nms_threshold)[: settings.max_detections]
    found = vote(clipped, values, group, kept, settings.voting_sigma) if settings.score_voting else clipped[kept]
    return {"boxes": found, "scores": values[kept], "labels": labels[kept]}


def grouped_nms(boxes: Floats, scores: Floats, group: Integers, threshold: float) -> Integers:
    """Indices of the boxes [N, 4] kept by NMS within each group, best first."""
    order = np.argsort(-scores, kind="stable")
    groups = [order[group[order] == one] for one in np.unique(group)]
    kept = np.sort(np.concatenate([order[:0], *(own[nms(boxes[own], threshold)] for own in groups)]))
    return kept[np.argsort(-scores[kept], kind="stable")]


def vote(boxes: Floats, scores: Floats, group: Integers, kept: Integers, sigma: float) -> Floats:
    """Score voting, as :func:`rankwise.models.nms.vote`."""
    result, exact = boxes[kept], boxes.astype(np.float64)
    for row, one in enumerate(kept):
        same = group == group[one]
        overlap = paired_iou(exact[one], exact[same])
        weight = np.where(overlap > 0, scores[same] * np.exp(-((1 - overlap) ** 2) / sigma), 0)
        if weight.sum() > 0:
            result[row] = weight @ boxes[same] / weight.sum()
    return result
