"""The settings of an exported detector, stored as JSON in the ONNX file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rankwise.errors import ModelError
from rankwise.files.parsing import parse_json
from rankwise.from_dict import from_dict
from rankwise.models.confidence import Confidence
from rankwise.models.settings import InputSettings, PostprocessSettings

#: Metadata key of the JSON text in the ONNX file.
KEY = "rankwise"
_FORMAT = 1
#: Version of the operator set: torch exports it without conversion, and every onnxruntime since 2023 reads it.
OPSET = 18


@dataclass(frozen=True)
class Manifest:
    """Settings of an exported detector.

    Attributes:
        classes: Names of the labels.
        input: How images are resized and padded; the exported network normalizes them.
        postprocess: The post-processing settings.
        confidence: Calibration and thresholds.
        nms: Whether NMS is part of the network (inside) or left to the caller (outside).
    """

    classes: list[str]
    input: InputSettings
    postprocess: PostprocessSettings
    confidence: Confidence
    nms: Literal["inside", "outside"]

    def to_json(self) -> str:
        """The JSON text."""
        plain = {name: value for name, value in asdict(self).items() if name != "confidence"}
        return json.dumps({"format": _FORMAT, **plain, **self.confidence.to_dict()})

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], name: str) -> Manifest:
        """Settings from the metadata of an ONNX file.

        Args:
            metadata: Texts by name.
            name: The file, for errors.

        Raises:
            ModelError: If the file was not written by ``rankwise export``.
        """
        if KEY not in metadata:
            raise ModelError(
                f"{name} is an ONNX model, but was not written by rankwise: classes and input size are missing. "
                f"Expected a file of: rankwise export RUN"
            )
        try:
            values: dict[str, Any] = parse_json(metadata[KEY])
            if values["format"] != _FORMAT:
                raise ModelError(f"it has format {values['format']}, this version reads {_FORMAT}")
            nms = values["nms"]
            if nms not in ("inside", "outside"):
                raise ModelError(f"nms is {nms!r}: expected inside or outside")
            classes = [str(item) for item in values["classes"]]
            return cls(
                classes,
                from_dict(InputSettings, values["input"], "input"),
                from_dict(PostprocessSettings, values["postprocess"], "postprocess"),
                Confidence.from_dict({"calibration": None, "precisions": [], **values}, classes, "scores"),
                nms,
            )
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{error}" if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
            raise ModelError(
                f"{name}: its rankwise metadata cannot be read ({reason}). Export the run again"
            ) from error
