"""A detector on disk: weights, settings and classes in one safetensors file, which runs no code when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from rankwise.errors import ModelError
from rankwise.files.parsing import ParseError, parse_json, read_json
from rankwise.files.writing import write_whole
from rankwise.models import integrity
from rankwise.models.confidence import Confidence
from rankwise.models.settings import DetectorSettings

#: Under this name the metadata holds settings, classes, confidence and extras as JSON; safetensors takes texts only.
_KEY = "rankwise"
_BEST = "best.safetensors"
#: The checkpoint of a run, for one that was stopped before its first evaluation.
_LAST = "last.ckpt"


@dataclass(frozen=True)
class Content:
    """What such a file holds.

    Attributes:
        tensors: The weights by name.
        settings: The detector's settings.
        classes: Names of its classes.
        confidence: What its scores mean; None in a file that says nothing about it.
    """

    tensors: dict[str, Tensor]
    settings: DetectorSettings
    classes: list[str]
    confidence: Confidence | None


def write(
    path: Path,
    tensors: Mapping[str, Tensor],
    settings: DetectorSettings,
    classes: Sequence[str],
    extra: Mapping[str, Any],
    confidence: Confidence | None = None,
) -> None:
    """Writes the file, whole or not at all.

    Args:
        path: Where to.
        tensors: The detector's ``state_dict``.
        settings: Its settings.
        classes: Names of its classes.
        extra: More plain values.
        confidence: What its scores mean, if that is known.
    """
    values: dict[str, Any] = {"settings": settings.to_dict(), "classes": list(classes), "extra": dict(extra)}
    if confidence is not None:
        values["confidence"] = confidence.to_dict()
    # safetensors wants rows one after the other, which channels-last weights have not.
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    _save(path, plain, values, {"format": "pt"})


def _save(path: Path, tensors: dict[str, Tensor], description: dict[str, Any], metadata: Mapping[str, str]) -> None:
    """Writes tensors and metadata with a description and the checksum of it all."""
    content = {**metadata, _KEY: json.dumps({**description, "checksum": integrity.KEY})}
    content[integrity.KEY] = integrity.checksum(tensors, content)
    write_whole(path, lambda part: safetensors.torch.save_file(tensors, part, content))


def find(run: Path) -> Path:
    """The file of weights of a run's folder; a file is itself.

    Args:
        run: The folder or file.
    """
    if run.is_file():
        return run
    if not run.is_dir():
        raise ModelError(f"{run}: there is no such run or file")
    for name in (_BEST, _LAST):
        if (run / name).is_file():
            return run / name
    raise ModelError(f"{run} holds no detector: expected {_BEST} or {_LAST} in it, which training writes")


def unevaluated(run: Path) -> str | None:
    """What to say of a run whose detector is that of its checkpoint; None of any other.

    Args:
        run: The folder or file.
    """
    if find(run).name != _LAST:
        return None
    return f"{run} was stopped before its first evaluation: this is the detector of its {_LAST}"


def read(path: Path) -> Content:
    """What is in the file.

    Args:
        path: The file.

    Raises:
        ModelError: If it is damaged, or not of a detector.
    """
    if path.suffix == ".ckpt":
        return _read_checkpoint(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            f"{path} is no safetensors file, or damaged; nothing of it was run ({error}). Expected a file that "
            "training or Detector.save wrote"
        ) from error
    try:
        description = parse_json(metadata[_KEY])
        settings, classes = description["settings"], description["classes"]
        names = [str(name) for name in classes]
    except (KeyError, TypeError, ParseError) as error:
        integrity.check(tensors, metadata, False, path)
        raise ModelError(
            f"{path} holds weights but does not say of which detector. Expected a file that training or Detector.save "
            "wrote; backbone weights go into backbone.pretrained"
        ) from error
    integrity.check(tensors, metadata, "checksum" in description, path)
    try:
        stored = description.get("confidence")
        confidence = None if stored is None else Confidence.from_dict(stored, names, str(path))
        return Content(tensors, DetectorSettings.from_dict(settings), names, confidence)
    except ModelError as error:
        raise ModelError(f"{path}: {error} (was it written by another version of rankwise?)") from error


def _read_checkpoint(path: Path) -> Content:
    """The detector in a run's checkpoint: the average of its weights where there is one."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        settings = DetectorSettings.from_dict(state["settings"])
        return Content(state["ema"] or state["detector"], settings, list(state["fixed"]["classes"]), None)
    except Exception as error:  # unpickling what is damaged raises anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"{path} is no checkpoint of this version, or damaged; nothing of it was run ({reason}). Resume the run: "
            f"its first evaluation writes {_BEST}"
        ) from error


def fill(detector: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Loads the weights into a detector made from the same file's settings.

    Args:
        detector: The detector.
        tensors: The weights by name.
        path: Where they are from, for errors.
    """
    try:
        detector.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise ModelError(f"{path}: weights and settings in it do not fit each other: {error}") from error


def store_confidence(path: Path, confidence: Confidence) -> None:
    """Puts what a detector's scores mean into its file of weights; at any moment the old or the new file is complete.

    Args:
        path: The file.
        confidence: What to store in place of what is there.
    """
    content = read(path)
    if content.confidence is not None and content.confidence.to_dict() == confidence.to_dict():
        return
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    description = {**parse_json(metadata[_KEY]), "confidence": confidence.to_dict()}
    _save(path, content.tensors, description, metadata)


def read_thresholds(folder: Path, classes: Sequence[str]) -> dict[str, float] | None:
    """The raw score threshold of each class that an earlier version stored beside a run; None if there is none.

    Thresholds of calibrated scores are in the file of weights, beside the calibration that they belong to.

    Args:
        folder: The run.
        classes: Names of the detector's classes; one that was not measured has the threshold of all together.
    """
    path = folder / "eval.json"
    if not path.is_file():
        return None
    try:
        values = read_json(path)
        stored = values.get("thresholds")
        if stored is None or values.get("calibration") is not None:
            return None
        overall = _score(stored["overall"]["score"])
        scores = {name: _score(entry["score"]) for name, entry in stored["per_class"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ModelError(
            f"{path}: its thresholds cannot be read ({type(error).__name__}: {error}). Write it anew with: "
            f"rankwise eval {folder}"
        ) from error
    return {name: scores.get(name, overall) for name in classes}


def _score(value: Any) -> float:
    score = float(value)
    if not 0 <= score <= 1:
        raise ValueError(f"a threshold is {score:g}, but scores are from 0 to 1")
    return score
