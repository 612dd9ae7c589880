"""A recipe: everything a run is made of, from a YAML file and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ActionConfigFile, ArgumentParser, Namespace, lazy_instance

from rankwise.assign import ATSS
from rankwise.assign.base import Assigner
from rankwise.config.settings import DataSettings, OptimizerSettings, ScheduleSettings, TrainSettings
from rankwise.criterion import BoxSettings
from rankwise.errors import SettingsError
from rankwise.files.names import shown
from rankwise.files.parsing import ParseError, read_yaml
from rankwise.losses import APELoss
from rankwise.losses.base import Loss
from rankwise.models.settings import DetectorSettings

#: Flags that are often given, and what they stand for.
SHORT_FLAGS = {
    "--data": "--data.path",
    "--epochs": "--train.epochs",
    "--minutes": "--train.minutes",
    "--patience": "--train.patience",
    "--init": "--train.init",
    "--batch_size": "--train.batch_size",
    "--batch-size": "--train.batch_size",
    "--lr": "--optimizer.lr",
    "--seed": "--train.seed",
    "--devices": "--train.devices",
    "--precision": "--train.precision",
    "--folder": "--run",  # torchrun takes --run for a part of its own --run-path
}


@dataclass(frozen=True)
class Recipe:
    """Everything a run is made of.

    Attributes:
        data: Where images come from.
        model: The detector.
        loss: The ranking loss, or another over the class logits.
        assign: What chooses the positives.
        box: The box loss.
        optimizer: The optimiser.
        schedule: The learning rate.
        train: The training.
        text: All of it as YAML, so that the run can be done again.
    """

    data: DataSettings
    model: DetectorSettings
    loss: Loss
    assign: Assigner
    box: BoxSettings
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    train: TrainSettings
    text: str


def add_recipe_arguments(parser: ArgumentParser) -> None:
    """Gives a parser the flags of a recipe; constructors and dataclasses are the schema."""
    parser.add_argument(
        "--config", action=ActionConfigFile, help="A recipe: a YAML file, or a name of the built-in ones."
    )
    parser.add_argument("--data", type=DataSettings, default=DataSettings())
    parser.add_argument("--model", type=DetectorSettings, default=DetectorSettings())
    parser.add_argument("--loss", type=Loss, default=lazy_instance(APELoss), help="The loss over the class logits.")
    parser.add_argument("--assign", type=Assigner, default=lazy_instance(ATSS), help="What chooses the positives.")
    parser.add_argument("--box", type=BoxSettings, default=BoxSettings())
    parser.add_argument("--optimizer", type=OptimizerSettings, default=OptimizerSettings())
    parser.add_argument("--schedule", type=ScheduleSettings, default=ScheduleSettings())
    parser.add_argument("--train", type=TrainSettings, default=TrainSettings())


SECTIONS = ("data", "model", "loss", "assign", "box", "optimizer", "schedule", "train")


def recipe_from(parser: ArgumentParser, config: Namespace) -> Recipe:
    """The recipe in a parsed configuration, its loss and assigner built; raises SettingsError where they cannot be."""
    if config.data.path != "shapes" and Path(config.data.path).is_dir():
        config.data.path = str(Path(config.data.path).absolute())  # so that the run can be used from another folder
    whole = Namespace({name: config[name] for name in SECTIONS})
    text = yaml.safe_dump(_plain(whole.as_dict()), sort_keys=False)
    try:
        built = parser.instantiate(config)
    except ValueError as error:  # a loss or an assigner refuses a value that has the right type
        raise SettingsError(f"the recipe asks for what cannot be: {error}") from error
    if built["loss"].needs_distributions and not built["model"].head.bins:
        raise SettingsError(
            f"--loss {type(built['loss']).__name__} needs a head that predicts distances as distributions: add "
            "--model.head.coding ltrb --model.head.bins 16"
        )
    return Recipe(**{name: built[name] for name in SECTIONS}, text=text)


def parse_recipe(arguments: list[str]) -> Recipe:
    """A recipe from flags as on the command line, such as ``["--config", "shapes", "--loss", "FocalLoss"]``."""
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    add_recipe_arguments(parser)
    return recipe_from(parser, parser.parse_args(expand(arguments)))


def expand(arguments: list[str]) -> list[str]:
    """The same arguments with short flags written out and built-in recipes as paths.

    Another backbone than the recipe's does not get the arguments that the recipe gives to its own.
    """
    out: list[str] = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if out and out[-1] == "--config":
            out.append(str(recipe_path(argument)))
        elif flag == "--config" and equals:
            out.append(f"--config={recipe_path(value)}")
        else:
            out.append(SHORT_FLAGS.get(flag, flag) + equals + value)
    backbone = value_of(out, "--model.backbone.name")
    if backbone is not None and not any(word.startswith("--model.backbone.args") for word in out):
        own = [name for path in config_files(out) if (name := _backbone_of(path)) is not None]
        if own and own[-1] != backbone:
            out.append("--model.backbone.args={}")
    return out


def value_of(words: list[str], flag: str) -> str | None:
    """The value given to a flag, before parsing; the last one counts."""
    found = None
    for word, following in pairwise([*words, None]):
        name, equals, value = str(word).partition("=")
        if name == flag:
            found = value if equals else following
    return found


def _backbone_of(path: Path) -> str | None:
    """The backbone that a recipe's file names; None if it names none or cannot be read, which parsing will say."""
    try:
        name = read_yaml(path)["model"]["backbone"]["name"]
    except (OSError, ParseError, KeyError, TypeError):
        return None
    return str(name)


def config_files(arguments: list[str]) -> list[Path]:
    """The files that expanded arguments give with ``--config``."""
    files = [value for flag, value in pairwise(arguments) if flag == "--config"]
    files += [argument.partition("=")[2] for argument in arguments if argument.startswith("--config=")]
    return [Path(file) for file in files]


def built_in_recipes() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    folder = Path(str(resources.files("rankwise.recipes")))
    return {str(path.relative_to(folder).with_suffix("")): path for path in sorted(folder.rglob("*.yaml"))}


def recipe_path(name: str) -> Path:
    """The file of a recipe, given by path or by built-in name."""
    if Path(name).is_file():
        return Path(name)
    known = built_in_recipes()
    if name in known:
        return known[name]
    raise FileNotFoundError(f"no recipe {name!r}: give the path of a YAML file or one of {', '.join(known)}")


def describe_recipes() -> str:
    """A line for each built-in recipe: its name and the first comment of its file."""
    lines = []
    for name, path in built_in_recipes().items():
        first = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        lines.append(f"  {name:<24} {first}")
    return "\n".join(lines)


def read_section(run: Path, section: str) -> dict[str, Any]:
    """One section of a run's recipe as plain values; nothing named in the file is imported."""
    path = run / "recipe.yaml"
    if not path.is_file():
        raise FileNotFoundError(f"{run}: not a run of rankwise train: it has no recipe.yaml")
    content = read_recipe(run)
    if not isinstance(content.get(section), dict):
        raise SettingsError(f"{shown(path)}: incomplete: it has no section {section!r}. Put the file back as it was")
    return content[section]


def read_recipe(run: Path) -> dict[str, Any]:
    """A run's whole recipe as plain values; nothing named in the file is imported."""
    path = run / "recipe.yaml"
    try:
        content = read_yaml(path)
    except ParseError as error:
        raise SettingsError(f"{shown(path)}: damaged ({error}). Put the file back as it was") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{shown(path)}: damaged: it holds no sections. Put the file back as it was")
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
