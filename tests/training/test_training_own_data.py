"""`rankwise train --data DIR` without a recipe: what it chooses, what it prints, and its initial weights."""

import http.server
import json
import shutil
import socket
import threading
from types import SimpleNamespace

import pytest
import torch
import yaml
from data_folders import write_coco_folder
from live_runs import TINY, lines

from rankwise.cli import main
from rankwise.config import choice
from rankwise.config.datasets import results_subfolder
from rankwise.config.recipe import parse_recipe
from rankwise.data import open_dataset
from rankwise.data.balance import balance_lines
from rankwise.errors import ModelError
from rankwise.evaluation import evaluate
from rankwise.evaluation.thresholds import at_scores
from rankwise.models import BackboneSettings, Detector
from rankwise.models.backbone import Backbone
from rankwise.models.pretrained import Weights, is_reachable
from rankwise.report.runs import results_folder
from rankwise.training import step
from rankwise.training.start import warnings

SMALL = [flag for flag in TINY if not flag.startswith(("--data.shapes", "--model.input", "--loss", "--schedule"))]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_coco_folder(tmp_path_factory.mktemp("own") / "data", train=20, val=4)


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(choice, "locate", lambda name: Weights("none", why="the hub does not answer"))


@pytest.mark.parametrize(
    ("gpu", "found", "recipe"),
    [
        (False, Weights("cache", "weights.safetensors"), "photos_mobilenet"),
        (False, Weights("none", why="the hub does not answer"), "small_scratch"),
        (True, Weights("hub"), "own_data"),
        (True, Weights("none", why="the hub does not answer"), "own_data"),
    ],
)
def test_the_recipe_is_chosen_by_device_and_weights(data, monkeypatch, gpu, found, recipe):
    monkeypatch.setattr(choice, "has_gpu", lambda: gpu)
    monkeypatch.setattr(choice, "locate", lambda name: found)
    made = choice.choose([f"--data.path={data}"])
    assert made.recipe == recipe
    parsed = parse_recipe(["--config", made.recipe, *made.flags, "--data", str(data)])
    assert parsed.train.batch_size == 2  # of 20 images
    assert parsed.train.epochs == {"photos_mobilenet": 150, "small_scratch": 240, "own_data": 300}[recipe]
    backbone = parsed.model.backbone
    if found.kind == "none":  # frozen random weights would learn nothing
        assert (backbone.pretrained, backbone.frozen_stages, backbone.frozen_norm) == (False, 0, False)
    else:
        assert backbone.pretrained is True
    said = "\n".join(made.lines)
    for text in (recipe, str(found), "GPU", "--minutes", "override"):
        assert text in said, said


def test_flags_override_the_chosen_recipe(data, offline):
    words = [f"--data.path={data}", "--train.batch_size=5", "--train.epochs=3", "--size=96"]
    name, flags, _ = choice.prepare(words, None)
    recipe = parse_recipe(flags)
    assert (name, recipe.train.batch_size, recipe.train.epochs) == ("small_scratch", 5, 3)
    assert recipe.model.input.short_side == 96
    assert choice.prepare(words, "photos_mobilenet")[0] == "photos_mobilenet"
    assert choice.prepare(["--train.epochs=3"], None)[0] == "shapes"


def test_print_config_prints_the_recipe_that_would_be_trained(data, offline, capsys):
    with pytest.raises(SystemExit):
        main(["train", "--data", str(data), "--lr", "0.5", "--print_config"])
    said = capsys.readouterr().out
    assert said.startswith("# recipe    small_scratch: ")
    recipe = yaml.safe_load(said)
    assert (recipe["train"]["epochs"], recipe["train"]["batch_size"], recipe["optimizer"]["lr"]) == (240, 2, 0.5)
    assert recipe["model"]["backbone"]["pretrained"] is False


