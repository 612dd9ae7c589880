"""What a training step of the recipes for COCO takes on this machine, by part, with its peak of memory.

    python benchmarks/coco_step.py                       # all, about ten minutes on two cores; run nothing beside it
    python benchmarks/coco_step.py --again retinanet512  # one of them, the others as they were

The recipes are the real ones, at full size and with 80 classes, on drawn images in COCO's format: 640 x 384 pixels,
which become 800 x 1333, with seven objects each. Only the pretrained weights are left out, which change no step's time.
Each case has a process of its own, whose peak of memory it is. A step on a piece of an image goes first, so that
nothing is compiled in the measured one.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from PIL import Image, ImageDraw

from rankwise.config.datasets import open_datasets
from rankwise.config.recipe import parse_recipe
from rankwise.training.loop import Run
from rankwise.training.schedule import lr_factor, set_lr
from rankwise.training.signals import StopFlag
from rankwise.types import Batch

RESULTS = Path(__file__).parent / "results"
WIDTH, HEIGHT, OBJECTS, CLASSES = 640, 384, 7, 80
#: Training images of COCO 2017.
COCO = 118_287
#: Where the table is shown, and between which lines.
PAGE = Path(__file__).parents[1] / "docs" / "coco.md"
BEGIN, END = "<!-- benchmarks/results/coco_step.md -->", "<!-- end -->"


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        title: What it is.
        recipe: The recipe.
        batch: Images a step.
        parts: Into how many parts they are taken, for memory.
        steps: How many steps to take.
        flags: What else differs from the recipe.
    """

    title: str
    recipe: str
    batch: int
    parts: int = 1
    steps: int = 1
    flags: tuple[str, ...] = ()


RES2NET = (
    "--model.backbone.name=res2net101d.in1k",
    "--model.backbone.deformable_stages=[3,4,5]",
    "--model.neck.extra_from=p5",
)
#: The batch of the recipes is 16. At 800 pixels it needs more than 24 GiB: ten at once, and 16 in parts.
CASES = {
    "retinanet512": Case("RetinaNet 512, APE, IoU threshold", "coco_retinanet512", 16),
    "atss800": Case("ATSS 800, APE", "coco_atss800", 10, steps=2),
    "paa800": Case("PAA* 800, APE", "coco_paa800", 16, parts=4),
    "res2net101-dcn": Case("PAA* 800, APE, Res2Net-101 with deformable convolution", "coco_paa800", 1, flags=RES2NET),
}


