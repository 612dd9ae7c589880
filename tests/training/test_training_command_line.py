"""The command line accepts usual spellings of flags and recipes, and answers mistakes with a message."""

import json

import pytest
import yaml
from PIL import Image

from rankwise.cli import main
from rankwise.config.flags import value_of
from rankwise.config.recipe import parse_recipe
from rankwise.models import Detector, DetectorSettings


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """Runs ``rankwise train`` up to the training; gives the recipe and the folder."""
    seen = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rankwise.training.loop.train", lambda recipe, folder, *_: seen.append((recipe, folder)))

    def run(line):
        main(["train", *line.split()])
        return seen.pop()

    return run


def test_hyphens_bare_booleans_and_the_recipe_anywhere(trained):
    usual, folder = trained("shapes --batch_size 4 --train.compile true --loss.weight_by_quality true --lr=0.1")
    habit, other = trained("--batch-size 4 --train.compile shapes --loss.weight-by-quality --lr 0.1")
    assert habit.text == usual.text
    assert (usual.train.batch_size, usual.train.compile) == (4, True)
    assert "weight_by_quality: true" in usual.text
    assert folder.name == "shapes-1"
    assert other.name == "shapes-1"
    last, _ = trained("--epochs 3 --config shapes --train.channels-last no --epochs=2")
    assert (last.train.epochs, last.train.channels_last) == (2, False)


def test_a_bare_boolean_flag_does_not_consume_the_next_word(trained):
    recipe, folder = trained("--model.backbone.frozen-norm statistics --data.skip-bad photos_mobilenet")
    assert (recipe.model.backbone.frozen_norm, recipe.data.skip_bad) == ("statistics", True)
    assert folder.name == "photos_mobilenet-1"


def test_size_scales_all_sizes_of_a_recipe_and_explicit_flags_win():
    recipe = parse_recipe(["--config", "own_data", "--model.input.max-side=600", "--size", "320"])
    assert (recipe.model.input.short_side, recipe.model.input.max_side) == (320, 600)
    assert recipe.data.augment.short_sides == (240, 256, 272, 288, 304, 320)
    assert recipe.data.augment.max_side == 533
    square = parse_recipe(["--config", "coco_retinanet512", "--size", "250"])  # half of 500 x 833
    assert (square.model.input.short_side, square.model.input.max_side, square.data.augment.square) == (250, 416, 256)


def test_an_automatic_batch_is_a_number_in_the_recipe(trained):
    recipe, _ = trained("shapes --batch-size auto --data.shapes.train-images 60 --train.accelerator cpu")
    assert (recipe.train.batch_size, recipe.train.accumulate) == (4, 0)
    again = parse_recipe(["--config", "shapes", "--batch_size=4", "--train.accumulate=0"])
    train = yaml.safe_load(recipe.text)["train"]
    assert train == yaml.safe_load(again.text)["train"] | {"accelerator": "cpu"}


