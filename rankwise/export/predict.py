"""``rankwise predict`` for an exported detector. This module does not need torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rankwise.evaluation.predict import predict_sources
from rankwise.evaluation.predictions import Output
from rankwise.export.runtime import OnnxDetector
from rankwise.images.reading import read_pixels
from rankwise.images.sources import find_inputs


def predict_images(
    run: Path,
    inputs: Sequence[str],
    output: Output,
    threshold: float | None = None,
    batch_size: int = 1,
    device: str = "auto",
    precision: float | None = None,
    calibrated: bool = True,
) -> list[dict[str, Any]]:
    """:func:`rankwise.evaluation.predict.predict_images` with an ONNX file, for which images are read in batches."""
    sources = find_inputs(inputs)
    detector = OnnxDetector(run, device)
    manifest = detector.manifest
    detect = partial(detector.predict, calibrated=calibrated)
    notes = (manifest.confidence, threshold, precision, calibrated)
    # With NMS inside, scores below its threshold are unknown.
    lowest = manifest.postprocess.score_threshold if manifest.nms == "inside" else 0.0
    return predict_sources(sources, output, read_pixels, detect, detector.classes, batch_size, *notes, lowest)