def write_data(folder: Path, images: int) -> None:
    """A folder in COCO's layout: train2017 and val2017, the same images for both."""
    dice = np.random.default_rng(0)
    (folder / "annotations").mkdir(parents=True)
    (folder / "train2017").mkdir()
    (folder / "val2017").symlink_to(folder / "train2017", target_is_directory=True)
    entries, annotations = [], []
    for index in range(images):
        coarse = dice.integers(0, 256, (HEIGHT // 16, WIDTH // 16, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        draw = ImageDraw.Draw(picture)
        name = f"{index:012}.jpg"
        entries.append({"id": index + 1, "file_name": name, "width": WIDTH, "height": HEIGHT})
        for _ in range(OBJECTS):
            side = np.exp(dice.uniform(np.log(20), np.log(300)))  # small, medium and large as in COCO
            w, h = (int(min(side * dice.uniform(0.7, 1.4), limit - 2)) for limit in (WIDTH, HEIGHT))
            x, y = int(dice.integers(0, WIDTH - w)), int(dice.integers(0, HEIGHT - h))
            draw.ellipse((x, y, x + w - 1, y + h - 1), fill=tuple(dice.integers(0, 256, 3).tolist()))
            box = {"bbox": [x, y, w, h], "area": w * h, "iscrowd": 0, "category_id": int(dice.integers(CLASSES)) + 1}
            annotations.append({"id": len(annotations) + 1, "image_id": index + 1, **box})
        picture.save(folder / "train2017" / name, quality=90)
    categories = [{"id": label + 1, "name": f"class {label + 1}"} for label in range(CLASSES)]
    content = json.dumps({"images": entries, "annotations": annotations, "categories": categories})
    for split in ("train2017", "val2017"):
        (folder / "annotations" / f"instances_{split}.json").write_text(content, encoding="utf-8")


def measure(case: Case, data: Path) -> dict[str, Any]:
    """Seconds of each part of a step, and the process's peak of memory."""
    flags = [f"--data.path={data}", "--data.workers=0", "--model.backbone.pretrained=false", *case.flags]
    flags += [f"--batch_size={case.batch}", f"--train.accumulate={case.parts}"]
    recipe = parse_recipe(["--config", case.recipe, *flags])
    with tempfile.TemporaryDirectory() as folder:
        fabric = Fabric(accelerator="cpu", devices=1)
        run = Run(recipe, Path(folder), fabric, *open_datasets(recipe.data, recipe.model.input))
        run.detector.train()
        stop = StopFlag()
        batches = run.loader.epoch(0)
        first = next(batches)
        set_lr(run.optimizer, lr_factor(0, recipe.schedule, run.steps_per_epoch, recipe.train.epochs))
        run.train_step(Batch(first.images[:1, :, :256, :256], first.targets[:1]), stop)
        run.watch.totals = dict.fromkeys(run.watch.totals, 0.0)
        run.watch.steps = 0
        start = time.perf_counter()
        for _ in range(case.steps):
            run.watch.start_step(wanted=True)
            with run.watch.stage("wait"):
                batch = run.fetch(batches)
            assert isinstance(batch, Batch)
            values, _ = run.train_step(batch, stop)
            run.progress.step += 1
        seconds = (time.perf_counter() - start) / case.steps
        run.tracker.close()
    assert values, "the step was skipped"
    return {
        "title": case.title,
        "recipe": case.recipe,
        "flags": list(case.flags),
        "batch": case.batch,
        "parts": case.parts,
        "size": list(batch.images.shape[2:]),
        "weights": sum(weight.numel() for weight in run.detector.parameters()),
        "steps": case.steps,
        "seconds": seconds,
        "seconds_by_part": run.watch.seconds(),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "losses": {name: round(values[name].item(), 4) for name in ("ranking", "box")},
        "positives": int(values["positives"]),
    }


def table(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    cases = found["cases"].values()
    parts = list(next(iter(cases))["seconds_by_part"])
    heads = ["loading" if part == "wait" else part for part in parts]
    lines = [
        f"Seconds of a training step by part ({found['machine']}), the peak memory of the process, and the time of an "
        f"epoch of COCO's {COCO:,} images at that rate. {OBJECTS} objects per image, {CLASSES} classes.",
        "",
        "| | batch | size | weights | steps | step | "
        + " | ".join(heads)
        + " | loss and assignment | peak memory | epoch |",
        "|---|---:|---|---:|---:|---:|" + "---:|" * (len(parts) + 3),
    ]
    for result in cases:
        seconds = result["seconds_by_part"]
        share = (seconds["assign"] + seconds["loss"]) / result["seconds"]
        cells = [
            result["title"],
            str(result["batch"]) + (f" in {result['parts']} parts" if result["parts"] > 1 else ""),
            " × ".join(map(str, result["size"])),
            f"{result['weights'] / 1e6:.1f} M",
            str(result["steps"]),
            f"{result['seconds']:.1f}",
            *(f"{seconds[part]:.2f}" for part in parts),
            f"{100 * share:.2f} %",
            f"{result['peak_gib']:.1f} GiB",
            f"{result['seconds'] / result['batch'] * COCO / 86400:.1f} days",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write(found: dict[str, Any]) -> None:
    """Writes the results, and the table into the page that shows it."""
    text = table(found)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "coco_step.md").write_text(text, encoding="utf-8")
    (RESULTS / "coco_step.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(text)


def main() -> None:
    """Measures, prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, help="one case, printed as JSON")
    parser.add_argument("--again", nargs="+", choices=CASES, help="measure these anew and keep the last of the others")
    parser.add_argument("--data", type=Path, help="a folder in COCO's format (default: made for the purpose)")
    parser.add_argument("--last", action="store_true", help="write the tables of the last results again")
    words = parser.parse_args()
    if words.last:
        write(json.loads((RESULTS / "coco_step.json").read_text(encoding="utf-8")))
        return
    with tempfile.TemporaryDirectory() as name:
        data = words.data or Path(name) / "coco"
        if words.data is None:
            write_data(data, images=64)
        if words.only:
            print(json.dumps(measure(CASES[words.only], data)))
            return
        cases = json.loads((RESULTS / "coco_step.json").read_text(encoding="utf-8"))["cases"] if words.again else {}
        for case in words.again or CASES:
            command = [sys.executable, __file__, "--only", case, "--data", str(data)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            cases[case] = json.loads(output.splitlines()[-1])
            print(f"{case}: {cases[case]['seconds']:.1f} s, {cases[case]['peak_gib']:.1f} GiB", flush=True)
    machine = f"{torch.get_num_threads()} threads of a CPU, {platform.machine()}, torch {torch.__version__}, float32"
    write({"machine": machine, "cases": cases})


if __name__ == "__main__":
    main()
