"""Complete runs from the command line: built-in data, folders of every format, other losses, overfitting."""

import json
import multiprocessing

import pytest
import torch
import yaml

import rankwise.losses
from rankwise.cli import VERBS, main
from rankwise.errors import SettingsError
from rankwise.evaluation.paa_figures import paa_of_run
from rankwise.evaluation.tabulate import decimals
from rankwise.losses.base import Loss
from rankwise.models import Detector

#: A detector small enough for tests.
TINY = [
    "--model.input.short_side=64",
    "--model.input.max_side=96",
    "--model.backbone.args={'channels': [8, 16, 24, 32]}",
    "--model.neck.channels=16",
    "--model.head.channels=16",
    "--model.head.depth=1",
    "--train.threads=1",
]
TINY_SHAPES = ["--data.shapes.train_images=8", "--data.shapes.val_images=4", "--data.shapes.size=64"]


def train(run, *flags):
    main(["train", "shapes", "--run", str(run), *TINY, "--epochs=1", "--batch_size=4", *flags])


def test_a_run_is_a_folder_that_can_be_run_again(tmp_path, capsys):
    before = set(multiprocessing.active_children())
    train(tmp_path / "run", *TINY_SHAPES, "--data.workers=1")
    assert set(multiprocessing.active_children()) <= before
    files = {path.name for path in (tmp_path / "run").iterdir()}
    results = {"eval.json", "detections.json", "detections.jpg", "report.html"}
    assert (
        files - {"previous.ckpt", "tensorboard"}
        == {"recipe.yaml", "metrics.jsonl", "last.ckpt", "best.safetensors"} | results
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"AP {decimals(json.loads((tmp_path / 'run' / 'eval.json').read_text())['ap'])} (AP50" in page
    assert f"report    {tmp_path}/run/report.html" in capsys.readouterr().out
    recipe = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert recipe["loss"]["class_path"].endswith("APELoss")
    main(["train", str(tmp_path / "run" / "recipe.yaml"), "--run", str(tmp_path / "again")])
    weights = [Detector.load(tmp_path / name).state_dict() for name in ("run", "again")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def class_of(run, section):
    """The class that the recipe of a run names, which is that of a run that repeats it."""
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    return recipe[section]["class_path"].rpartition(".")[2]


def trained_lines(run):
    """What a run has logged of its steps; all of them were taken."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"train", "eval"}
    return [line for line in lines if line["kind"] == "train"]


LOSSES = [
    name
    for name, item in vars(rankwise.losses).items()
    if isinstance(item, type) and issubclass(item, Loss) and name not in ("Loss", "PairwiseError")
]


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_any_loss_is_one_flag(loss, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", "shapes", "--loss", loss, "--print_config"])
    assert stopped.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["loss"]["class_path"].endswith(loss)


@pytest.mark.parametrize("loss", ["GeneralizedFocalLoss", "ALRPLoss"])
def test_another_loss_trains_by_its_flag(tmp_path, loss):
    bins = ["--model.head.coding=ltrb", "--model.head.bins=4"] if loss == "GeneralizedFocalLoss" else []
    train(tmp_path / "run", *TINY_SHAPES, "--loss", loss, *bins)
    assert class_of(tmp_path / "run", "loss") == loss
    assert all(0 < line["ranking"] < 100 for line in trained_lines(tmp_path / "run"))


@pytest.mark.parametrize("assigner", ["IoUThreshold", "ATSS", "PAA"])
def test_any_assigner_is_one_flag(tmp_path, assigner):
    train(tmp_path / "run", *TINY_SHAPES, "--assign", assigner)
    assert class_of(tmp_path / "run", "assign") == assigner
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["images"] == 4
    names = {"score_distributions.png", "object_clusters.png"}
    assert not names & {file.name for file in (tmp_path / "run").iterdir()}
    if assigner == "PAA":  # what it clusters is drawn on request
        main(["eval", str(tmp_path / "run"), "--paa-figures"])
        drawn = {name: (tmp_path / "run" / name).read_bytes() for name in names}
        main(
            ["eval", str(tmp_path / "run"), "--split", "train", "--paa-figures"]
        )  # of those images, beside their results
        assert all((tmp_path / "run" / "eval-train" / name).read_bytes() != drawn[name] for name in names)
        assert all((tmp_path / "run" / name).read_bytes() == drawn[name] for name in names)


@pytest.mark.parametrize("arguments", ["{topkk: 3}", "[3]", "{topk: -1}"])
def test_an_assigner_that_cannot_be_built_from_a_recipe_is_named_with_the_file(tmp_path, arguments):
    (tmp_path / "recipe.yaml").write_text(f"assign: {{class_path: rankwise.assign.PAA, init_args: {arguments}}}\n")
    with pytest.raises(SettingsError, match=r"recipe\.yaml: invalid value in recipe: assign: "):
        paa_of_run(tmp_path)


@pytest.mark.parametrize("folder", ["coco_folder", "voc_folder", "yolo_folder"])
def test_a_folder_of_any_format_trains_evaluates_and_predicts(tmp_path, request, folder, capsys):
    data = request.getfixturevalue(folder)
    train(tmp_path / "run", "--data", str(data))
    main(["eval", str(tmp_path / "run"), "--out", str(tmp_path / "out")])
    trained, again = (json.loads((tmp_path / name / "eval.json").read_text()) for name in ("run", "out"))
    assert trained["images"] == 4
    assert again == trained
    image = next(path for path in sorted(data.rglob("*")) if path.suffix in (".jpg", ".png"))
    main(["predict", str(tmp_path / "run"), str(image), "--out", str(tmp_path / "seen"), "--threshold=0"])
    entries = json.loads((tmp_path / "seen" / "predictions.json").read_text())
    assert [entry["image"] for entry in entries] == [str(image)]
    assert (tmp_path / "seen" / entries[0]["picture"]).is_file()
    capsys.readouterr()


def test_mixed_precision_ema_accumulation_and_clipping_train(tmp_path):
    flags = ["--precision=bf16", "--train.ema=0.9", "--train.accumulate=2", "--optimizer.clip_norm=1"]
    flags += ["--optimizer.name=SGD", "--schedule.decay=step", "--batch_size=2"]
    train(tmp_path / "run", *TINY_SHAPES, *flags)
    assert all(0 < line["gradient_norm"] < 1000 for line in trained_lines(tmp_path / "run"))
    saved = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    best, name = Detector.load(tmp_path / "run").state_dict(), "head.class_output.weight"
    assert torch.equal(best[name], saved["ema"][name])
    assert not torch.equal(best[name], saved["detector"][name])


def test_a_detector_overfits_eight_images(tmp_path):
    flags = ["--epochs=60", "--train.evaluate_every=60", "--batch_size=8", "--data.val=train", "--data.augment.flip=0"]
    size = ["--data.shapes.size=96", "--data.shapes.train_images=8", "--model.input.short_side=96"]
    main(["train", "shapes", "--run", str(tmp_path / "run"), *size, *flags, "--optimizer.lr=0.004", "--train.ema=0"])
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["ap50"] > 90


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "did you mean 'train'"),
        (["train", "shape"], "did you mean 'shapes'? Choose from"),
        (["train", "--loss", "FocalLos"], "did you mean 'FocalLoss'"),
        (["train", "--loss.lamm=4"], "did you mean 'lam'"),
        (["train", "--assign", "PAB"], "no such class"),
        (["train", "--optimizer.lrr=3"], "did you mean --optimizer.lr"),
        (["train", "--epochs=many"], "--epochs many: expected an integer"),
        (["train", "--model.backbone.name=resnet51", "--run", "RUN"], "timm has no backbone 'resnet51'"),
        (["train", "--batch_size=0", "--run", "RUN"], "--batch_size is 0: it must be at least 1"),
        (["train", "--loss.max_negatives=0", "--run", "RUN"], "max_negatives must be at least 1"),
        (["train", "--assign.k=0", "--run", "RUN"], "k must be an integer of at least 1"),
        (["train", "--train.log_every=0", "--run", "RUN"], "--train.log_every is 0: it must be at least 1"),
        (["train", "--lr=-1", "--run", "RUN"], "--lr is -1: it must be at least 0"),
        (["train", "--epochs=0", "--run", "RUN"], "--epochs is 0: it must be at least 1"),
        (["train", "--data.workers=-1", "--run", "RUN"], "--data.workers is -1: it must be at least 0"),
        (["train", "--precision=fp16", "--run", "RUN"], "--precision fp16: choose 32, bf16 or 16"),
        (["train", "--assign=nope.Thing", "--run", "RUN"], "--assign nope.Thing: no module 'nope'"),
        (["train", "--loss=GeneralizedFocalLoss", "--run", "RUN"], "add --model.head.coding ltrb --model.head.bins 16"),
        (["train", "--train.precision=16", "--train.accelerator=cpu", "--run", "RUN"], "bf16"),
        (["train", "--resume", "RUN"], "RUN: no such folder"),
        (["eval", "RUN"], "RUN: no such folder"),
        (["predict", "RUN", "nothing.jpg"], "no such file"),
        (["reproduce", "loses"], "did you mean 'losses'"),
        (["reproduce", "losses", "--budget=.inf"], "--budget above 0"),
    ],
)
def test_a_mistake_gives_a_message_with_the_valid_values(tmp_path, capsys, words, message):
    words = [word.replace("RUN", str(tmp_path / "RUN")) for word in words]
    with pytest.raises(SystemExit) as stopped:
        main(words)
    said = capsys.readouterr()
    assert stopped.value.code == 2
    assert message in said.err
    assert "Traceback" not in said.err


def test_overwrite_deletes_runs_and_nothing_else(tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"precious")
    for flags in ([], ["--overwrite"]):
        with pytest.raises(SystemExit):
            train(tmp_path / "photos", *TINY_SHAPES, *flags)
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"precious"
    assert "it has no recipe.yaml" in capsys.readouterr().err


def test_print_config_prints_the_whole_recipe(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--loss", "APLoss", "--print_config"])
    recipe = yaml.safe_load(capsys.readouterr().out)
    assert recipe["loss"]["class_path"].endswith("APLoss")
    assert {"data", "model", "assign", "box", "optimizer", "schedule", "train"} <= set(recipe)


@pytest.mark.parametrize("command", VERBS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert f"usage: rankwise {command}" in said
    assert "--help" in said


def test_the_built_in_dataset_written_out_passes_its_own_check(tmp_path, capsys):
    flags = ["--shapes.train_images=6", "--shapes.val_images=3", "--shapes.size=64"]
    main(["data", "shapes", str(tmp_path / "shapes"), *flags])
    main(["data", "check", str(tmp_path / "shapes")])
    said = " ".join(capsys.readouterr().out.split())
    assert "wrote 6 training and 3 validation images" in said
    assert "│ train │ 6 │" in said
    assert "│ val │ 3 │" in said
    assert said.endswith("No faults.")
    with pytest.raises(SystemExit) as stopped:
        main(["data", "shapes", str(tmp_path / "shapes"), *flags])
    assert stopped.value.code == 2
    assert "not empty" in capsys.readouterr().err


def test_data_check_lists_faults_and_exits_with_1(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["data", "check", str(tmp_path / "nowhere")])
    assert stopped.value.code == 1
    assert f"{tmp_path / 'nowhere'}: no such folder; give the folder of a dataset" in capsys.readouterr().out
