"""Reference post-processing: a loop over images, levels and classes, in NumPy and float64."""

from __future__ import annotations

import numpy as np

from rankwise.models import PostprocessSettings
from rankwise.types import Predictions


def plain_iou(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """IoU of one box with many."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=1)
    area = (box[2:] - box[:2]).prod()
    return shared / (area + (others[:, 2:] - others[:, :2]).prod(axis=1) - shared)


def plain_postprocess(
    predictions: Predictions,
    sizes: list[tuple[int, int]],
    original_sizes: list[tuple[int, int]],
    settings: PostprocessSettings,
) -> list[dict[str, np.ndarray]]:
    """Boxes, scores and labels of each image, best first."""
    logits, boxes = predictions.logits.double().numpy(), predictions.boxes.double().numpy()
    classes = logits.shape[2]
    results = []
    for index, (size, original) in enumerate(zip(sizes, original_sizes, strict=True)):
        samples: list[tuple[float, int, np.ndarray]] = []
        start = 0
        for level in predictions.level_sizes:
            entries = [
                (logits[index, anchor, label], anchor, label)
                for anchor in range(start, start + level)
                for label in range(classes)
            ]
            for logit, anchor, label in sorted(entries, key=lambda entry: -entry[0])[: settings.topk]:
                score = 1 / (1 + np.exp(-logit))
                box = np.clip(boxes[index, anchor], 0, [size[1], size[0]] * 2)
                box = box * np.array([original[1] / size[1], original[0] / size[0]] * 2)
                if score >= settings.score_threshold and box[2] > box[0] and box[3] > box[1]:
                    samples.append((score, label, box))
            start += level
        samples.sort(key=lambda sample: -sample[0])
        found = []
        for score, label, box in samples:
            rivals = [other for _, kind, other in found if kind == label or not settings.per_class]
            if not rivals or plain_iou(box, np.array(rivals)).max() <= settings.nms_threshold:
                found.append((score, label, box))
        found = found[: settings.max_detections]
        if settings.score_voting:
            voted = []
            for score, label, box in found:
                group = [one for one in samples if one[1] == label or not settings.per_class]
                around = np.array([other for _, _, other in group])
                iou = plain_iou(box, around)
                weights = np.array([other for other, _, _ in group]) * np.exp(-((1 - iou) ** 2) / settings.voting_sigma)
                weights[iou <= 0] = 0
                voted.append((score, label, (weights[:, None] * around).sum(axis=0) / weights.sum()))
            found = voted
        results.append(
            {
                "boxes": np.array([box for _, _, box in found]).reshape(-1, 4),
                "scores": np.array([score for score, _, _ in found]),
                "labels": np.array([label for _, label, _ in found], dtype=np.int64),
            }
        )
    return results
