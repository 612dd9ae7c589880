"""Compares losses on a small dataset whose labels are incomplete: part of the training annotations is removed.

    python tools/imperfect_labels.py --pretrained mobilenetv2_100.safetensors [--out runs/imperfect_labels]
        [--removed 0 20 40] [--seeds 3] [--losses "APELoss()" "FocalLoss()"] [--objects 30]
        [--data DIR --images 600 --size 128] [--edges]

By default the images are drawn: blood cells that touch each other, 160 pixels, three classes of very different
frequency (86, 6 and 8 %), boxes off by 3 % of their size, 200 images for training and 250 for validation, whose labels
are complete. ``--objects`` draws more and smaller cells. ``--data`` takes a random part of a dataset in COCO format
instead. ``--edges`` removes labels as annotators leave them out: most of the red cells at the edge of an image and some
of the others, also from the validation images. ``--losses`` are Python expressions in which ``done`` is the share of
the steps done, in tenths: ``"APELoss(lam=2 + 6 * done)"`` has a λ that rises from 2 to 8. ``"ClassOfImage()"`` is APE
loss that ranks each class of each image separately, ``"BothScopes()"`` the mean of the scopes "batch" and "class". They
are trained with ATSS; ``"default"`` is the recipe as it is, and ``"default --loss=FocalLoss"`` the recipe with a flag.

A run trains neck and head of the recipe photos_mobilenet with 48 channels for ``--steps`` steps. The backbone is
frozen and its features are computed once, so that a run takes 20 seconds on one core. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from small_data import summary, take_part
from torch import Tensor, nn

import rankwise.losses
from rankwise.assign import ATSS
from rankwise.config.datasets import open_datasets
from rankwise.config.recipe import Recipe, parse_recipe
from rankwise.criterion import Criterion
from rankwise.data import EvalTransform
from rankwise.evaluation.coco import Evaluation, evaluate
from rankwise.losses.base import Outcome
from rankwise.models import Detector
from rankwise.reproduce.rows import WITHOUT_PAA_STAR
from rankwise.training.average import MovingAverage
from rankwise.training.schedule import build_optimizer, lr_factor, set_lr

SIDE, SCALE = 160, 2  # of a drawn image, and how much larger it is drawn
CLASSES = ("red", "white", "platelet")
BATCH = 8
OBJECTS = 13  # red cells per image, on average


def main() -> None:
    """Makes the datasets, trains what is missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrained", required=True, help="ImageNet weights of timm's mobilenetv2_100.")
    parser.add_argument("--out", type=Path, default=Path("runs/imperfect_labels"))
    parser.add_argument("--data", type=Path, help="A dataset in COCO format instead of drawn cells.")
    parser.add_argument("--objects", type=int, default=OBJECTS, help="Red cells to try to draw per image, on average.")
    parser.add_argument("--images", type=int, default=600, help="How many training images of --data to use.")
    parser.add_argument("--size", type=int, default=SIDE, help="Side of the input in pixels.")
    parser.add_argument("--removed", type=int, nargs="+", default=[0, 20, 40], help="Percent of the annotations.")
    parser.add_argument("--edges", action="store_true", help="Remove most of the cells at the edges instead.")
    parser.add_argument("--losses", nargs="+", default=["APELoss()", "FocalLoss()"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    config = parser.parse_args()
    drawn = "cells" if config.objects == OBJECTS else f"cells{config.objects}"
    whole = config.out / (drawn if config.data is None else f"{config.data.name}{config.images}")
    if not (whole / "annotations").is_dir():
        draw_cells(whole, config.objects) if config.data is None else take_part(config.data, whole, config.images, 400)
    names = [f"`{loss}`" for loss in config.losses]
    names += [f"difference to {name}" for name in names[1:]]
    print(f"| removed | {' | '.join(names)} |\n|---:|{'---:|' * len(names)}")
    for share in [None] if config.edges else config.removed:
        data = remove(whole, share)
        found = {
            loss: [one_run(config, data, loss, seed, whole) for seed in range(config.seeds)] for loss in config.losses
        }
        first, *others = found.values()
        differences = [[a - b for a, b in zip(first, other, strict=True)] for other in others]
        cells = [summary(values) for values in found.values()] + [summary(values, "+") for values in differences]
        print(f"| {'at edges' if share is None else f'{share} %'} | {' | '.join(cells)} |", flush=True)


def one_run(config: argparse.Namespace, data: Path, loss: str, seed: int, whole: Path) -> float:
    """AP of a run, trained if it is not there."""
    file = config.out / f"{data.name}-{loss}-{config.steps}-seed{seed}.json"
    first, *flags = shlex.split(loss)
    is_recipe = first == "default"
    if not file.is_file():
        recipe = parse_recipe(
            [
                *("--config", "photos_mobilenet", f"--data={data}", "--data.workers=0"),
                *(flags if is_recipe else WITHOUT_PAA_STAR),
                *(f"--model.backbone.pretrained={config.pretrained}", "--model.backbone.frozen_stages=5"),
                *("--model.neck.channels=48", "--model.head.channels=48"),
                *(f"--model.input.short_side={config.size}", f"--model.input.max_side={config.size}"),
            ]
        )

        def criterion(done: float) -> Criterion:
            if is_recipe:
                return Criterion(recipe.loss, recipe.assign, recipe.box)
            names = {**vars(rankwise.losses), **globals(), "done": math.floor(10 * done) / 10}
            return Criterion(eval(loss, names), ATSS(), recipe.box)

        found = train(recipe, criterion, seed, config.steps, whole / f"features{config.size}.pt")
        file.write_text(json.dumps({name: getattr(found, name) for name in ("ap", "ap50", "ap75", "per_class")}))
    return float(json.loads(file.read_text())["ap"])


def train(recipe: Recipe, criterion: Callable[[float], Criterion], seed: int, steps: int, cache: Path) -> Evaluation:
    """Trains neck and head on cached features, and evaluates them.

    Args:
        recipe: The recipe.
        criterion: The criterion of a step, given the share of the steps done.
        seed: The seed of the weights and of the order of the images.
        steps: The number of steps.
        cache: The file of the features, written if it does not exist.
    """
    torch.manual_seed(seed)
    train_set, val_set = open_datasets(recipe.data, recipe.model.input)
    detector = Detector(recipe.model, train_set.classes)
    if not cache.is_file():
        datasets = {"train": train_set, "val": val_set}
        torch.save({name: _features(detector.eval(), data, recipe, name) for name, data in datasets.items()}, cache)
    cached = torch.load(cache)
    levels, sizes = cached["train"]
    detector.train()
    detector.backbone = _Cached()  # type: ignore[assignment]
    detector._prepare = lambda features: features  # type: ignore[method-assign]
    detector = detector.to(memory_format=torch.channels_last)
    optimizer = build_optimizer(detector, recipe.optimizer)
    ema = MovingAverage(detector, recipe.train.ema)
    targets = [_targets(record, size) for record, size in zip(train_set.records, sizes, strict=True)]
    rng, order = np.random.default_rng(seed), list[int]()
    for step in range(steps):
        if len(order) < BATCH:
            order = list(rng.permutation(len(sizes)))
        picked, order = order[:BATCH], order[BATCH:]
        keys = list(zip(picked, rng.integers(0, 2, BATCH), strict=True))
        set_lr(optimizer, lr_factor(step, recipe.schedule, len(sizes) // BATCH, steps))
        batch = [targets[image][flip] for image, flip in keys]
        losses = criterion(step / steps)(detector(_batch(levels, keys)), batch)
        optimizer.zero_grad(set_to_none=True)
        losses.total.backward()
        torch.nn.utils.clip_grad_norm_(detector.parameters(), recipe.optimizer.clip_norm)
        optimizer.step()
        ema.update(step)
    return _evaluate(ema.module.eval(), val_set, *cached["val"])


class ClassOfImage(rankwise.losses.APELoss):
    """APE loss over each class of each image: a class of an image is handed on as an image with one class."""

    def __init__(self) -> None:
        super().__init__(scope="image")

    def ranked(self, logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None) -> Any:
        assert quality is not None
        assert image is not None
        rows, classes = torch.arange(len(labels)).repeat_interleave(logits.shape[1]), torch.arange(logits.shape[1])
        classes = classes.repeat(len(labels))
        alone = torch.where(labels[rows] < 0, -1, (labels[rows] != classes).long())
        return super().ranked(logits.reshape(-1, 1), alone, quality[rows], image[rows] * logits.shape[1] + classes)


class BothScopes(rankwise.losses.APELoss):
    """The mean of APE loss over all classes together and over each class separately."""

    def __init__(self) -> None:
        super().__init__()
        self.by_class = rankwise.losses.APELoss(scope="class")

    def outcome_at(self, *given: Tensor | None) -> Outcome:
        together = super().outcome_at(*given)
        return replace(together, loss=(together.loss + self.by_class.outcome_at(*given).loss) / 2)


class _Cached(nn.Module):
    """In place of the backbone: passes its features on."""

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        return features


def _batch(levels: list[Tensor], keys: list[tuple[int, int]]) -> list[Tensor]:
    picked = [torch.stack([level[image, flip] for image, flip in keys]) for level in levels]
    return [level.contiguous(memory_format=torch.channels_last) for level in picked]


@torch.inference_mode()
def _features(detector: Detector, data: Any, recipe: Recipe, split: str) -> tuple[list[Tensor], list[tuple[int, int]]]:
    """The backbone's features of each image, and in training of its mirror image, with the sizes without padding."""
    data, side = data.with_transform(EvalTransform(recipe.model.input)), recipe.model.input.max_side
    rows, sizes = [], []
    for index in range(len(data)):
        image = data[index][0]
        height, width = image.shape[1:]
        views = torch.full((2 if split == "train" else 1, 3, side, side), 114, dtype=image.dtype)
        for view, pixels in zip(views, (image, image.flip(2)), strict=False):
            view[:, :height, :width] = pixels
        rows.append([level.clone() for level in detector.backbone(detector._prepare(views))])
        sizes.append((height, width))
    return [torch.stack(level) for level in zip(*rows, strict=True)], sizes


def _targets(record: Any, size: tuple[int, int]) -> list[dict[str, Tensor]]:
    """Ground truth of an image in pixels of the input, and of its mirror image."""
    kept = torch.from_numpy(~np.asarray(record.iscrowd))
    boxes = torch.from_numpy(np.asarray(record.boxes, np.float32)) * (size[1] / record.width)
    mirrored = torch.stack([size[1] - boxes[:, 2], boxes[:, 1], size[1] - boxes[:, 0], boxes[:, 3]], 1)
    labels = torch.from_numpy(np.asarray(record.labels))
    return [{"boxes": view[kept], "labels": labels[kept]} for view in (boxes, mirrored)]


@torch.inference_mode()
def _evaluate(detector: Any, data: Any, levels: list[Tensor], sizes: list[tuple[int, int]]) -> Evaluation:
    detector._prepare = lambda features: features
    found = {}
    for first in range(0, len(sizes), 25):
        images = range(first, min(first + 25, len(sizes)))
        records = [data.records[image] for image in images]
        predictions = detector(_batch(levels, [(image, 0) for image in images]))
        originals = [(record.height, record.width) for record in records]
        detections = detector.postprocess(predictions, [sizes[image] for image in images], originals)
        found |= {record.image_id: one for record, one in zip(records, detections, strict=True)}
    return evaluate(data.ground_truth(), found, data.category_ids, data.classes)


def remove(whole: Path, share: int | None) -> Path:
    """The same dataset without a share of the training annotations, in percent; None removes those at edges."""
    data = whole.with_name(f"{whole.name}-{'edges' if share is None else share}")
    (data / "annotations").mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        if not (data / split).exists():
            (data / split).symlink_to((whole / split).resolve())
        content = json.loads((whole / "annotations" / f"instances_{split}.json").read_text())
        if share is None:
            content["annotations"] = _without_edges(content["annotations"], random.Random(split))
        elif split == "train":
            order = list(content["annotations"])
            random.Random(0).shuffle(order)
            gone = {one["id"] for one in order[: round(share / 100 * len(order))]}
            content["annotations"] = [one for one in content["annotations"] if one["id"] not in gone]
        (data / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return data


def _without_edges(annotations: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """Red cells lose their annotation in 7 of 10 cases at the edge of a drawn image, and in 1 of 10 elsewhere."""
    kept = []
    for one in annotations:
        x, y, width, height = one["bbox"]
        at_edge = min(x, y, SIDE - x - width, SIDE - y - height) < 1.5
        if one["category_id"] != 1 or rng.random() >= (0.7 if at_edge else 0.1):
            kept.append(one)
    return kept


def draw_cells(folder: Path, objects: int) -> None:
    """Draws training and validation images with their annotations."""
    (folder / "annotations").mkdir(parents=True)
    for split, seed, number in (("train", 1, 200), ("val", 2, 250)):
        rng = np.random.default_rng(seed)
        (folder / split).mkdir()
        images, annotations = [], []
        for index in range(1, number + 1):
            picture, placed = _picture(rng, objects)
            name = f"{index - 1:04d}.png"
            picture.save(folder / split / name)
            images.append({"id": index, "file_name": name, "width": SIDE, "height": SIDE})
            for kind, (left, top, right, bottom) in placed:
                box = [left, top, right - left, bottom - top]
                one = {"id": len(annotations) + 1, "image_id": index, "category_id": kind + 1, "bbox": box}
                annotations.append({**one, "area": box[2] * box[3], "iscrowd": 0})
        categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES, start=1)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))


def _picture(rng: np.random.Generator, number: int) -> tuple[Image.Image, list[tuple[int, list[float]]]]:
    """One image: red cells, 0 to 2 white cells, 0 to 3 platelets, and their classes and boxes."""
    side = SIDE * SCALE
    canvas = np.ones((side, side, 3), np.float32) * np.array([228, 220, 214], np.float32) + rng.normal(0, 4, 3)
    placed: list[tuple[float, float, float]] = []
    objects: list[tuple[int, list[float]]] = []
    shrunk = min(1.0, math.sqrt(OBJECTS / number))  # so that all find a place
    kinds = [0] * int(rng.integers(number - 5, number + 7)) + [1] * int(rng.choice([0, 1, 1, 1, 2]))
    kinds += [2] * int(rng.choice([0, 0, 1, 1, 2, 3]))
    rng.shuffle(kinds)
    for kind in kinds:
        for _ in range(6):
            x, y = rng.uniform(0, SIDE, 2)
            size = {0: rng.normal(15, 1.4), 1: rng.normal(25, 3), 2: rng.uniform(3.5, 6)}[kind] * shrunk
            if all(math.hypot(x - a, y - b) > 0.72 * (size + r) for a, b, r in placed):
                break
        else:
            continue
        canvas, alpha = _cell(rng, canvas, kind, x, y, size)
        rows, columns = np.nonzero(alpha > 0.5)
        if len(rows) < 20:
            continue
        box = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / SCALE
        width, height = box[2] - box[0], box[3] - box[1]
        if min(width, height) < 4:
            continue
        placed.append((x, y, size))
        box = box + rng.normal(0, 0.03, 4) * np.array([width, height, width, height])  # annotators are not exact
        objects.append((kind, np.clip(box, 0, SIDE).tolist()))
    pixels = canvas + rng.normal(0, 9, (side, side, 1)) + rng.normal(0, 5, (side, side, 3))
    picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.3, 0.9)))), objects