def test_the_last_of_two_flags_counts():
    assert value_of(["--a=1", "--b=2", "--a=3"], "--a") == "3"
    assert value_of(["--b=2"], "--a") is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train shapes own_data", "expected one recipe, got shapes and own_data"),
        ("train --data.shapes.size 16", "--data.shapes.size is 16: it must be at least 32"),
        ("train --data.val foo --run RUN", "the built-in dataset has no foo split, only train, val, test"),
        ("train --data.shapes foo", "--data.shapes foo: this is a section"),
        ("train --data.workers 2.5", "--data.workers 2.5: expected an integer"),
        ("train --schedule.milestones 3", "--schedule.milestones 3: expected a list"),
        ("train --epochs", "--epochs: expected a value"),
        ("train --data --epochs 2", "--data: expected a value"),
        ("train --batch-size 3.5", "--batch_size 3.5: expected an integer or auto"),
        ("train --loss.lam big", "--loss.lam big: expected a number"),
        ("train --loss.method quick", "--loss.method quick: choose fast, triton, numba, torch or dense"),
        ("train --loss.help APE", "--loss.help APE: no such class; did you mean 'APELoss'?"),
        ("train --flip", "there is no flag --flip; did you mean --data.augment.flip or --model.test.flip?"),
        ("train --seed -1", "--seed is -1: it must be at least 0"),
        ("train --seed 99999999999", "--seed is 99999999999: it must be below 4294967296"),
        ("train --optimizer.weight-decay .inf", "--optimizer.weight_decay is inf: it must be a finite number"),
        ("train --loss FocalLoss --loss.gamma .nan", "--loss.gamma is nan: it must be a finite number"),
        ("train --optimizer.momentum 1", "--optimizer.momentum is 1: it must be below 1"),
        ("train --schedule.milestones [0.5,-1]", "--schedule.milestones is [0.5, -1.0]: all must be above 0"),
        ("train --data.augment.max-side 0", "augment.max_side is 0: it must be at least 2 pixels"),
        (
            "train --model.backbone.strides [-8,16]",
            "backbone.strides is (-8, 16): give at least one, in ascending order, each 1 or more",
        ),
        ("train --train.epochs 0", "--train.epochs is 0: it must be at least 1"),
        ("data shapes RUN --images 0", "data shapes: --images is 0: it must be at least 1"),
        ("data shapes RUN --shapes.train_images 0", "data shapes: --shapes.train_images is 0: it must be at least 1"),
        ("train --size big", "--size big: expected an integer"),
        ("train --size 1", "--size 1: expected an integer of 2 or more"),
        ("train --bach-size 4", "there is no flag --bach_size; did you mean --batch_size"),
        ("train --imgsz 640", "there is no flag --imgsz; here it is --size N"),
        ("predict RUN IMAGES --conf 0.3", "there is no flag --conf; here it is --threshold VALUE"),
        ("train --device gpu", "--device gpu: choose auto, cpu, cuda or mps"),
        ("train --model.backbone resnet18", "rankwise train --help model lists them"),
        ("train .", ". is a folder, not a recipe: to train on its images, write --data ."),
        ("data shapes OUT --shapes.size 8", "it must be at least 32"),
        ("eval --flip RUN --batch-size 0", "--batch_size is 0"),
    ],
)
def test_a_mistake_gives_one_message(line, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(line.split())
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_weights_file_is_answered_with_its_run_or_with_what_it_can_do(tmp_path, capsys):
    (tmp_path / "best.safetensors").touch()
    for said in ("give the folder of the run, which has its recipe.yaml; predict and export take", f"run, {tmp_path}"):
        with pytest.raises(SystemExit):
            main(["eval", str(tmp_path / "best.safetensors")])
        assert said in capsys.readouterr().err
        (tmp_path / "recipe.yaml").touch()


@pytest.mark.parametrize(
    ("line", "there", "elsewhere"),
    [
        ("--help", ["--size N", "own_data", "--help SECTION"], "--data.augment.flip"),
        ("--help data", ["--data.augment.flip", "Probability of a horizontal flip"], "--train.epochs"),
        ("--data.help", ["--data.augment.flip"], "--train.epochs"),
        ("shapes --help loss", ["APELoss", "RankSortLoss"], "--data"),
        ("--loss.help APELoss", ["--loss.lam"], "--data"),
    ],
)
def test_help_is_an_overview_and_a_page_per_section(line, there, elsewhere, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", *line.split()])
    said = capsys.readouterr().out
    assert stopped.value.code == 0
    assert all(text in said for text in there)
    assert elsewhere not in said
    assert len(said.splitlines()) < 100
    if line in ("--help", "shapes --help loss"):  # elsewhere, docstrings keep their lines
        assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize(
    "line", ["train --help data", "train --loss.help APELoss", "eval", "predict", "export", "data show", "data shapes"]
)
def test_help_has_no_python_types_and_no_empty_defaults(line, capsys):
    with pytest.raises(SystemExit):
        main(line.split() if "help" in line else [*line.split(), "--help"])
    said = capsys.readouterr().out
    assert "usage: rankwise" in said
    assert not any(text in said for text in ("type:", "null)", "Literal", "``"))
    assert "default: " in said


def test_predict_runs_in_batches_and_accepts_flags_between_images(tmp_path, monkeypatch):
    small = {"backbone": {"name": "resnet10t", "args": {"channels": [8, 8, 8, 8]}}, "neck": {"channels": 8}}
    small |= {"head": {"channels": 8, "norm": "none"}, "input": {"short_side": 32, "max_side": 64}}
    Detector(DetectorSettings.from_dict(small), ["thing"]).save(tmp_path / "best.safetensors")
    files = [str(tmp_path / f"{number}.png") for number in range(3)]
    for file in files:
        Image.new("RGB", (48, 40)).save(file)
    batches, forward = [], Detector.forward
    monkeypatch.setattr(Detector, "forward", lambda self, images: batches.append(len(images)) or forward(self, images))
    main(["predict", str(tmp_path), files[0], "--batch-size", "2", *files[1:], "--out", str(tmp_path / "out")])
    assert batches == [2, 1]
    assert len(json.loads((tmp_path / "out" / "predictions.json").read_text())) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "train: {batchsize: 4}": "recipe.yaml: train has no setting 'batchsize' in rankwise ",
        "model: {input: {short: 4}}": "recipe.yaml: model.input has no setting 'short' in rankwise ",
        "trian: {epochs: 4}": "recipe.yaml: there is no section 'trian'; did you mean 'train'?",
        "train:\n  epochs: 010": "010 in line 2 is ambiguous",
        "train: {epochs: 1:30}": "1:30 in line 1 is ambiguous",
    }.items(),
)
def test_a_mistake_in_a_recipe_names_the_file_and_the_setting(tmp_path, trained, capsys, text, message):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(SystemExit) as stop:
        trained("recipe.yaml")
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("line", ["train --resume", "eval", "report"])
def test_a_run_that_does_not_exist_is_not_called_incomplete(tmp_path, capsys, line):
    with pytest.raises(SystemExit) as stop:
        main([*line.split(), str(tmp_path / "nowhere")])
    assert stop.value.code == 2
    assert "nowhere: no such folder" in capsys.readouterr().err
