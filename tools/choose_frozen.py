"""The table of `rankwise reproduce choose` with a frozen backbone, whose features are computed once.

    python tools/choose_frozen.py --data voc --pretrained mobilenetv2_100.safetensors [--seeds 3] [--epochs 4]
        [--size 160] [--rows "APE, PAA*" "Focal, PAA"] [--out runs/reproduce/voc_frozen]

All rows train neck and head of the recipe photos_mobilenet with 48 channels, on a dataset in COCO format. A run of four
epochs on 2,400 images takes about two minutes on one core instead of ten. Finished runs are not repeated; after each
run the table is written, so that a stopped command leaves one. `rankwise reproduce summary --out FOLDER` adds it to the
pages of results.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

import torch
from imperfect_labels import BATCH, train

from rankwise.config.datasets import open_datasets
from rankwise.config.recipe import parse_recipe
from rankwise.criterion import Criterion
from rankwise.evaluation.calibration import Calibration, calibration_data
from rankwise.evaluation.figures import save_figure
from rankwise.evaluation.reliability import check_reliability
from rankwise.reproduce import TABLES, Row
from rankwise.reproduce.figures import numbers
from rankwise.reproduce.rows import WITHOUT_PAA_STAR
from rankwise.reproduce.text import Results


def main() -> None:
    """Trains what is missing, seed by seed, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="A dataset in COCO format.")
    parser.add_argument("--pretrained", required=True, help="ImageNet weights of timm's mobilenetv2_100.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--size", type=int, default=160, help="Longer side of the input in pixels.")
    names = [row.name for row in TABLES["choose"].rows]
    parser.add_argument("--rows", nargs="+", choices=names, default=names, help="Only these rows.")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce/voc_frozen"))
    config = parser.parse_args()
    rows, folder = TABLES["choose"].rows, config.out / "choose"
    folder.mkdir(parents=True, exist_ok=True)
    command = f"python tools/choose_frozen.py {shlex.join(sys.argv[1:])}"
    measured: dict[str, list[dict[str, float | None]]] = {name: [] for name in config.rows}
    for seed in range(config.seeds):
        for row in [row for row in rows if row.name in config.rows]:
            measured[row.name].append(one_run(config, row, seed))
            results = Results("choose", measured, command)
            (folder / "choose.json").write_text(json.dumps(results.to_dict(), indent=1) + "\n")
            print(f"{row.name}, seed {seed}: {measured[row.name][-1]['AP']:.1f} AP", flush=True)
        save_figure(numbers(results), folder / "choose.png")


def one_run(config: argparse.Namespace, row: Row, seed: int) -> dict[str, float | None]:
    """The metrics of a run, trained if it is not there."""
    file = config.out / f"{row.name}-{config.size}-{config.epochs}-seed{seed}.json"
    if not file.is_file():
        recipe = parse_recipe(
            [
                *("--config", "photos_mobilenet", f"--data={config.data}", "--data.workers=0"),
                *(f"--model.backbone.pretrained={config.pretrained}", "--model.backbone.frozen_stages=5"),
                *("--model.neck.channels=48", "--model.head.channels=48"),
                *(f"--model.input.short_side={config.size}", f"--model.input.max_side={config.size}"),
                *(*WITHOUT_PAA_STAR, *row.small),
            ]
        )
        criterion = Criterion(recipe.loss, recipe.assign, recipe.box)
        images = len(open_datasets(recipe.data, recipe.model.input)[0].records)
        steps = config.epochs * (images // BATCH)
        found = train(recipe, lambda done: criterion, seed, steps, config.out / f"features{config.size}.pt")
        raw, classes = found.raw_matches, len(found.per_class)
        calibration = Calibration.fit(**calibration_data(raw, classes))
        check = check_reliability(raw, calibration, classes, fitted_here=True)
        values = {"AP": found.ap, "AP50": found.ap50, "AP75": found.ap75, "PCC": found.correlation.pcc}
        file.write_text(json.dumps(values | {"ECE raw": check.before.ece, "ECE": check.after.ece}))
    known: dict[str, float | None] = json.loads(file.read_text())
    return known


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
