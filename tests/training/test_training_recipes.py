"""Every built-in recipe parses, states its command, and trains."""

import json

import pytest
from data_folders import write_coco_folder

from rankwise.cli import main
from rankwise.config.recipe import built_in_recipes, parse_recipe
from rankwise.losses import AdaptivePairs, SigmoidCrossEntropy, ValidNegatives
from rankwise.models import Detector

SMALL = [
    "--model.input.short_side=64",
    "--model.input.max_side=64",
    "--model.backbone.pretrained=false",
    "--model.neck.channels=32",
    "--model.head.channels=32",
    "--data.train=train",
    "--data.val=val",
    "--data.augment.short_sides=[]",
    "--data.augment.max_side=null",
    "--data.augment.square=null",
    "--data.workers=0",
    "--model.postprocess.score_threshold=0",
]


@pytest.mark.parametrize("name", sorted(built_in_recipes()))
def test_a_recipe_states_its_command_and_parses(name):
    head = built_in_recipes()[name].read_text().splitlines()[:4]
    assert head[0].startswith("# ")
    assert any("Command: rankwise train" in line for line in head)
    recipe = parse_recipe(["--config", name, "--model.backbone.pretrained=false"])
    assert Detector(recipe.model, ["cat", "dog"]).classes == ["cat", "dog"]


@pytest.mark.parametrize("name", sorted(built_in_recipes()))
def test_a_recipe_trains_two_steps_on_tiny_images(tmp_path, name):
    folder = write_coco_folder(tmp_path / "data", train=2, val=2)
    flags = ["--epochs=2", "--batch_size=2", "--train.evaluate_every=2"]
    if "mobilenet" not in name:
        flags += ["--model.backbone.args={'channels': [16, 16, 32, 32]}"]
    main(["train", name, "--data", str(folder), "--run", str(tmp_path / "run"), *SMALL, *flags])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines) == 2


def test_a_saved_recipe_names_the_classes_of_the_parts_of_pairwise_error(tmp_path):
    flags = ["--loss=PairwiseError", "--loss.distance=SigmoidCrossEntropy", "--loss.distance.lam=4"]
    flags += ["--loss.balance=ValidNegatives", "--loss.pairs=AdaptivePairs"]
    recipe = parse_recipe(["--config", "shapes", *flags])
    again = tmp_path / "recipe.yaml"
    again.write_text(recipe.text)
    read = parse_recipe(["--config", str(again)]).loss
    assert (read.distance, read.balance, read.pairs) == (SigmoidCrossEntropy(4.0), ValidNegatives(), AdaptivePairs())