def _cell(
    rng: np.random.Generator, canvas: np.ndarray, kind: int, x: float, y: float, size: float
) -> tuple[np.ndarray, np.ndarray]:
    """The canvas with one more cell, and how much of each pixel it covers."""
    wide, high = size * rng.uniform(0.88, 1.08), size * rng.uniform(0.88, 1.08)
    radius = _radius(rng, x, y, wide, high, rng.uniform(0, 3.1), {0: 0.03, 1: 0.06, 2: 0.1}[kind])
    alpha = np.clip((1 - radius) * size / 1.5 + 0.5, 0, 1)
    if kind == 0:
        pale = np.clip(0.55 - radius, 0, 1)[..., None] * np.array([40, 80, 80])
        color = np.array([205, 150, 150]) + rng.normal(0, 8, 3) + pale * rng.uniform(0.3, 1.2)
    elif kind == 1:
        color = np.array([190, 170, 205]) + rng.normal(0, 8, 3)
        at = x + rng.normal(0, 3), y + rng.normal(0, 3)
        nucleus = _radius(rng, *at, wide * 0.7, high * 0.62, rng.uniform(0, 3), 0.25)
        color = np.where((nucleus < 1)[..., None], np.array([120, 70, 150]) + rng.normal(0, 8, 3), color)
    else:
        color = np.array([150, 105, 170]) + rng.normal(0, 10, 3)
    share = alpha[..., None] * (0.8 if kind == 0 else 0.95)
    return canvas * (1 - share) + color * share, alpha


def _radius(
    rng: np.random.Generator, x: float, y: float, wide: float, high: float, angle: float, wobble: float
) -> np.ndarray:
    """How far each pixel is from the center of a wobbly ellipse, 1 at its edge."""
    rows, columns = np.mgrid[0 : SIDE * SCALE, 0 : SIDE * SCALE] / SCALE
    dx, dy = columns - x, rows - y
    cos, sin = math.cos(angle), math.sin(angle)
    u, v = (dx * cos + dy * sin) / wide, (-dx * sin + dy * cos) / high
    theta = np.arctan2(v, u)
    waves = np.sin(3 * theta + rng.uniform(0, 6)) + np.sin(5 * theta + rng.uniform(0, 6)) / 2
    return np.sqrt(u * u + v * v) / (1 + wobble * waves)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
