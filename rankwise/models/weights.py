"""Weights files: weights, settings and classes in one safetensors file. Reading it runs no code."""

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
from rankwise.files.trailer import matches_trailer
from rankwise.files.writing import write_whole
from rankwise.models import integrity
from rankwise.models.confidence import Confidence
from rankwise.models.settings import DetectorSettings

#: Metadata key of settings, classes, confidence and extras as JSON; safetensors only stores text.
_KEY = "rankwise"
_BEST = "best.safetensors"
#: The checkpoint of a run, used if the run was stopped before its first evaluation.
_LAST = "last.ckpt"


@dataclass(frozen=True)
class Content:
    """The content of a weights file.

    Attributes:
        tensors: The weights by name.
        settings: The settings of the detector.
        classes: The class names.
        confidence: Calibration and thresholds; None if the file has none.
    """

    tensors: dict[str, Tensor]
    settings: DetectorSettings
    classes: list[str]
    confidence: Confidence | None = None


def write(path: Path, tensors: Mapping[str, Tensor], description: dict[str, Any], metadata: Mapping[str, str]) -> None:
    """Writes tensors and metadata with a description and a checksum, atomically."""
    # safetensors needs contiguous tensors; channels-last weights are not.
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = {**metadata, _KEY: json.dumps({**description, "checksum": integrity.KEY})}
    content[integrity.KEY] = integrity.checksum(plain, content)
    write_whole(path, lambda part: safetensors.torch.save_file(plain, part, content))


def find(run: Path) -> Path:
    """The weights file of a run folder; a file is returned as it is."""
    if run.is_file():
        return run
    if not run.is_dir():
        raise ModelError(f"{run}: no such run or file")
    for name in (_BEST, _LAST):
        if (run / name).is_file():
            return run / name
    raise ModelError(f"{run} contains no detector: expected {_BEST} or {_LAST}, which training writes")


def unevaluated(run: Path) -> str | None:
    """The message about a run whose detector comes from its checkpoint, or None."""
    if run.is_file() or find(run).name != _LAST:
        return None
    return f"{run} was stopped before its first evaluation, or {_BEST} was deleted: using the detector of its {_LAST}"


def read(path: Path) -> Content:
    """Reads a weights file; raises a ModelError if it is damaged or not a detector."""
    if path.suffix == ".ckpt":
        return _read_checkpoint(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            f"{path} is not a safetensors file, or damaged; nothing was run from it ({error}). Expected a file "
            f"written by training or Detector.save"
        ) from error
    try:
        description = parse_json(metadata[_KEY])
        settings, classes = description["settings"], description["classes"]
        names = [str(name) for name in classes]
    except (KeyError, TypeError, ParseError) as error:
        integrity.check(tensors, metadata, False, path)
        raise ModelError(
            f"{path} contains weights but no detector settings. Expected a file written by training or "
            f"Detector.save; for backbone weights, use --model.backbone.pretrained"
        ) from error
    integrity.check(tensors, metadata, "checksum" in description, path)
    try:
        stored = description.get("confidence")
        confidence = None if stored is None else Confidence.from_dict(stored, names, str(path))
        return Content(tensors, DetectorSettings.from_dict(settings), names, confidence)
    except ModelError as error:
        raise ModelError(f"{path}: {error} (was it written by another version of rankwise?)") from error


def _read_checkpoint(path: Path) -> Content:
    """The detector in the checkpoint of a run: the moving average of its weights if there is one."""
    try:
        if (matches := matches_trailer(path)) is False:
            raise ValueError("its checksum does not match its content")
        state = torch.load(path, map_location="cpu", weights_only=True)
        if matches is None and "format" in state:
            raise ValueError("its checksum is missing")
        settings = DetectorSettings.from_dict(state["settings"])
        return Content(state["ema"] or state["detector"], settings, list(state["fixed"]["classes"]))
    except Exception as error:  # unpickling damaged data can raise any error
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"{path} is not a checkpoint of this version, or damaged; nothing was run from it ({reason}). Resume the "
            f"run: its first evaluation writes {_BEST}"
        ) from error


def differences(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """How weights of a file differ from those of a network, in words; empty if they match."""
    missing = [name for name in own if name not in given and not name.endswith("num_batches_tracked")]
    unknown = [name for name in given if name not in own]
    shapes = [
        f"{name} is {tuple(given[name].shape)} in the file and {tuple(tensor.shape)} in the network"
        for name, tensor in own.items()
        if name in given and given[name].shape != tensor.shape
    ]
    return ", ".join(
        f"{len(names)} {what}, such as {'; '.join(names[:3])}"
        for what, names in (("missing", missing), ("unknown", unknown), ("of another shape", shapes))
        if names
    )


def fill(detector: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Loads the weights into a detector created from the settings of the same file, ``path``."""
    try:
        detector.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise ModelError(f"{path}: its weights and settings do not match: {error}") from error


def store_confidence(path: Path, confidence: Confidence) -> None:
    """Stores calibration and thresholds in the weights file of a detector, atomically."""
    content = read(path)
    if content.confidence is not None and content.confidence.to_dict() == confidence.to_dict():
        return
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    description = {**parse_json(metadata[_KEY]), "confidence": confidence.to_dict()}
    write(path, content.tensors, description, metadata)


def read_thresholds(folder: Path, classes: Sequence[str]) -> dict[str, float] | None:
    """The raw score threshold of each class in a run of an earlier version; None if there is none.

    Thresholds of calibrated scores are in the weights file, with their calibration. A class that was not measured gets
    the threshold of all classes together.
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
            f"{path}: its thresholds cannot be read ({type(error).__name__}: {error}). Write it again with: rankwise "
            f"eval {folder}"
        ) from error
    return {name: scores.get(name, overall) for name in classes}


def _score(value: Any) -> float:
    score = float(value)
    if not 0 <= score <= 1:
        raise ValueError(f"a threshold is {score:g}, but it must be from 0 to 1")
    return score
