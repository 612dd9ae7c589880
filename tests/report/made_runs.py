"""Made-up runs for the tests: the built-in images, with random detections around their objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from rankwise.data import DetectionDataset, ImageRecord, ShapesDataset
from rankwise.evaluation import calibrated, evaluate, write_results
from rankwise.report.error_types import classify
from rankwise.report.runs import RunData

Found = dict[int, dict[str, torch.Tensor]]


def detect_around(dataset: DetectionDataset, seed: int, noise: float) -> Found:
    """Boxes near each object, mostly of its class, the nearest with the highest scores; and boxes on the background."""
    rng = np.random.default_rng(seed)
    found: Found = {}
    for record in dataset.records:
        boxes, scores, labels = [], [], []
        for box, label in zip(record.boxes, record.labels, strict=True):
            if rng.random() < 0.1:
                continue
            for turn in range(3):
                shift = rng.normal(0, noise * (1 + 2 * turn), 4) * np.tile(box[2:] - box[:2], 2)
                boxes.append(box + shift)
                labels.append(label if rng.random() < 0.85 else rng.integers(len(dataset.classes)))
                scores.append(np.clip(0.7 - np.abs(shift).mean() / 40 - 0.2 * turn + rng.normal(0, 0.1), 0.01, 0.99))
        for _ in range(4):
            corner = rng.uniform(0, record.width * 0.7, 2)
            boxes.append(np.concatenate([corner, corner + rng.uniform(5, record.width * 0.3, 2)]))
            labels.append(rng.integers(len(dataset.classes)))
            scores.append(rng.uniform(0.01, 0.65))
        found[record.image_id] = {
            "boxes": torch.tensor(np.asarray(boxes)).float().clamp(0, record.width),
            "scores": torch.tensor(np.asarray(scores)).float(),
            "labels": torch.tensor(np.asarray(labels, dtype=np.int64)),
        }
    return found


def make_run(folder: Path, seed: int = 1, noise: float = 0.05, images: int = 30, loss: str = "APELoss") -> Path:
    """A folder as ``rankwise train`` leaves it, without weights."""
    folder.mkdir(parents=True)
    arguments: dict[str, Any] = {"lam": 8.0, "scope": "batch"} if loss == "APELoss" else {"alpha": 0.25, "gamma": 2.0}
    recipe = {
        "data": {"path": "shapes", "workers": 0, "shapes": {"size": 96, "val_images": images}},
        "model": {"backbone": {"name": "resnet10t", "strides": [8, 16, 32]}},
        "loss": {"class_path": f"rankwise.losses.{loss}", "init_args": arguments},
        "assign": {"class_path": "rankwise.assign.ATSS", "init_args": {"k": 9}},
        "train": {"epochs": 4, "batch_size": 16},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    dataset = ShapesDataset("val", size=96, images=images, seed=0)
    found = detect_around(dataset, seed, noise)
    write_results(folder / "detections.json", found, dataset.category_ids)
    result = evaluate(dataset.ground_truth(), found, dataset.category_ids, dataset.classes)
    result = calibrated(result, [record.image_id for record in dataset.records])
    (folder / "eval.json").write_text(json.dumps(result.to_dict()), encoding="utf-8")
    lines: list[dict[str, Any]] = []
    for step in range(25, 1025, 25):
        numbers = {"ranking": 0.3 / (1 + step / 200), "box": 1 / (1 + step / 400), "lr": 0.002 * (1 - step / 1100)}
        lines.append({"kind": "train", "step": step, "epoch": step // 256, **numbers, "seconds": {"wait": 0.1}})
        if step % 250 == 0:
            lines.append({"kind": "eval", "step": step, "epoch": step // 256, "seconds": 1.0, "ap": step / 25})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


class PaintedDataset(DetectionDataset):
    """Images of a single color, without files."""

    def load(self, index: int) -> tuple[torch.Tensor, ImageRecord]:
        record = self.records[index]
        return torch.full((3, record.height, record.width), 90, dtype=torch.uint8), record


def painted(names: list[str], classes: list[str], objects: int = 2, side: int = 100) -> PaintedDataset:
    """A dataset of images with these names, each with some objects side by side."""
    records = []
    for number, name in enumerate(names, start=1):
        left = np.arange(objects) * side / max(1, objects)
        boxes = np.stack([left, 0 * left + 20, left + side / max(2, 2 * objects), 0 * left + 60], axis=1)
        labels = (np.arange(objects) + number) % len(classes)
        records.append(
            ImageRecord(
                image_id=number,
                name=name,
                path=None,
                width=side,
                height=side,
                boxes=boxes.astype(np.float32).reshape(-1, 4),
                labels=labels.astype(np.int64),
                iscrowd=np.zeros(objects, dtype=np.bool_),
                area=np.prod(boxes[:, 2:] - boxes[:, :2], axis=1).astype(np.float64).reshape(-1),
            )
        )
    return PaintedDataset(records, classes, list(range(1, len(classes) + 1)))


def opened(dataset: DetectionDataset, found: Found, name: str = "run", **values: Any) -> RunData:
    """A run for a report, without a folder."""
    result = evaluate(dataset.ground_truth(), found, dataset.category_ids, dataset.classes)
    fields = {"recipe": {}, "metrics": [], "dataset_name": "painted", "dataset_key": "painted", "notes": []} | values
    return RunData(name=name, dataset=dataset, evaluation=result, errors=classify(result.matches), **fields)
