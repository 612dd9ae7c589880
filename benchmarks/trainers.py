"""Ranking in other people's trainers, on images that were not trained on: own loss, ranking, ranking plus own loss.

    python benchmarks/trainers.py                                       # all rows
    python benchmarks/trainers.py --models yolo11 --seeds 0 --epochs 5  # a part of them
    python benchmarks/trainers.py --models yolo11 --weight 5            # with another weight of the ranking loss

Slim YOLO11 and YOLO26 of ultralytics, by ``yolo.train``, and a tiny RT-DETR v2 of transformers, from random weights on
300 drawn images; AP on 300 others by ``rankwise.evaluation``. The images are simple, so that a minute on one core
teaches enough to compare. Settings are the same for all variants of a model and were chosen with its own loss. Rows
that are in the results already are not run again. Nothing is downloaded. It needs ``pip install ultralytics
transformers``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("YOLO_OFFLINE", "true")

import numpy as np
import torch
import yaml
from PIL import Image, ImageDraw
from torch import Tensor
from torchvision.ops import box_convert
from torchvision.transforms.functional import pil_to_tensor

from rankwise.evaluation import evaluate
from rankwise.losses import APELoss

IMAGES, SIZE, BATCH = 300, 64, 16
CLASSES = ["rectangle", "ellipse", "triangle"]
#: The models with their epochs, the same for all variants of a model.
EPOCHS = {"yolo11": 20, "yolo26": 20, "rtdetr": 30}
TITLES = {"yolo11": "YOLO11, slim", "yolo26": "YOLO26, slim", "rtdetr": "RT-DETR v2, tiny"}
#: Weight of the ranking loss, which is multiplied by ``--weight``, and of the own loss.
VARIANTS = {"own": (0.0, 1.0), "ranking": (1.0, 0.0), "both": (1.0, 1.0)}
RESULTS = Path(__file__).parent / "results" / "trainers.json"
PAGE = Path(__file__).parents[1] / "docs" / "integrations.md"


@cache
def drawn(split: str) -> list[tuple[Image.Image, Tensor, Tensor]]:
    """The images of a split, each with the boxes (xyxy) and labels of its one to four objects."""
    return [draw(np.random.default_rng([number, split == "val"])) for number in range(IMAGES)]


def draw(dice: np.random.Generator) -> tuple[Image.Image, Tensor, Tensor]:
    """Shapes of random colors side by side on a plain background, with noise."""
    fine = 4  # drawn larger and averaged, for smooth edges
    image = Image.new("RGB", (SIZE * fine, SIZE * fine), color(dice))
    pen, boxes, labels = ImageDraw.Draw(image), [], []
    for _ in range(dice.integers(1, 5)):
        for _ in range(20):  # attempts to find a free position
            width, height = (SIZE * dice.uniform(0.2, 0.5, 2)).astype(int).tolist()
            x, y = int(dice.integers(SIZE - width)), int(dice.integers(SIZE - height))
            if all(x + width <= a or c <= x or y + height <= b or d <= y for a, b, c, d in boxes):
                label = int(dice.integers(len(CLASSES)))
                left, top, right, bottom = fine * x, fine * y, fine * (x + width) - 1, fine * (y + height) - 1
                if CLASSES[label] == "rectangle":
                    pen.rectangle((left, top, right, bottom), fill=color(dice))
                elif CLASSES[label] == "ellipse":
                    pen.ellipse((left, top, right, bottom), fill=color(dice))
                else:
                    pen.polygon([(left, bottom), (right, bottom), ((left + right) // 2, top)], fill=color(dice))
                boxes.append((x, y, x + width, y + height))
                labels.append(label)
                break
    pixels = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BOX)) + dice.normal(0, 8, (SIZE, SIZE, 3))
    noisy = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    return noisy, torch.tensor(boxes, dtype=torch.float32), torch.tensor(labels)


def color(dice: np.random.Generator) -> tuple[int, ...]:
    """A random color."""
    return tuple(dice.integers(256, size=3).tolist())


def write_yolo(folder: Path) -> Path:
    """The drawn images as files, in ultralytics' format."""
    for split in ("train", "val"):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True)
        for number, (image, boxes, labels) in enumerate(drawn(split)):
            image.save(folder / "images" / split / f"{number}.png")
            rows = zip(labels.tolist(), (box_convert(boxes, "xyxy", "cxcywh") / SIZE).tolist(), strict=True)
            lines = [f"{label} {' '.join(map(str, box))}\n" for label, box in rows]
            (folder / "labels" / split / f"{number}.txt").write_text("".join(lines))
    # The trainer ends with a validation of its own, which is not used here: one image is enough for it.
    (folder / "one.txt").write_text(f"{folder / 'images' / 'val' / '0.png'}\n")
    settings = {"path": str(folder), "train": "images/train", "val": "one.txt", "names": CLASSES}
    (folder / "data.yaml").write_text(yaml.safe_dump(settings))
    return folder / "data.yaml"


