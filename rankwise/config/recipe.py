"""A recipe: all settings of a run, from a YAML file and the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ActionConfigFile, ArgumentParser, Namespace, lazy_instance

from rankwise.assign import ATSS
from rankwise.assign.base import Assigner
from rankwise.config.command_line import parse
from rankwise.config.flags import SHORT_FLAGS, normalize, value_of
from rankwise.config.reading import flat, read_recipe
from rankwise.config.settings import DataSettings, OptimizerSettings, ScheduleSettings, TrainSettings
from rankwise.config.suggest import nearest
from rankwise.config.trust import PLAIN_SECTIONS, check_recipe, import_named
from rankwise.criterion import BoxSettings
from rankwise.data.transforms import AugmentSettings
from rankwise.errors import SettingsError
from rankwise.from_dict import from_dict
from rankwise.images.settings import LEAST_SIDE, InputSettings
from rankwise.losses import APELoss
from rankwise.losses.base import Loss
from rankwise.models.settings import DetectorSettings


@dataclass(frozen=True)
class Recipe:
    """All settings of a run.

    Attributes:
        data: The dataset.
        model: The detector.
        loss: The loss over the class logits.
        assign: The assigner, which selects the positives.
        box: The box loss.
        optimizer: The optimizer.
        schedule: The learning rate schedule.
        train: The training loop.
        text: The complete recipe as YAML, to repeat the run.
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


SECTIONS = tuple(item.name for item in fields(Recipe) if item.name != "text")