def test_a_wrong_flag_is_reported_without_the_choice(data, offline, capsys):
    with pytest.raises(SystemExit):
        main(["train", "--data", str(data), "--epoch", "3"])
    said = capsys.readouterr()
    assert "did you mean --epochs?" in said.err
    assert [line.split()[0] for line in said.out.splitlines()] == ["starting"]


@pytest.mark.parametrize("batch", ["0", "-2", "²", "many"])
def test_an_invalid_batch_size_gives_a_message_before_the_recipe_is_chosen_by_it(data, offline, capsys, batch):
    with pytest.raises(SystemExit):
        main(["train", "--data", str(data), "--batch-size", batch])
    assert "--batch_size" in capsys.readouterr().err


def test_the_batch_fits_the_dataset():
    assert [choice.automatic_batch(images, 16) for images in (1, 20, 60, 300, 5000)] == [2, 2, 4, 16, 16]


def test_an_unreachable_hub_is_given_up_quickly_and_a_reachable_one_is_used():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection and never answers
        assert not is_reachable(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.3)
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert is_reachable(f"http://127.0.0.1:{server.server_port}", seconds=5)  # "not implemented" is an answer


def test_missing_pretrained_weights_without_network_give_advice(monkeypatch):
    monkeypatch.setattr("rankwise.models.backbone.locate", lambda name: Weights("none", why="no answer"))
    with pytest.raises(ModelError, match=r"no answer\. Set --model\.backbone\.pretrained to a file"):
        Backbone(BackboneSettings("resnet10t", pretrained=True))


def test_weights_in_the_hub_cache_are_loaded_without_network(monkeypatch, tmp_path):
    import timm

    torch.manual_seed(0)
    known = timm.create_model("resnet10t")
    torch.save(known.state_dict(), tmp_path / "model.bin")
    found = Weights("cache", str(tmp_path / "model.bin"))
    monkeypatch.setattr("rankwise.models.backbone.locate", lambda name: found)
    monkeypatch.setattr(socket, "socket", None)
    backbone = Backbone(BackboneSettings("resnet10t", pretrained=True))
    assert torch.equal(backbone.net.layer1[0].conv1.weight, known.layer1[0].conv1.weight)
    assert str(tmp_path) in backbone.source


@pytest.fixture(scope="module")
def run(tmp_path_factory, data):
    """A run as a new user has it: chosen, with a time budget, in a folder of its own, its words kept."""
    folder = tmp_path_factory.mktemp("chosen")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(choice, "locate", lambda name: Weights("none", why="the hub does not answer"))
        (folder / "data").symlink_to(data)
        main(["train", "--data", "data", *SMALL, "--epochs=4", "--batch-size=auto", "--patience=1", "--run", "run"])
    return folder / "run"


