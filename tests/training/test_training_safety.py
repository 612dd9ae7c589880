"""Untrusted checkpoints, weights and recipes run no code, and no shell is ever called."""

import ast
import pickle
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from live_runs import TINY, Live, checkpoint, finish
from PIL import Image

import rankwise
from rankwise.config.recipe import add_recipe_arguments, built_in_recipes, config_files, expand
from rankwise.config.trust import check_recipe
from rankwise.errors import SettingsError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("safety")
    finish(*TINY, "--epochs=1", "--run", folder / "run", log=folder / "log")
    return folder / "run"


class Malicious:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.mkdir, (self.path,)


@pytest.mark.parametrize("whole", [True, False])
def test_a_malicious_checkpoint_only_raises_an_error(tmp_path, run, whole):
    shutil.copytree(run, tmp_path / "run")
    owned = tmp_path / "owned"
    state = Malicious(owned) if whole else {**checkpoint(run), "ema": Malicious(owned)}
    torch.save(state, tmp_path / "run" / "last.ckpt")
    said = finish("--resume", tmp_path / "run", log=tmp_path / "log", code=2)
    assert "last.ckpt: not a rankwise checkpoint, or damaged; nothing was run from it" in said
    assert "Traceback" not in said
    assert not owned.exists()


@pytest.mark.parametrize("verb", ["eval", "predict"])
def test_malicious_weights_only_raise_an_error(tmp_path, run, verb):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "best.safetensors").write_bytes(pickle.dumps(Malicious(tmp_path / "owned")))
    Image.new("RGB", (64, 64)).save(tmp_path / "image.png")
    words = [verb, tmp_path / "run"] + [tmp_path / "image.png"] * (verb == "predict")
    process = Live(words, log=tmp_path / "log")
    assert process.wait() == 2
    assert "nothing was run" in process.said
    assert not (tmp_path / "owned").exists()


FOREIGN = {
    "a class": "loss: {path}.Loss",
    "a class with arguments": "loss: {{class_path: {path}.Loss, init_args: {{lam: 8}}}}",
    "a class within a class": "loss: {{class_path: PairwiseError, init_args: {{distance: {path}.Step}}}}",
    "an assigner": "assign: {path}.ATSS",
    "a class for plain values": "train: {{class_path: {path}.TrainSettings}}",
    "a class deeper down": "model: {{backbone: {{class_path: {path}.Backbone}}}}",
    "a dotted name": "loss.class_path: {path}.Loss",
    "a dotted name deeper down": "model: {{backbone.class_path: {path}.Backbone}}",
    "another file": "train: other.yaml",
    "another file deeper down": "model: {{backbone: other.yaml}}",
    "another recipe": "config: other.yaml",
    "a YAML tag": "train: !!python/object/apply:pathlib.Path.mkdir [owned]",
    "a folder to overwrite": "overwrite: true",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_an_untrusted_recipe_imports_and_reads_nothing(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "runs" / "gift").mkdir(parents=True)
    (tmp_path / "runs" / "gift" / "code.py").write_text("import pathlib\npathlib.Path('owned').mkdir()\n")
    (tmp_path / "runs" / "gift" / "other.yaml").write_text("class_path: runs.gift.code.Loss\n")
    recipe = tmp_path / "runs" / "gift" / "recipe.yaml"
    recipe.write_text(FOREIGN[name].format(path="runs.gift.code"))
    with pytest.raises(SettingsError, match=r"recipe\.yaml"):
        check_recipe(recipe)
    assert not (tmp_path / "owned").exists()


def test_resuming_an_untrusted_run_imports_nothing(tmp_path, run):
    shutil.copytree(run, tmp_path / "run")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["loss"] = {"class_path": "stranger.Loss"}
    (tmp_path / "run" / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    said = finish("--resume", tmp_path / "run", log=tmp_path / "log", code=2)
    assert "loss names 'stranger.Loss', which is not part of rankwise: nothing was imported" in said
    assert "--loss stranger.Loss" in said


def test_a_custom_class_is_accepted_only_if_the_command_line_names_it(tmp_path):
    (tmp_path / "recipe.yaml").write_text("loss: {class_path: mine.Loss}\n")
    parser = ArgumentParser()
    add_recipe_arguments(parser)
    words = expand(parser, ["--config", str(tmp_path / "recipe.yaml"), "--loss", "mine.Loss"])
    assert config_files(words) == [tmp_path / "recipe.yaml"]
    check_recipe(tmp_path / "recipe.yaml", words)
    for others in ([], ["--loss", "another.Loss"]):
        with pytest.raises(SettingsError, match=r"loss names 'mine\.Loss', which is not part of rankwise"):
            check_recipe(tmp_path / "recipe.yaml", others)


def test_built_in_recipes_and_recipes_of_runs_are_accepted(run):
    known = built_in_recipes()
    assert {"shapes", "shapes_paa", "own_data", "small_scratch", "photos_mobilenet"} <= set(known)
    for path in (*known.values(), run / "recipe.yaml"):
        check_recipe(path)


def test_no_shell_is_called_and_nothing_is_unpickled_or_evaluated():
    forbidden = {
        "eval",
        "exec",
        "os.system",
        "os.popen",
        "pickle.load",
        "pickle.loads",
        "yaml.load",
        "yaml.unsafe_load",
    }
    for path in Path(rankwise.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            if any(word.arg == "Loader" and "yaml.SafeLoader" in ast.unparse(word.value) for word in node.keywords):
                continue
            assert ast.unparse(node.func) not in forbidden, f"{path}:{node.lineno}"
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert given.get("shell", "False") == "False", f"{path}:{node.lineno}"
            if ast.unparse(node.func) == "torch.load":
                assert given.get("weights_only") == "True", f"{path}:{node.lineno}"
