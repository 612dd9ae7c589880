"""Help for `rankwise train`: an overview, and one page per section of a recipe."""

from __future__ import annotations

import inspect
from typing import Any

from jsonargparse import ArgumentParser

from rankwise.config.command_line import HelpFormatter
from rankwise.config.flags import subclasses
from rankwise.config.suggest import nearest
from rankwise.config.trust import CLASS_SECTIONS, PLAIN_SECTIONS
from rankwise.errors import UserError
from rankwise.files.names import wrapped

#: Sections of a recipe and their descriptions.
TOPICS = {
    "data": "dataset, splits, loader, augmentation",
    "model": "input size, backbone, neck, head, anchors, post-processing, test-time augmentation",
    "loss": "the loss over the class logits",
    "assign": "the assigner, which selects the positives",
    "box": "the box loss",
    "optimizer": "SGD, AdamW or Muon, learning rate, weight decay",
    "schedule": "warm-up and decay of the learning rate",
    "train": "epochs, batch size, precision, evaluation, checkpoints, devices",
}


def help_topics(flags: list[str], others: list[str]) -> list[str]:
    """The requested help topics of a ``train`` command line, or nothing.

    ``--SECTION.help`` and ``--help`` with section names among the other words request help. A topic is a section, such
    as "data", a class of a section, such as "loss=APELoss", or "" for the overview.
    """
    asked = [flag.removeprefix("--").replace(".help", "", 1) for flag in flags if ".help" in flag.partition("=")[0]]
    topics = [topic for topic in asked if topic.partition("=")[0] in TOPICS]
    if {"-h", "--help"} & set(flags):
        topics += [word for word in others if word in TOPICS] or [""]
    return topics


def help_on(parser: ArgumentParser, topic: str, recipes: dict[str, str], short_flags: dict[str, str]) -> str:
    """The help text of one of the :func:`help_topics`; ``recipes`` are the descriptions of the built-in ones."""
    return _section(parser, *topic.split("=")) if topic else _overview(parser, recipes, short_flags)


def _overview(parser: ArgumentParser, recipes: dict[str, str], short_flags: dict[str, str]) -> str:
    helps = {flag: action.help or "" for action in parser._actions for flag in action.option_strings}
    lines = [
        "usage: rankwise train [RECIPE] [--FLAG VALUE …]",
        "",
        "Train a detector, evaluate it and write a report.",
        "",
        "Recipes (a name, or the path of a YAML file):",
        *(_line(name, text) for name, text in recipes.items()),
        "",
        "Flags, before or after the recipe:",
        _line("--size N", "Short side of the input in pixels; the other sizes of the recipe are scaled in proportion."),
        *(_line(short, f"{_first_sentence(helps[whole])} ({whole})") for short, whole in short_flags.items()),
        *(_line(flag, helps[flag]) for flag in ("--run", "--resume", "--overwrite", "--config")),
        _line("--print_config", "Print the complete recipe and exit."),
        "",
        "All settings of a section: rankwise train --help SECTION",
        *(_line(section, about) for section, about in TOPICS.items()),
        "One loss or assigner: rankwise train --loss.help APELoss, --assign.help PAA",
    ]
    return "\n".join(lines)


def _section(parser: ArgumentParser, section: str, name: str = "") -> str:
    action = next(action for action in parser._actions if f"--{section}" in action.option_strings)
    base: Any = getattr(action, "_typehint", object)
    classes = {cls.__name__: cls for cls in subclasses(base)} if section in CLASS_SECTIONS else {}
    if classes and not name:
        names = [_line(name, _first_sentence(inspect.getdoc(cls) or ""), 24) for name, cls in classes.items()]
        head = f"--{section} NAME: {TOPICS[section]}"
        return "\n".join([head, f"Settings of one: rankwise train --{section}.help NAME", "", *names])
    name = name.rpartition(".")[2]
    if classes and name not in classes:
        raise UserError(f"--{section}.help {name}: no such class; {nearest(name, classes)}")
    usage = f"rankwise train [RECIPE] {f'--{section} {name} ' if name else ''}--{section}.NAME VALUE …"
    page = ArgumentParser(prog="rankwise train", usage=usage, add_help=False, formatter_class=HelpFormatter)
    if classes:
        page.add_class_arguments(classes[name], section)
    else:
        page.add_argument(f"--{section}", type=PLAIN_SECTIONS[section], default=PLAIN_SECTIONS[section]())
    return page.format_help().replace("``", "")


def _line(name: str, text: str, width: int = 18) -> str:
    return wrapped(f"  {name:<{width}} {text}", width + 3)


def _first_sentence(text: str) -> str:
    text = text.replace(":class:", "").replace("`", "")
    return " ".join(text.split()).partition(". ")[0].rstrip(".") + "."
