"""Trains a slim YOLO by ranking with its own trainer, and prints what came of it as JSON: a process of its own.

python train_yolo.py FOLDER KIND KEEP EPOCHS [tune] [measure] [calibrate] [resume], where the folder is what
`write_yolo` made. With "resume", the training is stopped after its first epoch and resumed in a new model.
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


def same(model: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two models have the same weights."""
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(torch.equal(one.float(), two.float()) for one, two in pairs)


def shown(model: YOLO, images: list[str]) -> int:
    """How many boxes are shown at the default threshold."""
    return sum(len(model.predict(image, imgsz=SIZE, verbose=False, device="cpu")[0].boxes) for image in images)


def count(trainer: Any, counts: list[int]) -> None:
    """Notes the number of positives in every call of the ranking loss."""
    term = getattr(trainer.model.criterion, "one2many", trainer.model.criterion).bce
    term.register_forward_pre_hook(lambda _, given: counts.append(int((given[1] > 0).sum())))


def stop(trainer: Any) -> None:
    """What Ctrl-C does, after the first checkpoint."""
    raise KeyboardInterrupt


def settings_for(folder: Path) -> dict[str, Any]:
    """Settings of a training on the images of the folder, without augmentation."""
    settings = {"data": str(folder / "data.yaml"), "imgsz": SIZE, "batch": 8, "nbs": 8, "device": "cpu", "workers": 0}
    settings |= {"plots": False, "amp": False, "seed": 0, "project": str(folder), "exist_ok": True, "verbose": False}
    return settings | {"optimizer": "AdamW", "lr0": 0.012, "lrf": 0.1, "val": False, **dict.fromkeys(STILL, 0)}


def main(folder: Path, kind: str, keep: float, epochs: int, *more: str) -> None:
    terms: list[str] = []
    settings = settings_for(folder)
    counts: list[int] = []
    model = use_ranking(YOLO(slim(folder, kind)), APELoss(), keep=keep)
    last = folder / "run" / "weights" / "last.pt"
    found: dict[str, Any] = {"terms": terms, "positives": counts}
    if "resume" in more:
        model.add_callback("on_model_save", stop)
        try:
            model.train(epochs=epochs, name="run", **settings)
        except KeyboardInterrupt:
            found["stopped"] = last.exists()
        model, settings = use_ranking(YOLO(last), APELoss(), keep=keep), {"resume": True}
    else:
        settings |= {"epochs": epochs, "name": "run"}
    model.add_callback("on_train_start", lambda trainer: terms.extend(replaced(trainer)))
    model.add_callback("on_train_start", lambda trainer: count(trainer, counts))
    model.add_callback("on_train_start", lambda trainer: found.update(start=trainer.start_epoch))
    model.add_callback("on_train_end", lambda trainer: found.update(end=trainer.epoch, loss=float(trainer.loss)))
    model.train(**settings)
    if "tune" in more:
        tuned, before = use_ranking(YOLO(last), keep=keep), YOLO(last).model
        tuned.add_callback("on_train_start", lambda trainer: found.update(tuned=replaced(trainer)))
        tuned.add_callback("on_train_start", lambda trainer: found.update(loaded=same(trainer.model, before)))
        tuned.train(**settings | {"epochs": 1, "name": "tuned", "fraction": 0.04})  # a step
    if "measure" in more:
        # The trainer's own validation pads these images by half, which is not what was learnt by heart.
        given = {name: settings[name] for name in ("data", "imgsz", "batch", "device", "workers", "plots", "verbose")}
        found["ap50"] = float(YOLO(last).val(rect=False, **given).box.map50)
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