def add_recipe_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of a recipe to a parser; constructors and dataclasses are the schema."""
    parser.add_argument("--config", action=ActionConfigFile, help="A recipe: a built-in name, or a YAML file.")
    classes: dict[str, tuple[type, Any, str]] = {
        "loss": (Loss, lazy_instance(APELoss), "The loss over the class logits."),
        "assign": (Assigner, lazy_instance(ATSS), "The assigner, which selects the positives."),
    }
    for section in SECTIONS:
        if section in classes:
            base, default, text = classes[section]
            parser.add_argument(f"--{section}", type=base, default=default, help=text)
        else:
            kind = PLAIN_SECTIONS[section]
            parser.add_argument(f"--{section}", type=kind, default=kind())


def recipe_from(parser: ArgumentParser, config: Namespace) -> Recipe:
    """Builds a recipe with its loss and assigner from a parsed configuration; raises SettingsError on failure."""
    if config.data.path != "shapes" and Path(config.data.path).exists():
        config.data.path = str(Path(config.data.path).absolute())  # makes the run usable from other folders
    whole = Namespace({name: config[name] for name in SECTIONS})
    plain = _plain(whole.as_dict())
    for name, value in flat(plain).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(f"--{name.replace('.init_args', '')} is {value}: it must be a finite number")
    text = yaml.safe_dump(plain, sort_keys=False)
    try:
        built = parser.instantiate(config)
    except SettingsError:  # names the flag
        raise
    except ValueError as error:  # a loss or an assigner rejects a value of the right type
        raise SettingsError(f"invalid value in recipe: {error}") from error
    if built["loss"].needs_distributions and not built["model"].head.bins:
        raise SettingsError(
            f"--loss {type(built['loss']).__name__} needs a head that predicts distances as distributions: add "
            "--model.head.coding ltrb --model.head.bins 16"
        )
    return Recipe(**{name: built[name] for name in SECTIONS}, text=text)


def parse_recipe(arguments: list[str]) -> Recipe:
    """Parses a recipe from command-line flags, such as ``["--config", "shapes", "--loss", "FocalLoss"]``."""
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    add_recipe_arguments(parser)
    return recipe_from(parser, parser.parse_args(expand(parser, arguments)))


def parse_flags(parser: ArgumentParser, flags: list[str]) -> Namespace:
    """Parses the flags of a command line. Recipes are checked first, and classes that a flag names are imported."""
    words = expand(parser, flags)
    for path in config_files(words):
        check_recipe(path, words)
    import_named(words)
    config: Namespace = parse(parser, words, SHORT_FLAGS)
    return config


def expand(parser: ArgumentParser, arguments: list[str]) -> list[str]:
    """Expands arguments to the form ``--flag=value``, with long flags, and recipes first and as paths.

    If another backbone is chosen, the backbone arguments of the recipe are dropped.
    """
    flags, others = normalize(parser, arguments, SHORT_FLAGS)
    if others:
        raise SettingsError(f"unexpected argument {others[0]!r}: it does not belong to a flag")
    files = [recipe_path(word.partition("=")[2]) for word in flags if word.startswith("--config=")]
    size = value_of(flags, "--size")
    flags = [word for word in flags if not word.startswith(("--config=", "--size="))]
    whole = [word for word in flags if word.startswith("--model=")]  # those of the detector that the run starts from
    out = [f"--config={file}" for file in files] + whole
    out += _sized(size, files, whole) if size is not None else []
    out += [word for word in flags if word not in whole]
    backbone = value_of(flags, "--model.backbone.name")
    if backbone is not None and not any(word.startswith("--model.backbone.args") for word in flags):
        own = _written(files, "model", "backbone").get("name")
        if own not in (None, backbone):
            out.append("--model.backbone.args={}")
    return out


def _sized(size: str, files: list[Path], whole: list[str]) -> list[str]:
    """Flags that set the short side of the input and scale the other sizes of the recipe in proportion."""
    if not size.isdecimal() or int(size) < LEAST_SIDE:
        expected = f"expected an integer of {LEAST_SIDE} or more, the short side of the input in pixels"
        raise SettingsError(f"--size {size}".strip() + f": {expected}")
    try:
        written = yaml.safe_load(whole[-1].partition("=")[2])["input"] if whole else _written(files, "model", "input")
        before = from_dict(InputSettings, written, "model.input")
        augment = from_dict(AugmentSettings, _written(files, "data", "augment"), "data.augment")
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"invalid value in recipe: {error}") from error

    def scaled(value: Any) -> Any:
        if isinstance(value, tuple):
            return [scaled(one) for one in value]
        return max(LEAST_SIDE, round(value * int(size) / before.short_side))

    sizes = {name: getattr(augment, name) for name in ("short_sides", "short_range", "max_side", "square")}
    flags = [f"--model.input.short_side={size}", f"--model.input.max_side={scaled(before.max_side)}"]
    return flags + [f"--data.augment.{name}={scaled(value)}" for name, value in sizes.items() if value]


def _written(files: list[Path], section: str, part: str) -> dict[str, Any]:
    """A part of a section as written in the last recipe that has it; errors are left to the parser."""
    found: dict[str, Any] = {}
    for file in files:
        values = read_recipe(file).get(section)
        if isinstance(values, dict) and isinstance(values.get(part), dict):
            found |= values[part]
    return found


def config_files(flags: list[str]) -> list[Path]:
    """The recipes among expanded flags."""
    return [Path(word.partition("=")[2]) for word in flags if word.startswith("--config=")]


def built_in_recipes() -> dict[str, Path]:
    """The built-in recipes by name."""
    folder = Path(str(resources.files("rankwise.recipes")))
    return {str(path.relative_to(folder).with_suffix("")): path for path in sorted(folder.rglob("*.yaml"))}


def recipe_path(name: str) -> Path:
    """The file of a recipe, given by path or by built-in name."""
    if Path(name).is_file():
        return Path(name)
    known = built_in_recipes()
    if name in known:
        return known[name]
    if Path(name).is_dir():
        raise FileNotFoundError(f"{name} is a folder, not a recipe: to train on its images, write --data {name}")
    raise FileNotFoundError(f"recipe {name!r} not found; {nearest(name, known)}, or give the path of a YAML file")


def describe_recipes() -> dict[str, str]:
    """The first comment of each built-in recipe, by name."""
    files = built_in_recipes().items()
    return {name: path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for name, path in files}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