def test_a_run_can_be_used_from_another_folder(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    assert recipe["data"]["path"] == str(run.parent / "data")
    assert recipe["train"]["batch_size"] == 2
    main(["eval", str(run)])
    assert "4 images" in capsys.readouterr().out
    (run.parent / "data").rename(run.parent / "moved")
    try:
        with pytest.raises(SystemExit):
            main(["eval", str(run)])
        assert "give its new location: --data DIR" in capsys.readouterr().err
        here = tmp_path / "data"
        here.symlink_to(run.parent / "moved")
        for folder, subfolder in ((here, ""), (run.parent / "moved", "eval-data")):
            assert results_subfolder(recipe["data"], str(folder), None) == subfolder
            assert results_folder(run, str(folder), None) == subfolder
        main(["eval", str(run), "--data", "data"])
        said = capsys.readouterr().out
        assert "no longer exists: data is taken as its new location" in said
        assert "best F1" in said  # thresholds are chosen on the validation images of the run
    finally:
        (run.parent / "moved").rename(run.parent / "data")


def test_files_have_the_permissions_of_the_umask(run):
    usual = run / "usual"
    usual.touch()
    modes = {name: oct((run / name).stat().st_mode) for name in ("best.safetensors", "last.ckpt", "recipe.yaml")}
    assert set(modes.values()) == {oct(usual.stat().st_mode)}, modes


def test_other_images_are_evaluated_at_the_thresholds_of_the_run(run, capsys):
    main(["eval", str(run), "--split", "train"])
    assert "at the thresholds of the run" in capsys.readouterr().out
    thresholds = json.loads((run / "eval-train" / "eval.json").read_text())["thresholds"]["per_class"]
    own = Detector.load(run).confidence.thresholds
    assert {name: cut["score"] for name, cut in thresholds.items()} == pytest.approx(own)


def test_the_quality_at_given_thresholds_is_counted(data):
    boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]])
    truth = {
        "images": [{"id": 1, "width": 40, "height": 40}],
        "annotations": [
            {"id": i, "image_id": 1, "category_id": 1, "bbox": [x, x, 10, 10], "area": 100, "iscrowd": 0}
            for i, x in enumerate((0, 20), start=1)
        ],
        "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
    }
    labels = torch.tensor([0, 0])
    found = {1: {"boxes": boxes + torch.tensor([[0.0], [9.0]]), "scores": torch.tensor([0.9, 0.8]), "labels": labels}}
    matches = evaluate(truth, found, [1, 2], ["a", "b"]).matches
    low, high = (at_scores(matches, ["a", "b"], {"a": score, "b": 0.5}).per_class["a"] for score in (0.5, 0.85))
    assert (low.precision, low.recall) == (0.5, 0.5)
    assert (high.precision, high.recall) == (1.0, 0.5)
    assert at_scores(matches, ["a", "b"], {"a": 0.5, "b": 0.5}).per_class["b"].recall is None


@pytest.fixture
def stopped(run, tmp_path):
    """The run as it is when it is stopped before its first evaluation."""
    kept = ("recipe.yaml", "metrics.jsonl", "last.ckpt")
    shutil.copytree(run, tmp_path / "stopped", ignore=lambda _, names: [name for name in names if name not in kept])
    return tmp_path / "stopped"


def test_a_run_without_an_evaluation_is_used_from_its_checkpoint(stopped, data, tmp_path, capsys):
    main(["predict", str(stopped), str(next((data / "val").iterdir())), "--out", str(tmp_path / "found")])
    assert "was stopped before its first evaluation" in capsys.readouterr().out
    main(["eval", str(stopped)])
    assert "was stopped before its first evaluation" in capsys.readouterr().out
    assert json.loads((stopped / "eval.json").read_text())["images"] == 4
    state = torch.load(stopped / "last.ckpt", weights_only=True)
    detector = Detector.load(stopped)
    assert torch.equal(detector.head.scales, (state["ema"] or state["detector"])["head.scales"])
    assert detector.confidence.calibration is not None


def test_the_weights_of_a_run_in_place_of_its_folder_are_answered_by_the_folder(run, capsys):
    with pytest.raises(SystemExit):
        main(["eval", str(run / "best.safetensors")])
    assert f"give the folder of the run, {run}" in capsys.readouterr().err


def test_a_report_on_other_images_works_for_a_run_without_results(stopped, tmp_path):
    other = write_coco_folder(tmp_path / "other", train=3, val=1)
    main(["report", str(stopped), "--data", str(other), "--split", "train"])
    assert json.loads((stopped / "eval-other-train" / "eval.json").read_text())["images"] == 3
    assert "other, train" in (stopped / "eval-other-train" / "report.html").read_text()
    assert not (stopped / "report.html").exists()


def test_eval_says_that_it_uses_the_held_out_tenth(run, tmp_path, capsys):
    folder = write_coco_folder(tmp_path / "single", train=10, val=0)
    main(["eval", str(run), "--data", str(folder)])
    said = capsys.readouterr().out
    assert "1 of its 10 images are held out for validation" in said
    assert "--split all" in said
    main(["eval", str(run), "--data", str(folder), "--split", "all"])
    assert "10 images" in capsys.readouterr().out