def measure(detections: list[dict[str, Tensor]]) -> dict[str, float]:
    """AP and AP50 on the validation images, and the highest score."""
    annotations: list[dict[str, Any]] = []
    for number, (_, boxes, labels) in enumerate(drawn("val")):
        for box, label in zip(box_convert(boxes, "xyxy", "xywh").tolist(), labels.tolist(), strict=True):
            found = {"image_id": number, "category_id": label, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            annotations.append({"id": len(annotations) + 1, **found})
    images = [{"id": number, "width": SIZE, "height": SIZE} for number in range(IMAGES)]
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES)]
    truth = {"images": images, "annotations": annotations, "categories": categories}
    result = evaluate(truth, dict(enumerate(detections)), range(len(CLASSES)), CLASSES)
    top = max(float(found["scores"].max()) if len(found["scores"]) else 0.0 for found in detections)
    return {"ap": result.ap or 0.0, "ap50": result.ap50 or 0.0, "top score": top}


def yolo(kind: str, ranking: float, own: float, seed: int, epochs: int, folder: Path) -> dict[str, float]:
    """A slim YOLO by its own trainer."""
    import ultralytics
    from ultralytics import YOLO

    from rankwise.integrations.ultralytics import use_ranking

    data = folder / "data.yaml" if (folder / "data.yaml").exists() else write_yolo(folder)
    source = next(Path(ultralytics.__file__).parent.glob(f"cfg/models/**/{kind}.yaml"))
    slim = yaml.safe_load(source.read_text()) | {"scales": {"n": [0.33, 0.125, 512]}}
    config = folder / f"{kind}n.yaml"
    config.write_text(yaml.safe_dump(slim))
    model = YOLO(config)
    if ranking:
        use_ranking(model, APELoss(), keep=own, weight=ranking)
    run = {"imgsz": SIZE, "batch": BATCH, "nbs": BATCH, "device": "cpu", "workers": 0, "amp": False, "seed": seed}
    run |= {"plots": False, "val": False, "verbose": False, "optimizer": "AdamW", "lr0": 0.005, "mosaic": 0.0}
    run |= {"cache": "ram", "save": False}  # the last epoch is saved all the same
    model.train(data=str(data), epochs=epochs, project=str(folder), name="run", exist_ok=True, **run)
    trained, predict = YOLO(folder / "run" / "weights" / "last.pt"), {"imgsz": SIZE, "verbose": False, "device": "cpu"}
    names = [str(folder / "images" / "val" / f"{number}.png") for number in range(IMAGES)]
    found = []
    for start in range(0, IMAGES, BATCH):
        for result in trained.predict(names[start : start + BATCH], conf=1e-6, max_det=100, **predict):
            boxes = result.boxes
            found.append({"boxes": boxes.xyxy, "scores": boxes.conf, "labels": boxes.cls.long()})
    return measure(found)


