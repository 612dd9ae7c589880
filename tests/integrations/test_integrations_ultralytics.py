"""YOLO models of ultralytics, trained by ranking with their own trainer, each in a process of its own, forked.

ultralytics changes torch.load, OpenCV and other things when it is imported: other tests must not see that.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from drawn_images import write_yolo
from torch import nn
from warm_process import WarmProcess, warm_process

from rankwise.integrations.ultralytics import RankingTerm, _Install, use_ranking
from rankwise.losses import APELoss, FocalLoss

installed = pytest.mark.skipif(find_spec("ultralytics") is None, reason="ultralytics is not installed")

#: What every process needs, which takes seconds to import; rankwise is not among it.
IMPORTS = "import ultralytics.models.yolo, ultralytics.data.build, torchvision, scipy.optimize"
#: Trains one model: see there.
TRAIN = f"import runpy; runpy.run_path({str(Path(__file__).parent / 'train_yolo.py')!r}, run_name='__main__')"
#: Trains one model in two processes.
TWO_PROCESSES = "import sys; from pathlib import Path; from two_processes import main; main(Path(sys.argv[1]))"
#: A process that could not import rankwise: what it loads holds nothing of it.
LOAD = """
import sys
sys.modules["rankwise"] = None
from ultralytics import YOLO
model = YOLO(sys.argv[1])
print("LOADED", type(model.model).__name__, getattr(model.model, "criterion", None))
"""

#: Trains a model of each task, and calibrates the last one with its best detection as the only object.
TASKS = """
import sys
from pathlib import Path
from train_yolo import main
from ultralytics import YOLO
import rankwise
for task, kind in {"segment": "yolo11n-seg", "pose": "yolo11n-pose", "obb": "yolo11n-obb"}.items():
    main(Path(sys.argv[1]) / task, kind, 1.0, 1)