def test_a_training_prints_each_note_about_its_dataset_once(tmp_path, monkeypatch, capsys, offline):
    folder = write_coco_folder(tmp_path / "data", train=20, val=1)
    shutil.rmtree(folder / "val")
    (folder / "annotations" / "instances_val.json").unlink()
    path = folder / "annotations" / "instances_train.json"
    content = json.loads(path.read_text())
    for annotation in content["annotations"]:
        annotation["bbox"] = [-2, 0, 20, 20]
    path.write_text(json.dumps(content))
    main(["train", "--data", str(folder), *SMALL, "--epochs=1", "--run", str(tmp_path / "run")])
    said = capsys.readouterr().out
    assert said.count("extended beyond their image by a few pixels and were clipped") == 1
    assert said.count("has no validation split: 2 of its 20 images are held out for validation") == 1


def test_patience_ends_a_run_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rankwise.training.loop.evaluate_run", lambda *_, **__: None)
    flags = ["shapes", *TINY, "--epochs=9", "--patience=2", "--lr=0", "--train.ema=0"]
    main(["train", *flags, "--run", str(tmp_path / "run")])
    measured = [line["ap"] for line in lines(tmp_path / "run") if line["kind"] == "eval"]
    assert len(measured) < 9
    assert measured.index(max(measured)) == len(measured) - 3
    assert "2 evaluations without a better AP" in capsys.readouterr().out
    main(["train", "--resume", str(tmp_path / "run")])
    assert "all epochs are done" in capsys.readouterr().out


