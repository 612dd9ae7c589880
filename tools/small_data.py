"""A table on small datasets: `rankwise train --data DIR --minutes 5` from random weights and with --init.

    python tools/small_data.py --init runs/default --out runs/small_data [--images 60 300 2000] [--minutes 5]

The images are of another seed than those of the trained detector, which has seen none of them. Runs that are done are
not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Writes the datasets, trains, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--init", required=True, help="Run of `make run`, or its file of weights.")
    parser.add_argument("--out", type=Path, default=Path("runs/small_data"))
    parser.add_argument("--images", type=int, nargs="+", default=[60, 300, 2000])
    parser.add_argument("--minutes", type=float, default=5)
    config = parser.parse_args()
    print("| training images | random weights | `--init` |\n|---|---|---|")
    for images in config.images:
        data = config.out / f"data{images}"
        if not data.exists():
            _rankwise("data", "shapes", str(data), f"--images={images}", "--shapes.seed=1")
        cells = []
        for name, init in (("random", []), ("init", ["--init", config.init])):
            run = config.out / f"{name}{images}"
            if not (run / "eval.json").is_file():
                flags = ["--data", str(data), "--minutes", str(config.minutes), "--run", str(run), "--overwrite"]
                _rankwise("train", *flags, "--model.backbone.pretrained=false", *init)
            steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
            cells.append(f"{json.loads((run / 'eval.json').read_text())['ap']:.1f} ({max(steps):,} steps)")
        print(f"| {images:,} | {' | '.join(cells)} |", flush=True)


def _rankwise(*words: str) -> None:
    with Path(os.devnull).open("w") as silent:
        subprocess.run([sys.executable, "-m", "rankwise", *words], check=True, stdout=silent)


if __name__ == "__main__":
    main()
