"""Random datasets and detections that cover all rules of COCO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch


@dataclass(frozen=True)
class Scene:
    """Ground truth and detections of a few images."""

    ground_truth: dict[str, Any]
    detections: dict[int, dict[str, torch.Tensor]]
    category_ids: list[int]
    classes: list[str]

    @property
    def parts(self) -> tuple[dict[str, Any], dict[int, dict[str, torch.Tensor]], list[int], list[str]]:
        return self.ground_truth, self.detections, self.category_ids, self.classes


def random_scene(
    seed: int,
    images: int = 12,
    category_ids: tuple[int, ...] = (7, 2, 90),
    objects: int = 8,
    detections: int = 25,
    decimals: int = 2,
) -> Scene:
    """Images without objects, with crowd regions, empty boxes, tied scores, and areas smaller than their boxes."""
    rng = np.random.default_rng(seed)
    image_ids = rng.permutation(np.arange(3, 3 + 5 * images, 5)).tolist()
    annotations: list[dict[str, Any]] = []
    found: dict[int, dict[str, torch.Tensor]] = {}
    for image_id in image_ids:
        count = int(rng.integers(0, objects + 1))
        sides = np.exp(rng.uniform(np.log(6), np.log(250), (count, 2)))
        corners = rng.uniform(0, 300, (count, 2))
        labels = rng.integers(0, len(category_ids), count)
        for corner, side, label in zip(corners, sides, labels, strict=True):
            box = [round(float(value), decimals) for value in (*corner, *side)]
            annotations.append(
                {
                    "id": len(annotations),  # one of them is 0, which pycocotools cannot match
                    "image_id": image_id,
                    "category_id": category_ids[label],
                    "bbox": box,
                    "area": box[2] * box[3] * float(rng.choice([1.0, 0.6])),
                    "iscrowd": int(rng.random() < 0.15),
                }
            )
        count = 0 if rng.random() < 0.15 else int(rng.integers(1, detections + 1))
        if rng.random() < 0.1:
            continue  # an image without an entry
        boxes = np.concatenate([rng.uniform(0, 300, (count, 2)), rng.uniform(2, 250, (count, 2))], axis=1)
        own = rng.integers(0, len(category_ids), count)
        if len(corners):
            near = rng.random(count) < 0.7
            which = rng.integers(0, len(corners), count)
            noise = rng.normal(0, 0.1, (count, 4)) * np.tile(sides[which], 2)
            boxes[near] = (np.concatenate([corners[which], sides[which]], axis=1) + noise)[near]
            correct = near & (rng.random(count) < 0.8)
            own[correct] = labels[which[correct]]
        boxes[:, 2:] = np.maximum(boxes[:, 2:], 0)
        boxes[rng.random(count) < 0.05, 2] = 0
        boxes[:, 2:] += boxes[:, :2]
        scores = rng.random(count).round(int(rng.integers(1, 5)))
        found[image_id] = {
            "boxes": torch.from_numpy(boxes).float(),
            "scores": torch.from_numpy(scores).float(),
            "labels": torch.from_numpy(own),
        }
    categories = [{"id": key, "name": f"class {key}"} for key in sorted(category_ids)]
    listed = [{"id": image_id, "width": 600, "height": 600, "file_name": f"{image_id}.jpg"} for image_id in image_ids]
    truth = {"images": listed, "annotations": annotations, "categories": categories}
    return Scene(truth, found, list(category_ids), [f"class {key}" for key in category_ids])


@pytest.fixture
def scene() -> Callable[..., Scene]:
    """Creates a random scene from a seed."""
    return random_scene
