"""Ranking in other people's trainers, on images that were not trained on: own loss, ranking, ranking plus own loss.

    python benchmarks/trainers.py                                       # all rows, for hours
    python benchmarks/trainers.py --models yolo11 --seeds 0 --epochs 5  # a part of them

Slim YOLO11 and YOLO26 of ultralytics, by ``yolo.train``, and a tiny RT-DETR v2 of transformers, from random weights on
300 images of the built-in dataset; AP on 300 others by ``rankwise.evaluation``. Rows that are in the results already
are not run again. It needs ``pip install ultralytics transformers``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("YOLO_OFFLINE", "true")

import torch
import yaml
from torch import Tensor
from torchvision.io import write_png

from rankwise.data import ShapesDataset
from rankwise.evaluation import evaluate
from rankwise.losses import APELoss

IMAGES, SIZE, BATCH = 300, 128, 16
MODELS = ["yolo11", "yolo26", "rtdetr"]
#: Weight of the ranking loss and of the own loss.
VARIANTS = {"own": (0.0, 1.0), "ranking": (1.0, 0.0), "both": (1.0, 1.0)}
RESULTS = Path(__file__).parent / "results"


def write_yolo(folder: Path) -> Path:
    """The built-in dataset as files, in ultralytics' format."""
    for split in ("train", "val"):
        dataset = ShapesDataset(split, images=IMAGES, size=SIZE)
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True)
        for number, (image, target) in enumerate(dataset):
            write_png(image, str(folder / "images" / split / f"{number}.png"))
            lines = []
            for label, (x1, y1, x2, y2) in zip(
                target["labels"].tolist(), (target["boxes"] / SIZE).tolist(), strict=True
            ):
                lines.append(f"{label} {(x1 + x2) / 2} {(y1 + y2) / 2} {x2 - x1} {y2 - y1}\n")
            (folder / "labels" / split / f"{number}.txt").write_text("".join(lines))
    settings = {"path": str(folder), "train": "images/train", "val": "images/val", "names": list(dataset.classes)}
    (folder / "data.yaml").write_text(yaml.safe_dump(settings))
    return folder / "data.yaml"


def measure(detections: list[dict[str, Tensor]]) -> dict[str, float]:
    """AP and AP50 on the validation images, and the highest score."""
    dataset = ShapesDataset("val", images=IMAGES, size=SIZE)
    by_image = {target["image_id"]: found for (_, target), found in zip(dataset, detections, strict=True)}
    result = evaluate(dataset.ground_truth(), by_image, dataset.category_ids, dataset.classes)
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
    run |= {"plots": False, "val": False, "verbose": False, "optimizer": "AdamW", "lr0": 0.002, "close_mosaic": 5}
    model.train(data=str(data), epochs=epochs, project=str(folder), name="run", exist_ok=True, **run)
    found = []
    trained = YOLO(folder / "run" / "weights" / "last.pt")
    for number in range(IMAGES):
        image = str(folder / "images" / "val" / f"{number}.png")
        boxes = trained.predict(image, imgsz=SIZE, conf=1e-6, max_det=100, verbose=False, device="cpu")[0].boxes
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
    train, val = (ShapesDataset(split, images=IMAGES, size=SIZE) for split in ("train", "val"))
    model = build(len(train.classes)).train()
    if ranking:
        use_ranking(model, APELoss(), weight=ranking, keep=own)
    steps = epochs * IMAGES // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        picked = [train[index] for index in torch.randint(len(train), (BATCH,)).tolist()]
        pixels = torch.stack([image for image, _ in picked]) / 255
        optimizer.zero_grad()
        model(pixel_values=pixels, labels=[label(target, SIZE) for _, target in picked]).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    processor, found = RTDetrImageProcessor(), []
    model.eval()
    with torch.no_grad():
        for image, _ in val:
            outputs = model(pixel_values=image[None] / 255)
            found += processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=[(SIZE, SIZE)])
    return measure(found)


def table(rows: list[dict[str, Any]]) -> str:
    """AP of every model and variant: mean and range over the seeds."""
    lines = ["| model | epochs | own loss | ranking | ranking + own | seeds |", "|---|---:|---:|---:|---:|---:|"]
    for model, epochs in sorted({(row["model"], row["epochs"]) for row in rows}):
        cells, seeds = [], 0
        for variant in VARIANTS:
            same = [row for row in rows if (row["model"], row["epochs"], row["variant"]) == (model, epochs, variant)]
            values = [row["ap"] for row in same]
            seeds = max(seeds, len(values))
            spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}" if values else "not run")
        lines.append(f"| {model} | {epochs} | " + " | ".join(cells) + f" | {seeds} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs what is missing, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--results", type=Path, default=RESULTS / "trainers.json")
    words = parser.parse_args()
    rows = json.loads(words.results.read_text()) if words.results.exists() else []
    for seed in words.seeds:
        for model in words.models:
            for variant, (ranking, own) in VARIANTS.items():
                name = {"model": model, "variant": variant, "seed": seed, "epochs": words.epochs}
                if any(name.items() <= row.items() for row in rows):
                    continue
                start = time.time()
                with tempfile.TemporaryDirectory() as folder:
                    run = rtdetr if model == "rtdetr" else yolo
                    found = run(model, ranking, own, seed, words.epochs, Path(folder))
                rows.append(name | found | {"seconds": round(time.time() - start)})
                print(rows[-1], flush=True)
                words.results.write_text(json.dumps(rows, indent=1) + "\n")
    text = f"`python benchmarks/trainers.py`: AP on {IMAGES} drawn images after training on {IMAGES} others.\n\n"
    words.results.with_suffix(".md").write_text("# Held-out comparison in other trainers\n\n" + text + table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