def test_fine_tuning_starts_from_the_detector_of_a_run(run, data, tmp_path, monkeypatch, capsys):
    seen = {}
    monkeypatch.setattr("rankwise.training.loop.evaluate_run", lambda *_, **__: None)
    monkeypatch.setattr("rankwise.training.loop.Run.fit", lambda self: seen.update(run=self))
    main(["train", "--data", str(data), "--init", str(run), "--epochs=1", "--run", str(tmp_path / "tuned")])
    start, before = seen["run"].detector, Detector.load(run)
    assert start.settings == before.settings
    for (name, one), other in zip(start.state_dict().items(), before.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    assert f"fine-tunes the detector of {run}" in " ".join(capsys.readouterr().out.split())
    recipe = yaml.safe_load((tmp_path / "tuned" / "recipe.yaml").read_text())
    assert recipe["train"]["init"] == str(run)
    assert (recipe["optimizer"]["name"], recipe["optimizer"]["lr"]) == ("AdamW", 0.00045)


def test_fine_tuning_that_only_harms_keeps_the_detector_it_started_from(run, data, tmp_path, monkeypatch, capsys):
    found = iter([SimpleNamespace(ap=ap, ap50=40.0, ap75=20.0) for ap in (30.0, 20.0, 10.0)])
    monkeypatch.setattr("rankwise.training.loop.evaluate_run", lambda *_, **__: None)
    monkeypatch.setattr(
        "rankwise.training.loop.evaluate_detector",
        lambda *_, **__: (next(found), {}),
    )
    flags = ["--epochs=2", "--train.evaluate_every=1", "--optimizer.lr=1"]
    main(["train", "--data", str(data), "--init", str(run), *flags, "--run", str(tmp_path / "tuned")])
    said = capsys.readouterr().out
    assert "before training: AP 30.0  AP50 40.0  AP75 20.0  (best so far)" in said
    assert "epoch 1: AP 20.0  AP50 40.0  AP75 20.0\n" in said
    kept, before = (Detector.load(folder).state_dict() for folder in (tmp_path / "tuned", run))
    assert all(torch.equal(kept[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shapes"], "with shapes: a resumed run uses its own recipe"),
        (["--config", "shapes"], "with --config: a resumed run uses its own recipe"),
        (["--overwrite"], "with --overwrite: it would delete the run"),
        (["--init", "other"], "with --init: a resumed run uses its own weights"),
    ],
)
def test_arguments_that_a_resumed_run_would_ignore_are_refused(run, words, said, capsys):
    with pytest.raises(SystemExit):
        main(["train", *words, "--resume", str(run)])
    assert said in capsys.readouterr().err


def test_a_finished_run_refuses_settings_that_would_have_no_effect(run, capsys):
    before = (run / "recipe.yaml").read_text()
    with pytest.raises(SystemExit):
        main(["train", "--resume", str(run), "--loss", "FocalLoss"])
    said = capsys.readouterr().err
    assert "is finished: loss.class_path" in said
    assert f"--init {run}" in said
    assert (run / "recipe.yaml").read_text() == before


def test_another_loss_is_recorded_when_a_run_is_resumed(run, monkeypatch, capsys):
    monkeypatch.setattr("rankwise.training.loop.evaluate_run", lambda *_, **__: None)
    main(["train", "--resume", str(run), "--loss", "FocalLoss", "--epochs=5", "--patience=9"])
    assert "with other settings: loss.class_path" in capsys.readouterr().out
    (line,) = [line for line in lines(run) if line["kind"] == "changed"]
    assert line["settings"]["train.epochs"] == [4, 5]
    assert "FocalLoss" in json.dumps(line["settings"])


def test_a_batch_too_large_for_the_gpu_is_split(monkeypatch):
    tried, undone, said = [], [], []

    def backward(fabric, model, criterion, batch, count, watch, is_usable):
        tried.append(count)
        if count < 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return "losses"

    monkeypatch.setattr(step, "whole_batch_backward", backward)

    class Batch:
        targets = range(6)

    automatic = step.Parts(0, 1, lambda: undone.append(1), said.append)
    assert automatic.backward(None, None, None, Batch, None, None) == "losses"
    assert (tried, len(undone), len(said)) == ([1, 2, 4], 2, 2)
    for fixed in (step.Parts(1, 1, undone.clear, said.append), step.Parts(0, 2, undone.clear, said.append)):
        with pytest.raises(torch.OutOfMemoryError):
            fixed.backward(None, None, None, Batch, None, None)


def test_imbalance_tiny_boxes_and_probable_mistakes_are_reported(tmp_path):
    folder = write_coco_folder(tmp_path / "data", train=3, val=1)
    path = folder / "annotations" / "instances_train.json"
    content = json.loads(path.read_text())
    first, last = content["categories"][0]["id"], content["categories"][-1]["id"]
    image = content["images"][0]
    boxes = [[1, 1, 20, 5]] * 30 + [[3, 3, 1, 9]]
    content["annotations"] = [
        {"id": i, "image_id": image["id"], "category_id": first, "bbox": box, "iscrowd": 0}
        for i, box in enumerate(boxes, start=1)
    ]
    content["annotations"].append(
        {"id": 99, "image_id": image["id"], "category_id": last, "bbox": [-2, 0, 20, 20], "iscrowd": 0}
    )
    path.write_text(json.dumps(content))
    dataset = open_dataset(folder, "train")
    assert dataset.notes == ["train: 1 box extended beyond its image by a few pixels and was clipped"]
    said = "\n".join(warnings(dataset, parse_recipe(["--config", "shapes"]).model.input))
    assert "has 31 boxes" in said
    assert "check     1 box is less than 2 pixels" in said
    small = parse_recipe(["--config", "shapes", "--model.input.short_side=32", "--model.input.max_side=32"])
    assert "have a side below 8 pixels" in "\n".join(warnings(dataset, small.model.input))
    assert balance_lines(dataset, False) == []
    assert balance_lines(dataset, 0.001) == ["balance   no class is rare enough for its images to be repeated"]
    (line,) = balance_lines(dataset, 0.9)
    assert "images of rare classes are repeated, those with" in line
