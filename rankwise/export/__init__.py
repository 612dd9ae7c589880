"""Export of trained detectors to ONNX, and inference without torch."""

from rankwise.export.manifest import Manifest
from rankwise.export.runtime import OnnxDetector

__all__ = ["Manifest", "OnnxDetector"]
