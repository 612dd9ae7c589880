"""Trains a slim YOLO by ranking with its own trainer, and prints what came of it as JSON: a process of its own.

python train_yolo.py FOLDER KIND KEEP EPOCHS [tune] [calibrate], where the folder is what `write_yolo` made.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import ultralytics
import yaml
from drawn_images import SIZE, draw
from ultralytics import YOLO

import rankwise
from rankwise.integrations.ultralytics import RankingTerm, use_ranking
from rankwise.losses import APELoss

STILL = ("mosaic", "hsv_h", "hsv_s", "hsv_v", "translate", "scale", "fliplr", "erasing", "warmup_epochs")


def slim(folder: Path, kind: str) -> Path:
    """A config of this kind with an eighth of the channels."""
    source = next(Path(ultralytics.__file__).parent.glob(f"cfg/models/**/{kind.replace('n', '', 1)}.yaml"))
    config = yaml.safe_load(source.read_text()) | {"scales": {"n": [0.33, 0.125, 256]}}
    path = folder / f"{kind}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def replaced(trainer: Any) -> list[str]:
    """Which parts of the criterion rank."""
    criterion = trainer.model.criterion
    parts = {"all": criterion, **{name: getattr(criterion, name, None) for name in ("one2many", "one2one")}}
    return [name for name, part in parts.items() if isinstance(getattr(part, "bce", None), RankingTerm)]


def shown(model: YOLO, images: list[str]) -> int:
    """How many boxes are shown at the default threshold."""
    return sum(len(model.predict(image, imgsz=SIZE, verbose=False, device="cpu")[0].boxes) for image in images)


def main(folder: Path, kind: str, keep: float, epochs: int, *more: str) -> None:
    terms: list[str] = []
    settings = {"data": str(folder / "data.yaml"), "imgsz": SIZE, "batch": 8, "nbs": 8, "device": "cpu", "workers": 0}
    settings |= {"plots": False, "amp": False, "seed": 0, "project": str(folder), "exist_ok": True, "verbose": False}
    settings |= {"optimizer": "AdamW", "lr0": 0.005, "lrf": 0.1, "val": False, **dict.fromkeys(STILL, 0)}
    model = use_ranking(YOLO(slim(folder, kind)), APELoss(), keep=keep)
    model.add_callback("on_train_start", lambda trainer: terms.extend(replaced(trainer)))
    found: dict[str, Any] = {
        "ap50": float(model.train(epochs=epochs, name="run", **settings).box.map50),
        "terms": terms,
    }
    last = folder / "run" / "weights" / "last.pt"
    if "tune" in more:
        use_ranking(YOLO(last), keep=keep).train(epochs=1, name="tuned", **settings)
        found["tuned"] = (folder / "tuned" / "weights" / "last.pt").exists()
    if "calibrate" in more:
        images, targets = [str(folder / "images" / f"{number}.png") for number in range(len(draw()))], []
        for _, objects in draw():
            boxes = torch.tensor([[x, y, x + width, y + height] for _, (x, y, width, height) in objects]).float()
            targets.append({"boxes": boxes, "labels": torch.tensor([label for label, _ in objects])})
        trained = YOLO(last)
        before = shown(trained, images)
        rankwise.calibrate(trained, [(images, targets)])
        found["shown"] = [before, shown(trained, images)]
    print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
