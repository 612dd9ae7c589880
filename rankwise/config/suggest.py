"""Suggestions for mistyped names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping

from jsonargparse import ArgumentParser

from rankwise.config.flags import subclasses
from rankwise.files.names import did_you_mean

#: Python types in words.
_TYPES = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "text"}
_TYPES |= dict.fromkeys(("list", "tuple"), 'a list, such as "[1, 2]"') | {"dict": 'a mapping, such as "{a: 1}"'}

#: Flags of other trainers, and the flags that do the same here.
_ELSEWHERE = {
    **dict.fromkeys(("--imgsz", "--img", "--img_size", "--image_size", "--resolution"), "--size N"),
    **dict.fromkeys(("--weights", "--pretrain_weights", "--checkpoint"), "--init FILE"),
    **dict.fromkeys(("--project", "--name", "--work_dir"), "--run FOLDER"),
    **dict.fromkeys(("--output", "--output_dir", "--save_dir"), "--run FOLDER|--out FOLDER"),
    **dict.fromkeys(("--lr0", "--learning_rate"), "--lr VALUE"),
    **dict.fromkeys(("--dataset", "--dataset_dir", "--data_dir"), "--data DIR"),
    **dict.fromkeys(("--amp", "--half", "--fp16"), "--precision 16"),
    **dict.fromkeys(("--conf", "--conf_thres", "--confidence", "--score_thr"), "--threshold VALUE"),
    "--pretrained": "--model.backbone.pretrained FILE",
    "--early_stopping": "--patience N",
    "--num_workers": "--workers N",
    "--grad_accum_steps": "--train.accumulate N",
    "--save_txt": "--format yolo",
    "--save_crop": "--crop",
    "--nosave": "--no_pictures",
}


def nearest(word: str, known: Iterable[str]) -> str:
    """A phrase with the closest known name and all of them."""
    names = sorted(known)
    hint = did_you_mean(word, names, "")
    return f"{f'{hint} C' if hint else 'c'}hoose from {', '.join(names)}"


def explain(parser: ArgumentParser, error: Exception, bases: Mapping[str, type], short_flags: Iterable[str]) -> str:
    """Rewrites a parser error and adds suggestions.

    ``bases`` has, per flag, the base class of the classes that can be chosen by name. The parser does not know the
    short flags.
    """
    message = " ".join(str(error).split())
    nested = r"key \"(\w+)\": Problem with given class_path '[\w.]+': Parser key \"([\w.]+)\""
    message = re.sub(nested, r'key "\1.\2"', message)  # an option of a class
    choices = {flag: {cls.__name__: cls for cls in subclasses(base)} for flag, base in bases.items()}
    classes = {name: cls for some in choices.values() for name, cls in some.items()}
    flags = [*short_flags, *(flag for action in parser._actions for flag in action.option_strings)]
    flags += ["--size"] if short_flags else []
    if match := re.search(r"class_path '([\w.]+)'.*Option '([\w.]+)' is not accepted", message):
        cls = classes.get(match[1].rpartition(".")[2])
        if cls is not None:
            options = [name for name in inspect.signature(cls).parameters if name != "self"]
            return f"{cls.__name__} has no option {match[2]!r}; {nearest(match[2], options)}"
    if match := re.search(r'key "([\w.]+)".*Expected a dot import path string: (\S+)', message):
        return f"--{match[1]} {match[2]}: no such class; {nearest(match[2], choices.get(match[1], classes))}"
    if match := re.search(r"key \"([\w.]+)\".*class_path '([\w.]+)': No module named '([\w.]+)'", message):
        where = "searched in the current folder, on PYTHONPATH and in installed packages"
        return f"--{match[1]} {match[2]}: no module {match[3]!r}; {where}"
    if match := re.search(r"key \"([\w.]+)\": Expected a (?:typing\.)?Literal\[(.*?)\]\. Got value: (.*)", message):
        choice = match[2].replace("'", "").split(", ")
        return f"--{match[1]} {match[3]}: choose {', '.join(choice[:-1])} or {choice[-1]}"
    if match := re.search(r"key \"([\w.]+)\": Expected a <class '(\w+)'>\. Got value: (.*)", message):
        return f"--{match[1]} {match[3]}: expected {_TYPES.get(match[2], match[2])}"
    if match := re.search(
        r"key \"([\w.]+)\": Does not validate.*Subtypes: \[(.*?)\] Errors.*Given value: (.*)", message
    ):
        kinds = re.findall(r"'(\w+)'", match[2])
        return f"--{match[1]} {match[3]}: expected {' or '.join(_TYPES.get(kind, kind) for kind in kinds)}"
    if match := re.search(r"key \"([\w.]+)\": Unable to load config '(.*?)'", message):
        return (
            f"--{match[1]} {match[2]}: this is a section; set its values one by one, as in "
            f"--{match[1]}.NAME VALUE; rankwise train --help {match[1].partition('.')[0]} lists them"
        )
    if match := re.search(r"argument (--[\w.]+): expected one argument", message):
        return f"{match[1]}: expected a value"
    if match := re.search(r"[Uu]nrecognized arguments?: (--?[\w.]+)", message):
        for here in _ELSEWHERE.get(match[1], "").split("|"):
            if here.split(" ")[0] in flags:
                return f"there is no flag {match[1]}; here it is {here}"
        return f"there is no flag {match[1]}; {did_you_mean(match[1], flags, '--help lists all', 4, 0.7)}"
    if match := re.search(r"[Kk]ey '?\"?([\w.]+)'?\"? is not expected", message):
        return f"{message}; {did_you_mean(f'--{match[1]}', flags, '--help lists all', 4, 0.7)}"
    return message
