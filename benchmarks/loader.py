"""Whether data loading keeps ahead: images a second and core against torchvision's pipeline, and a step's time by part.

    python benchmarks/loader.py    # run nothing beside it

Both read the same JPEG files and end at a normalised batch. torchvision's side is what its reference training for
detection does: Pillow decodes, v2 transforms vary, images become floats, and its models' own transform resizes,
normalises and pads them. Contestants take turns on one thread, and the best of several turns counts, since other
programs only ever make a turn slower.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.transforms import v2

from rankwise.config.datasets import open_datasets
from rankwise.config.recipe import parse_recipe
from rankwise.data import DetectionDataset, ShapesDataset, build_loader, open_dataset, write_coco
from rankwise.data.transforms import AugmentSettings, TrainTransform
from rankwise.images.settings import InputSettings
from rankwise.training.loop import Run

BATCH, SHORT, LONG = 8, 640, 1066
WIDTH, HEIGHT = 640, 480  # as most of COCO's
SCALES = (480, 512, 544, 576, 608, 640)
RESULTS = Path(__file__).parent / "results"

#: How images are varied: our settings, and the transforms of torchvision's preset of the same name.
PRESETS: dict[str, tuple[AugmentSettings, list[v2.Transform]]] = {
    "flip": (AugmentSettings(flip=0.5), [v2.RandomHorizontalFlip(p=0.5)]),
    "multi-scale": (
        AugmentSettings(flip=0.5, short_sides=SCALES),
        [v2.RandomShortestSize(min_size=SCALES, max_size=LONG), v2.RandomHorizontalFlip(p=0.5)],
    ),
    "SSD": (
        AugmentSettings(flip=0.5, ssd=True),
        [
            v2.RandomPhotometricDistort(),
            v2.RandomZoomOut(fill={tv_tensors.Image: (124, 116, 104), "others": (124, 116, 104)}),
            v2.RandomIoUCrop(),
            v2.RandomHorizontalFlip(p=0.5),
            v2.SanitizeBoundingBoxes(),
        ],
    ),
}


def write_jpegs(folder: Path, images: int) -> DetectionDataset:
    """A COCO folder of JPEG files, drawn by the built-in dataset, and the dataset that reads it."""
    shapes = ShapesDataset("train", size=WIDTH, images=images)
    write_coco(shapes, folder, "train")
    path = folder / "annotations" / "instances_train.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for entry in content["images"]:
        png = folder / "train" / entry["file_name"]
        entry["file_name"], entry["height"] = png.with_suffix(".jpg").name, HEIGHT
        Image.open(png).crop((0, 0, WIDTH, HEIGHT)).save(png.with_suffix(".jpg"), quality=90)
        png.unlink()
    kept = []
    for annotation in content["annotations"]:
        x, y, width, height = annotation["bbox"]
        if y < HEIGHT - 8:
            kept.append({**annotation, "bbox": [x, y, width, min(height, HEIGHT - y)]})
    content["annotations"] = kept
    path.write_text(json.dumps(content), encoding="utf-8")
    path.with_name("instances_val.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "val").symlink_to(folder / "train", target_is_directory=True)
    return open_dataset(folder, "train")


class Reference(Dataset[tuple[Any, Any]]):
    """The same files as torchvision's reference training reads them.

    Args:
        dataset: Ours, for names and boxes.
        varied: The preset's transforms.
        backend: "pil" varies Pillow images, "tensor" tensors of bytes.
    """

    def __init__(self, dataset: DetectionDataset, varied: list[v2.Transform], backend: str) -> None:
        self.records = dataset.records
        first = [v2.PILToTensor()] if backend == "tensor" else []
        last = [] if backend == "tensor" else [v2.PILToTensor()]
        self.transform = v2.Compose([*first, *varied, *last, v2.ToDtype(torch.float, scale=True), v2.ToPureTensor()])

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        record = self.records[index]
        assert record.path is not None
        image = Image.open(record.path).convert("RGB")
        boxes = tv_tensors.BoundingBoxes(record.boxes, format="XYXY", canvas_size=(record.height, record.width))  # type: ignore[call-overload]
        target = {"image_id": record.image_id, "boxes": boxes, "labels": torch.from_numpy(record.labels)}
        result: tuple[Any, Any] = self.transform(image, target)
        return result


def torchvision_batches(dataset: DetectionDataset, preset: str, backend: str) -> Iterator[Tensor]:
    """Normalised, padded batches by torchvision."""
    settings = InputSettings()
    sizes = SCALES if preset == "multi-scale" else (SHORT,)
    finish = GeneralizedRCNNTransform(sizes[-1:], LONG, list(settings.mean), list(settings.std))
    loader: DataLoader[Any] = DataLoader(
        Reference(dataset, PRESETS[preset][1], backend),
        batch_size=BATCH,
        shuffle=True,
        collate_fn=lambda items: tuple(zip(*items, strict=True)),
    )
    for images, targets in loader:
        if preset == "multi-scale":  # resized by its transforms: the model's leaves the size alone
            finish.min_size = (min(images[0].shape[-2:]),)
        yield finish(list(images), list(targets))[0].tensors


def rankwise_batches(dataset: DetectionDataset, preset: str) -> Iterator[Tensor]:
    """The same by rankwise: bytes from the loader, normalised as the detector does."""
    settings = InputSettings(short_side=SHORT, max_side=LONG)
    mean, std = (255 * torch.tensor(values)[:, None, None] for values in (settings.mean, settings.std))
    ready = dataset.with_transform(TrainTransform(settings, PRESETS[preset][0]))
    for batch in build_loader(ready, BATCH, shuffle=True, divisor=settings.divisor).epoch(0):
        yield (batch.images - mean) / std


def speeds(dataset: DetectionDataset, preset: str, turns: int) -> dict[str, float]:
    """Images a second of each contestant."""
    contestants: dict[str, Callable[[], Iterator[Tensor]]] = {
        "rankwise": lambda: rankwise_batches(dataset, preset),
        "torchvision, PIL": lambda: torchvision_batches(dataset, preset, "pil"),
        "torchvision, tensor": lambda: torchvision_batches(dataset, preset, "tensor"),
    }
    best = dict.fromkeys(contestants, float("inf"))
    for turn in range(turns):
        for name, batches in contestants.items():
            torch.manual_seed(turn)
            start = time.perf_counter()
            for batch in batches():
                assert batch.dtype == torch.float32
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: len(dataset) / seconds for name, seconds in best.items()}


def split_of_a_step(flags: list[str], folder: Path) -> dict[str, float]:
    """Mean seconds of each part of a training step, in a short run."""
    recipe = parse_recipe(["--config", "shapes", *flags, "--train.epochs=1", "--train.evaluate_every=2"])
    fabric = Fabric(accelerator="cpu", devices=1)
    run = Run(recipe, folder, fabric, *open_datasets(recipe.data, recipe.model.input))
    run.evaluate = lambda stop: None  # type: ignore[method-assign, assignment]
    run.fit()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return lines[-1]["seconds"]


def main() -> None:
    """Measures, prints and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=64, help="JPEG files")
    parser.add_argument("--turns", type=int, default=5)
    words = parser.parse_args()
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = write_jpegs(folder / "jpegs", words.images)
        torch.set_num_threads(1)
        found = {preset: speeds(dataset, preset, words.turns) for preset in PRESETS}
        torch.set_num_threads(threads)
        small = ["--data.path", str(folder / "jpegs"), "--model.input.short_side=320", "--model.input.max_side=448"]
        steps = {
            "built-in dataset, drawn once": split_of_a_step(["--data.shapes.train_images=400"], folder / "shapes"),
            "JPEG files at 320 pixels, no worker": split_of_a_step([*small, "--data.workers=0"], folder / "alone"),
            "JPEG files at 320 pixels, one worker": split_of_a_step([*small, "--data.workers=1"], folder / "worker"),
        }
    lines = [
        f"Images a second on one core, from {words.images} JPEG files of {WIDTH} × {HEIGHT} to normalised batches of "
        f"{BATCH} with a short side of {SHORT} ({platform.machine()}, torch {torch.__version__}; best of "
        f"{words.turns}).",
        "",
        "| varied by | rankwise | torchvision, PIL | torchvision, tensor | ratio to the faster |",
        "|---|---:|---:|---:|---:|",
    ]
    for preset, speed in found.items():
        ours, *theirs = speed.values()
        lines.append(f"| {preset} | {ours:.1f} | {theirs[0]:.1f} | {theirs[1]:.1f} | {ours / max(theirs):.2f} |")
    parts = list(next(iter(steps.values())))
    lines += ["", f"A training step of the recipe `shapes` by part, {threads} threads, share of its time.", ""]
    lines += ["| | step, ms | " + " | ".join(parts) + " |", "|---|---:|" + "---:|" * len(parts)]
    for name, seconds in steps.items():
        whole = sum(seconds.values())
        shares = " | ".join(f"{100 * seconds[part] / whole:.1f} %" for part in parts)
        lines.append(f"| {name} | {1000 * whole:.0f} | {shares} |")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "loader.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    content = {"images_per_second": found, "seconds_by_part": steps}
    (RESULTS / "loader.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
