"""Draws docs/images/detections.jpg: detections on the first validation images of a run, and how often they are right.

Run: python tools/readme_picture.py runs/picture    (the README has the command that trains this run)
It also writes the numbers of the run that the README shows, to benchmarks/results/readme_picture.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from rankwise.config.datasets import open_run
from rankwise.evaluation.drawing import AGNOSTIC_IOU, draw_detections
from rankwise.evaluation.figures import EMPHASIS, save_figure, style_panel
from rankwise.evaluation.reliability import ReliabilityCheck
from rankwise.files.parsing import read_json
from rankwise.models import Detector

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "detections.jpg"
NUMBERS = ROOT / "benchmarks" / "results" / "readme_picture.json"
ROWS, COLUMNS = 2, 3


def draw(run: Path, picture: Path, numbers: Path) -> None:
    """Draws calibrated detections above the run's own thresholds, without any choice of images."""
    detector = Detector.load(run)
    _, dataset = open_run(run, None, None, detector.classes)
    figure = Figure(figsize=(11, 4.9), layout="constrained")
    grid = figure.add_gridspec(ROWS, COLUMNS + 1, width_ratios=[*[1.0] * COLUMNS, 1.45])
    images = [dataset.load(index)[0] for index in range(ROWS * COLUMNS)]
    for index, (image, found) in enumerate(zip(images, detector.predict(images), strict=True)):
        panel = figure.add_subplot(grid[divmod(index, COLUMNS)])
        drawn = draw_detections(image, found, detector.classes, min_size=256, agnostic_iou=AGNOSTIC_IOU)
        panel.imshow(np.asarray(drawn))
        panel.axis("off")
    found = read_json(run / "eval.json")
    check = ReliabilityCheck.from_dict(found["reliability"]).after
    panel, count = figure.add_subplot(grid[:, COLUMNS]), np.asarray(check.count)
    full = count > 0
    panel.plot([0, 1], [0, 1], color="#999999", linestyle="--", label="perfect calibration")
    sizes = 15 + 300 * count[full] / count.max()
    score, precision = np.asarray(check.score)[full], np.asarray(check.precision)[full]
    panel.scatter(score, precision, s=sizes, color=EMPHASIS, alpha=0.75, label="detections on validation images")
    panel.legend(loc="upper left", fontsize="small", framealpha=0.85, edgecolor="none", markerscale=0.5)
    style_panel(panel, "confidence shown", "fraction correct", f"calibration error {check.ece:.3f}")
    panel.set(xlim=(0, 1), ylim=(0, 1.02), aspect="equal")
    save_figure(figure, picture)
    numbers.write_text(json.dumps({"AP": round(found["ap"], 4), "ECE": round(check.ece, 4)}, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="Folder of a run.")
    parser.add_argument("--out", type=Path, default=PICTURE, help="The picture.")
    parser.add_argument("--numbers", type=Path, default=NUMBERS, help="The numbers.")
    arguments = parser.parse_args()
    draw(arguments.run, arguments.out, arguments.numbers)
