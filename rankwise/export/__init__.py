"""A trained detector as an ONNX file, and its use where there is no torch."""

from rankwise.export.manifest import Manifest
from rankwise.export.runtime import OnnxDetector

__all__ = ["Manifest", "OnnxDetector"]