def rtdetr(kind: str, ranking: float, own: float, seed: int, epochs: int, folder: Path) -> dict[str, float]:
    """A tiny RT-DETR v2, by the loop of the example."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from transformers import RTDetrImageProcessor
    from transformers_rtdetr import build, label

    from rankwise.integrations.transformers import use_ranking

    torch.manual_seed(seed)
    images = [pil_to_tensor(image) / 255 for image, _, _ in drawn("train")]
    labels = [label({"boxes": boxes, "labels": kinds}, SIZE) for _, boxes, kinds in drawn("train")]
    model = build(len(CLASSES), width=16, queries=20).train()
    if ranking:
        use_ranking(model, APELoss(), weight=ranking, keep=own)
    steps = epochs * IMAGES // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        picked = torch.randint(IMAGES, (BATCH,)).tolist()
        pixels = torch.stack([images[index] for index in picked])
        optimizer.zero_grad()
        model(pixel_values=pixels, labels=[labels[index] for index in picked]).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    processor, found = RTDetrImageProcessor(), []
    model.eval()
    with torch.no_grad():
        for image, _, _ in drawn("val"):
            outputs = model(pixel_values=pil_to_tensor(image)[None] / 255)
            found += processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=[(SIZE, SIZE)])
    return measure(found)


def table(rows: list[dict[str, Any]]) -> str:
    """AP of every model and variant, mean and standard deviation over the seeds, and the differences seed by seed."""
    header = ["model", "epochs", "weight", "seeds", "own loss", "ranking", "both", "ranking − own", "both − own"]
    lines = ["| " + " | ".join([*header, "highest scores of the three"]) + " |", "|---|" + "---:|" * len(header)]
    for model, title in TITLES.items():
        of_model = [row for row in rows if row["model"] == model]
        for epochs, weight in sorted({(row["epochs"], row["weight"]) for row in of_model if row["weight"]}):
            found = {
                name: {
                    row["seed"]: row
                    for row in of_model
                    if (row["variant"], row["epochs"], row["weight"]) == (name, epochs, weight * ranking)
                }
                for name, (ranking, _) in VARIANTS.items()
            }
            seeds = sorted(set.intersection(*(set(by_seed) for by_seed in found.values())))
            columns = [[by_seed[seed]["ap"] for seed in seeds] for by_seed in found.values()]
            columns += [[x - y for x, y in zip(other, columns[0], strict=True)] for other in columns[1:]]
            cells = [spread(values, signed=number > 2) for number, values in enumerate(columns)]
            tops = [max((row["top score"] for row in by_seed.values()), default=0.0) for by_seed in found.values()]
            cells += [", ".join(f"{top:.2g}" for top in tops)]
            lines.append(f"| {title} | {epochs} | {weight:g} | {len(seeds)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def spread(values: list[float], signed: bool) -> str:
    """Mean and standard deviation."""
    if not values:
        return "not run"
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{'+' if signed else ''}.1f}{deviation}"


def save(rows: list[dict[str, Any]], path: Path) -> None:
    """Writes the rows as JSON, their table beside it, and that of the usual results into the docs."""
    path.write_text(json.dumps(rows, indent=1) + "\n")
    text = f"`python benchmarks/trainers.py`: AP on {IMAGES} drawn images after training on {IMAGES} others."
    path.with_suffix(".md").write_text(f"# Held-out comparison in other trainers\n\n{text}\n\n{table(rows)}")
    if path == RESULTS:
        start, end = "<!-- trainers -->\n", "<!-- /trainers -->"
        before, _, rest = PAGE.read_text().partition(start)
        PAGE.write_text(before + start + table(rows) + end + rest.partition(end)[2])


def main() -> None:
    """Runs what is missing, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(EPOCHS), default=list(EPOCHS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, help=f"by default {EPOCHS}")
    parser.add_argument("--weight", type=float, default=1.0, help="of the ranking loss, 1 by default")
    parser.add_argument("--results", type=Path, default=RESULTS)
    words = parser.parse_args()
    rows = json.loads(words.results.read_text()) if words.results.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        # By seeds first: a part of the rows is then still a comparison.
        for seed, model, variant in itertools.product(words.seeds, words.models, VARIANTS):
            ranking, own = words.weight * VARIANTS[variant][0], VARIANTS[variant][1]
            name = {"model": model, "variant": variant, "seed": seed, "epochs": words.epochs or EPOCHS[model]}
            name |= {"weight": ranking}
            if any(name.items() <= row.items() for row in rows):
                continue
            start = time.process_time()
            run = rtdetr if model == "rtdetr" else yolo
            found = run(model, ranking, own, seed, name["epochs"], Path(folder))
            rows.append(name | found | {"CPU seconds": round(time.process_time() - start)})
            print(rows[-1], flush=True)
            save(rows, words.results)
    save(rows, words.results)
    print(table(rows))


if __name__ == "__main__":
    main()