model, image = YOLO(Path(sys.argv[1]) / "obb/run/weights/last.pt"), str(Path(sys.argv[1]) / "obb/images/0.png")
best = model.predict(image, conf=1e-9, verbose=False)[0].obb[:1]
rankwise.calibrate(model, [([image], [{"boxes": best.xyxy, "labels": best.cls.long()}])])
print("CALIBRATED", float(model.predict(image, conf=1e-9, verbose=False)[0].obb.conf[0]))
"""


@pytest.fixture(scope="module")
def yolo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmProcess]:
    folder = tmp_path_factory.mktemp("yolo")
    offline = {"YOLO_CONFIG_DIR": str(folder), "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    with warm_process(IMPORTS, folder, **offline, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(paths)) as process:
        yield process


def results(output: str) -> list[Any]:
    return [json.loads(line.removeprefix("RESULT")) for line in output.splitlines() if line.startswith("RESULT ")]


def trained(yolo: WarmProcess, folder: Path, *words: str) -> Any:
    return results(yolo.run(TRAIN, str(folder), *words))[0]


@installed
@pytest.mark.slow
def test_yolo11_learns_eight_images_by_its_own_trainer(yolo: WarmProcess, tmp_path: Path) -> None:
    write_yolo(tmp_path, repeats=25)
    found = trained(yolo, tmp_path, "yolo11n", "1", "4", "tune", "measure", "calibrate")
    assert found["terms"] == ["all"]
    assert found["ap50"] > 0.9
    assert found["tuned"] == ["all"]
    assert found["loaded"]
    assert 8 <= found["shown"][1] <= 24  # of 16 objects, at the default threshold after calibration
    weights = str(tmp_path / "run" / "weights" / "last.pt")
    assert "LOADED DetectionModel None" in yolo.run(LOAD, weights)


@installed
def test_yolov8_trains_too(yolo: WarmProcess, tmp_path: Path) -> None:
    write_yolo(tmp_path, repeats=1)
    assert trained(yolo, tmp_path, "yolov8n", "0.5", "1")["terms"] == ["all"]


@installed
@pytest.mark.slow
def test_two_processes_started_by_its_own_launcher_rank_together(yolo: WarmProcess, tmp_path: Path) -> None:
    write_yolo(tmp_path, repeats=2)
    yolo.run(TWO_PROCESSES, str(tmp_path))
    first, second = (torch.load(tmp_path / f"process{rank}.pt") for rank in range(2))
    assert torch.equal(first["weights"], second["weights"])
    assert len(first["calls"]) == len(second["calls"]) == 2  # steps
    for calls in zip(first["calls"], second["calls"], strict=True):
        logits, targets = (torch.cat([call[part] for call in calls]) for part in range(2))
        assert not torch.equal(calls[0][1], calls[1][1])  # other images
        quality, labels = targets.max(-1)
        expected = 5 * APELoss()(logits, labels.masked_fill(quality <= 0, targets.shape[-1]), quality)  # default weight
        for _, given, value in calls:
            torch.testing.assert_close(value, given.sum().clamp(min=1) * expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("devices", "lost"), [(1, False), (2, True)])
def test_a_launcher_that_loses_callbacks_is_refused_with_several_gpus(
    devices: int, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = SimpleNamespace(generate_ddp_file=lambda trainer: f"overrides = {vars(trainer.args)}")
    monkeypatch.setitem(sys.modules, "ultralytics.utils.dist", launcher)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: devices)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    stub = SimpleNamespace(task="detect", callbacks={"on_pretrain_routine_end": []}, add_callback=lambda *_: None)
    with pytest.raises(RuntimeError, match="would not rank: update ultralytics") if lost else nullcontext():
        use_ranking(stub)
    monkeypatch.setenv("LOCAL_RANK", "0")  # a script that was started once per GPU
    use_ranking(stub)
    launcher.generate_ddp_file = lambda trainer: repr(trainer.callbacks)
    monkeypatch.delenv("LOCAL_RANK")
    use_ranking(stub)


@installed
def test_segmentation_pose_and_oriented_boxes_train_by_their_own_trainer(yolo: WarmProcess, tmp_path: Path) -> None:
    for task in ("segment", "pose", "obb"):
        write_yolo(tmp_path / task, repeats=1, task=task)
    output = yolo.run(TASKS, str(tmp_path))
    assert float(output.rpartition("CALIBRATED")[2]) == pytest.approx(0.25, abs=1e-3)  # the default threshold
    all_found = results(output)
    assert len(all_found) == 3
    for found in all_found:
        assert found["terms"] == ["all"]
        assert found["positives"]  # one call per step
        assert min(found["positives"]) > 0
        assert math.isfinite(found["loss"])


@installed
def test_an_interrupted_training_is_resumed_by_ranking_in_both_branches(yolo: WarmProcess, tmp_path: Path) -> None:
    write_yolo(tmp_path, repeats=1)
    found = trained(yolo, tmp_path, "yolo26n", "0", "3", "resume")
    assert found["stopped"]
    assert (found["start"], found["end"]) == (1, 2)  # two of three epochs were left
    assert found["terms"] == ["one2many", "one2one"]
    assert len(found["positives"]) >= 2
    assert min(found["positives"]) > 0


class Criterion:
    """What the criteria of ultralytics have in common: a cross entropy."""

    def __init__(self) -> None:
        self.bce = nn.BCEWithLogitsLoss(reduction="none")


def test_the_term_is_the_ranking_loss_and_the_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(2, 30, 4, generator=generator), torch.zeros(2, 30, 4)
    targets[0, 3, 1], targets[1, 7, 2] = 0.8, 0.3
    labels = torch.full((2, 30), 4)
    labels[0, 3], labels[1, 7] = 1, 2
    ranking = APELoss()(logits, labels, targets.amax(-1))
    entropy = nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    value = RankingTerm(APELoss(), keep=0.5, weight=2.0)(logits, targets)
    torch.testing.assert_close(value, 2 * 1.1 * ranking + 0.5 * entropy)  # the criterion divides by 1.1, the sum


def test_the_callback_replaces_the_term_of_model_and_average_and_can_be_pickled() -> None:
    install = pickle.loads(pickle.dumps(_Install(RankingTerm(APELoss(), 0.0, 1.0))))
    models = [SimpleNamespace(criterion=None, init_criterion=Criterion) for _ in range(2)]
    validator = SimpleNamespace(args=SimpleNamespace(conf=0.001))
    trainer = SimpleNamespace(args=SimpleNamespace(cls_pw=0.0), model=models[0], validator=validator)
    trainer.ema = SimpleNamespace(ema=models[1])
    install(trainer)
    assert all(isinstance(model.criterion.bce, RankingTerm) for model in models)
    assert validator.args.conf == 0.0
    trainer.args.cls_pw = 0.5
    with pytest.raises(ValueError, match="cls_pw"):
        install(trainer)


@pytest.mark.parametrize(
    ("given", "weight"),
    [
        ({}, 1.0),
        ({"keep": 0.1}, 1.0),
        ({"keep": 0}, 5.0),
        ({"keep": 0, "weight": 2}, 2.0),
        ({"keep": 0, "loss": FocalLoss()}, 1.0),
    ],
)
def test_a_ranking_loss_without_the_cross_entropy_has_a_larger_weight(given: dict[str, Any], weight: float) -> None:
    added: list[_Install] = []
    stub = SimpleNamespace(task="detect", callbacks={"on_pretrain_routine_end": []})
    stub.add_callback = lambda _, callback: added.append(callback)
    use_ranking(stub, **given)
    assert [install.term.weight for install in added] == [weight]


@pytest.mark.parametrize("task", ["classify", None])
def test_other_tasks_are_refused(task: str | None) -> None:
    with pytest.raises(TypeError, match="detect, segment, pose, obb, not SimpleNamespace"):
        use_ranking(SimpleNamespace(task=task, add_callback=None))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"loss": APELoss}, TypeError, r"pass APELoss\(\)"),
        ({"loss": "APELoss"}, TypeError, "got 'APELoss'"),
        ({"keep": "1"}, TypeError, "keep must be a number, got '1'"),
        ({"weight": torch.ones(())}, TypeError, "weight must be a number"),
        ({"weight": -1}, ValueError, "weight must be finite and at least 0, got -1"),
        ({"keep": math.nan}, ValueError, "keep must be finite and at least 0, got nan"),
    ],
)
def test_bad_arguments_are_refused_at_once(given: dict[str, Any], error: type[Exception], message: str) -> None:
    callbacks: dict[str, list[Any]] = {"on_pretrain_routine_end": []}
    with pytest.raises(error, match=message):
        use_ranking(SimpleNamespace(task="detect", callbacks=callbacks, add_callback=None), **given)
    assert callbacks == {"on_pretrain_routine_end": []}
