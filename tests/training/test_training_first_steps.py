"""Common first steps that are easy to get wrong: custom classes, other backbones, other images."""

import importlib.util
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import yaml
from data_folders import write_coco_folder
from live_runs import TINY

from rankwise.cli import main
from rankwise.config.recipe import parse_recipe
from rankwise.errors import SettingsError
from rankwise.evaluation.inference import pick_device
from rankwise.training.folders import run_folder
from rankwise.training.tracking import STAGES, WARM_UP, Stopwatch

OWN = """
import torch
from rankwise.assign import IoUThreshold

class Generous(IoUThreshold):
    def __init__(self, positive: float = 0.3) -> None:
        super().__init__(positive, min(positive, 0.3))
"""


def test_a_class_in_the_current_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    (tmp_path / "of_my_own.py").write_text(OWN)
    main(["train", "shapes", *TINY, "--epochs=1", "--assign=of_my_own.Generous", "--run", "run"])
    recipe = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert recipe["assign"] == {"class_path": "of_my_own.Generous", "init_args": {"positive": 0.3}}


def test_another_backbone_does_not_get_the_arguments_of_the_recipe():
    assert parse_recipe(["--config", "shapes"]).model.backbone.args["stem_width"] == 24
    assert parse_recipe(["--config", "shapes", "--model.backbone.name", "mobilenetv2_100"]).model.backbone.args == {}
    kept = parse_recipe(["--config=shapes", "--model.backbone.name=resnet10t"])
    assert kept.model.backbone.args["stem_width"] == 24
    given = parse_recipe(
        ["--config", "shapes", "--model.backbone.name=mobilenetv2_100", "--model.backbone.args={'act_layer': 'relu'}"]
    )
    assert given.model.backbone.args == {"act_layer": "relu"}


@pytest.mark.parametrize("name", ["own_data", "photos_mobilenet", "small_scratch"])
def test_recipes_for_own_images_keep_all_scores_and_weight_all_boxes_the_same(name):
    recipe = parse_recipe(["--config", name])
    assert recipe.model.postprocess.score_threshold == 0
    assert "weight_by_quality: true" in recipe.text
    assert recipe.model.postprocess.score_voting
    assert type(recipe.assign).__name__ == "PAA"
    assert recipe.box.weighting == "none"


def test_runs_started_at_the_same_time_get_different_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: run_folder(None, "shapes", False), range(8)))
    assert {str(folder) for folder in folders} == {f"runs/shapes-{number}" for number in range(1, 9)}


def test_a_run_that_fails_at_the_start_leaves_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["train", "shapes", "--data", "nowhere"])
    assert capsys.readouterr().err.startswith("rankwise train: nowhere: no such folder; give that of a dataset")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_resumed_run_uses_its_own_folder(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(parse_recipe(["--config", "shapes"]).text)
    with pytest.raises(SystemExit):
        main(["train", "--resume", str(tmp_path), "--run", "other"])
    assert "leave out --run other" in capsys.readouterr().err


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    write_coco_folder(folder / "data", train=8, val=4)
    main(["train", "shapes", *TINY, "--data", str(folder / "data"), "--epochs=1", "--run", str(folder / "run")])
    return folder / "run"


def test_evaluating_other_images_keeps_the_results_of_the_run(run, tmp_path):
    own = {name: (run / name).read_bytes() for name in ("eval.json", "detections.json")}
    other = write_coco_folder(tmp_path / "others", train=3, val=2)
    main(["eval", str(run), "--split", "train"])
    main(["eval", str(run), "--data", str(other)])
    main(["eval", str(run), "--data", str(other), "--split", "train", "--flip", "true"])
    assert {name: (run / name).read_bytes() for name in own} == own
    counts = {
        name: json.loads((run / name / "eval.json").read_text())["images"]
        for name in ("eval-train", "eval-others", "eval-others-train-tta")
    }
    assert list(counts.values()) == [8, 2, 3]
    main(["eval", str(run), "--split", "val"])  # the run's own once more
    assert (run / "eval.json").read_bytes() == own["eval.json"]


@pytest.mark.parametrize(("cuda", "mps", "device"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_the_automatic_device_is_the_gpu(monkeypatch, cuda, mps, device):
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: mps)
    assert pick_device("auto") == torch.device(device)


def test_a_missing_device_gives_a_clear_message(run, capsys):
    with pytest.raises(SettingsError, match=r"^--device nonsense: there is no such device; use auto, cpu, cuda"):
        pick_device("nonsense")
    assert pick_device("cpu") == torch.device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit):
            main(["eval", str(run), "--device", "cuda"])
        assert "--device cuda: torch cannot use it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "there", "elsewhere"), [("loss", "APLos", "APLoss", "PAA"), ("assign", "PAAA", "PAA", "APLoss")]
)
def test_a_wrong_class_name_gives_the_valid_names(flag, value, there, elsewhere, capsys):
    with pytest.raises(SystemExit):
        main(["train", f"--{flag}={value}"])
    said = capsys.readouterr().err
    assert f"did you mean {there!r}" in said
    assert f" {elsewhere}," not in said
    assert "LazyInstance" not in said


def test_a_mistyped_short_flag_gives_a_suggestion(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--epoch=3"])
    assert "did you mean --epochs" in capsys.readouterr().err


@pytest.mark.parametrize("loss", ["RankSortLoss", "RankDetLoss"])
def test_a_part_of_a_loss_is_logged_under_another_name_than_the_total(tmp_path, loss):
    main(["train", "shapes", *TINY, "--epochs=1", f"--loss={loss}", "--run", str(tmp_path / "run")])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    other = {"RankSortLoss": "sorting", "RankDetLoss": "iou_guided"}[loss]
    assert steps
    for line in steps:
        assert line["ranking"] == pytest.approx(line["ranking_part"] + line[other], abs=2e-4)


def test_the_stopwatch_drops_the_first_steps_once_there_are_more(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("rankwise.training.tracking.time.perf_counter", lambda: now[0])
    watch = Stopwatch(torch.device("cpu"))
    for step in range(WARM_UP + 5):
        watch.start_step(False)
        with watch.stage("loss"):
            now[0] += 10.0 if step < WARM_UP else 1.0
        if step == 0:
            assert watch.seconds()["loss"] == 10
    assert watch.seconds() == dict.fromkeys(STAGES, 0.0) | {"loss": 1.0}


def test_the_current_folder_is_on_the_path_only_while_a_class_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    (tmp_path / "named_there.py").write_text("import sys\nPATH = list(sys.path)\n" + OWN)
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "__init__.py").write_text("")
    looked = []
    monkeypatch.setattr("rankwise.training.loop.train", lambda *_: looked.append(importlib.util.find_spec("planted")))
    main(["train", "shapes", *TINY, "--assign=named_there.Generous", "--run", "run"])
    assert looked == [None]
    assert sys.modules["named_there"].PATH[-1] == str(tmp_path)
    assert str(tmp_path) not in sys.path
