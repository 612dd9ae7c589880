"""Tables on small datasets.

From random weights and from a trained detector, on images of the built-in dataset that it has not seen:

    python tools/small_data.py --init runs/default [--images 60 300 2000] [--minutes 5]

With several losses and seeds, on a part of a dataset in COCO format, the rest as `rankwise train --data` chooses it:

    python tools/small_data.py --data DIR --images 300 --epochs 12 --losses APELoss FocalLoss --seeds 3
        [--flags="--model.backbone.pretrained=FILE --size=160"]

A loss may bring flags of its own: ``--losses APELoss "FocalLoss --assign=ATSS"``.
Runs that are done are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Trains what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--init", help="Run of `make run`, or its file of weights.")
    parser.add_argument("--out", type=Path, default=Path("runs/small_data"))
    parser.add_argument("--images", type=int, nargs="+", help="Numbers of training images.")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--data", type=Path, help="Dataset in COCO format, for the comparison of losses.")
    parser.add_argument("--val", type=int, default=250, help="Number of validation images of --data.")
    parser.add_argument("--losses", nargs="+", default=["APELoss", "FocalLoss"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12, help="Epochs of each run with --data.")
    parser.add_argument("--flags", type=shlex.split, default=[], help="Flags of every training, in one string.")
    config = parser.parse_args()
    if (config.init is None) == (config.data is None):
        parser.error("pass either --init or --data")
    compare_starts(config) if config.data is None else compare_losses(config)


def compare_starts(config: argparse.Namespace) -> None:
    """Random weights against ``--init``, one row for each number of training images."""
    print("| training images | random weights | `--init` |\n|---:|---:|---:|")
    for images in config.images or [60, 300, 2000]:
        data = config.out / f"data{images}"
        if not data.exists():
            _rankwise("data", "shapes", str(data), f"--images={images}", "--shapes.seed=1")
        cells = []
        for name, init in (("random", []), ("init", ["--init", config.init])):
            flags = ["--minutes", str(config.minutes), "--model.backbone.pretrained=false", *init, *config.flags]
            ap, steps = _run(data, config.out / f"{name}{images}", flags)
            cells.append(f"{ap:.1f} ({steps:,} steps)")
        print(f"| {images:,} | {' | '.join(cells)} |", flush=True)


def compare_losses(config: argparse.Namespace) -> None:
    """One row for each loss: AP of each seed, mean and deviation, and the difference of the first loss to it."""
    for images in config.images or [300]:
        data = config.out / f"{config.data.name}{images}"
        if not data.exists():
            take_part(config.data, data, images, config.val)
        found: dict[str, list[float]] = {loss: [] for loss in config.losses}
        steps = set()
        for seed in range(config.seeds):  # all losses of a seed first, so that a stop leaves complete pairs
            for loss in config.losses:
                flags = [f"--epochs={config.epochs}", *shlex.split(f"--loss={loss}"), f"--seed={seed}", *config.flags]
                kind = re.sub(r"[^\w.=-]+", "_", "".join([loss, f"-{config.epochs}", *map(_short, config.flags)]))
                ap, taken = _run(data, config.out / f"{data.name}-{kind}-seed{seed}", flags)
                print(f"{loss}, seed {seed}: {ap:.1f} AP after {taken:,} steps", file=sys.stderr, flush=True)
                found[loss].append(ap)
                steps.add(taken)
        first = found[config.losses[0]]
        taken = ", ".join(f"{number:,}" for number in sorted(steps))
        print(f"{images:,} training images, {taken} steps\n")
        print(f"| loss | AP by seed | mean | `{config.losses[0]}` minus it |")
        print("|---|---:|---:|---:|")
        for loss, values in found.items():
            difference = [a - b for a, b in zip(first, values, strict=True)]
            gap = "" if values is first else summary(difference, "+")
            print(f"| `{loss}` | {', '.join(f'{ap:.1f}' for ap in values)} | {summary(values)} | {gap} |", flush=True)


def take_part(source: Path, folder: Path, train: int, val: int) -> None:
    """A random part of a dataset in COCO format, whose images stay where they are."""
    rng = random.Random(1)
    (folder / "annotations").mkdir(parents=True)
    for split, number in (("train", train), ("val", val)):
        content: dict[str, Any] = json.loads((source / "annotations" / f"instances_{split}.json").read_text())
        content["images"] = rng.sample(content["images"], min(number, len(content["images"])))
        kept = {image["id"] for image in content["images"]}
        content["annotations"] = [one for one in content["annotations"] if one["image_id"] in kept]
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
        (folder / split).symlink_to((source / split).resolve())


def _run(data: Path, run: Path, flags: list[str]) -> tuple[float, int]:
    """AP and steps of a run, trained if it is not done."""
    if not (run / "eval.json").is_file() or not (run / "report.html").is_file():
        _rankwise("train", "--data", str(data), "--run", str(run), "--overwrite", *flags)
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    return float(json.loads((run / "eval.json").read_text())["ap"]), max(steps)


def _short(flag: str) -> str:
    """A flag in the name of a run: without dashes, and without the folders of a file."""
    name, _, value = flag.lstrip("-").partition("=")
    return f"-{name}={Path(value).name}"


def summary(values: list[float], sign: str = "") -> str:
    """Mean and standard deviation."""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.1f}{spread}"


def _rankwise(*words: str) -> None:
    with Path(os.devnull).open("w") as silent:
        subprocess.run([sys.executable, "-m", "rankwise", *words], check=True, stdout=silent)


if __name__ == "__main__":
    main()
