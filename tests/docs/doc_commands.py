"""Commands of the docs, run up to the point where the work would start: unknown flags fail."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from doc_blocks import ROOT

import rankwise.assign
import rankwise.losses
from rankwise import cli, cli_data
from rankwise.config import recipe
from rankwise.config.choice import Choice
from rankwise.config.flags import SHORT_FLAGS
from rankwise.config.recipe import built_in_recipes
from rankwise.data import CheckReport
from rankwise.models import DetectorSettings, weights

#: Where each verb hands over what it has parsed.
WORK = [
    "rankwise.data.write_coco",
    "rankwise.evaluation.training_images.draw_training_images",
    "rankwise.training.loop.train",
    "rankwise.evaluation.inference.evaluate_run",
    "rankwise.evaluation.predict.predict_images",
    "rankwise.evaluation.calibrate.calibrate_results",
    "rankwise.export.predict.predict_images",
    "rankwise.export.onnx.export_run",
    "rankwise.report.write_report",
    "rankwise.reproduce.reproduce_table",
]


class WrongCommand(AssertionError):
    """A command in the docs that cannot be right."""


def commands(text: str) -> list[str]:
    """The commands of a shell block, without comments; lines that end with a backslash go on."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if shlex.split(line, comments=True)]


def check(command: str) -> None:
    """Takes a command as far as it goes without work; in a folder of its own, since it may make files."""
    words = shlex.split(command, comments=True)
    match words:
        case ["rankwise", *rest]:
            _rankwise(rest)
        case ["torchrun", *rest]:
            _torchrun(rest)
        case ["make", target]:
            if not re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE):
                raise WrongCommand(f"there is no target {target!r} in the Makefile")
        case ["python", script, *rest]:
            _script(script, rest)
        case ["pip", "install", *packages]:
            _installed(packages)
        case _:
            raise WrongCommand(f"a command that no test knows: {command}")


def check_names(code: str) -> None:
    """Looks only at the names in a command within a sentence, which may leave out what does not matter there."""
    words = shlex.split(code.replace("…", " … "))
    if words[0] == "rankwise":
        verb = " ".join(words[1:3]) if words[1:2] == ["data"] else " ".join(words[1:2])
        if verb not in cli.VERBS and verb not in ("VERB", "--version", "--help", ""):
            raise WrongCommand(f"there is no verb {verb!r}")
    elif words[0] in ("make", "python", "pip"):
        check(code)
        return
    known = known_flags()
    for word in words:
        flag = word.partition("=")[0]
        # What goes on with dots stands for all that begin so.
        rest = flag.endswith(".") and any(name.startswith(flag) for name in known)
        same = "--" + flag[2:].replace("-", "_")
        if flag.startswith("--") and not {flag, same} & known and not rest:
            raise WrongCommand(f"there is no flag {flag} in any verb")


def _rankwise(words: list[str]) -> None:
    _make_what_is_named(words)
    with _without_work():
        try:
            cli.main(words)
        except SystemExit as end:
            if end.code:
                raise WrongCommand(f"rankwise {shlex.join(words)} ends with {end.code}") from end


def _make_what_is_named(words: list[str]) -> None:
    """Recipes that a command begins with must be there to be parsed, and COCO for its tables."""
    for flag, word in zip(["", *words], words, strict=False):
        path = Path(word) / "recipe.yaml" if flag == "--resume" else Path(word)
        if path.name.endswith(".yaml") and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(built_in_recipes()["own_data"].read_text())
        if (flag, word) == ("--data", "COCO"):
            (path / "annotations").mkdir(parents=True, exist_ok=True)
            (path / "annotations" / "instances_train2017.json").touch()


def _torchrun(words: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    try:
        arguments = get_args_parser().parse_args(words)
    except SystemExit as end:
        raise WrongCommand(f"torchrun does not understand {shlex.join(words)}") from end
    if not arguments.module or arguments.training_script != "rankwise":
        raise WrongCommand("torchrun must start -m rankwise")
    _rankwise(arguments.training_script_args)


def _script(script: str, words: list[str]) -> None:
    path = ROOT / script
    if not path.is_file():
        raise WrongCommand(f"there is no {script}")
    for word in words:
        if word.startswith("--") and f'"{word.partition("=")[0]}"' not in path.read_text():
            raise WrongCommand(f"{script} has no flag {word}")


def _installed(packages: list[str]) -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["export"], "transformers"]
    known = {"rankwise", ".", *(re.split(r"[\[<>=]", name)[0] for name in needed)}
    for package in packages:
        named = re.fullmatch(r"([\w.-]+)(?:\[(\w+)\])?", package)
        if package == "--no-deps":
            continue
        if not named or named[1] not in known or (named[2] and named[2] not in extras):
            raise WrongCommand(f"pip install {package}: there is no such package or extra")


@cache
def known_flags() -> set[str]:
    """Every flag of every verb, those of all losses and assigners, and torchrun's."""
    from torch.distributed.run import get_args_parser

    parsers: list[Any] = [get_args_parser()]
    for verb, work in cli.VERBS.items():
        kept = {"side_effect": lambda parser, *_: parsers.append(parser) or _stop()}
        with ExitStack() as stack, suppress(_Parsed):
            for module, name in ((cli, "_parse"), (cli_data, "_parse"), (recipe, "parse")):
                stack.enter_context(mock.patch.object(module, name, **kept))
            work({"train": [], "data show": ["x", "shapes"]}.get(verb, ["x"]))
    flags = {name for parser in parsers for action in parser._actions for name in action.option_strings}
    flags |= {*SHORT_FLAGS, "--size", "--version"}
    for section, module in (("loss", rankwise.losses), ("assign", rankwise.assign)):
        for name in module.__all__:
            flags |= {f"--{section}.{argument}" for argument in inspect.signature(getattr(module, name)).parameters}
    return flags


class _Parsed(Exception):
    """A parser has been made; its work need not begin."""


def _stop() -> None:
    raise _Parsed


def _nothing(*_: Any, **__: Any) -> None:
    return None


@contextmanager
def _without_work() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(mock.patch("rankwise.data.check", CheckReport))
        stack.enter_context(mock.patch("rankwise.config.choice.choose", return_value=Choice("own_data", [], [])))
        trained = weights.Content({}, DetectorSettings(), [], None)
        stack.enter_context(mock.patch("rankwise.config.choice.read_detector", return_value=trained))
        for name in WORK:
            stack.enter_context(mock.patch(name, _nothing))
        yield


def check_yaml(text: str, path: Path) -> None:
    """A recipe must be one: no section or name that does not exist, no class of elsewhere."""
    from rankwise.config.recipe import parse_recipe
    from rankwise.config.trust import check_recipe

    assert isinstance(yaml.safe_load(text), dict)
    path.write_text(text)
    check_recipe(path)
    parse_recipe(["--config", str(path)])
