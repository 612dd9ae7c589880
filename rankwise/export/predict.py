"""``rankwise predict`` for an exported detector. This module does not need torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankwise.evaluation.predict import predict_files, print_highest_score, print_score_notes
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
    """Detects objects in images and videos, draws them, and writes ``predictions.json``; returns its entries.

    Args:
        run: The ONNX file.
        inputs: Image and video files, folders, globs, and ``webcam``.
        output: What to write.
        threshold: The minimum score; by default the thresholds of the run, with the best F1 per class.
        batch_size: Number of images read at a time.
        device: The device.
        precision: The desired precision, instead of a threshold.
        calibrated: False uses raw scores.
    """
    sources = find_inputs(inputs)
    detector = OnnxDetector(run, device)
    print_score_notes(detector.manifest.confidence, precision, calibrated)
    entries = predict_files(
        sources,
        output,
        read_pixels,
        lambda images: detector.predict(images, threshold, precision=precision, calibrated=calibrated),
        detector.classes,
        batch_size,
    )
    # With NMS inside, scores below its threshold are unknown.
    least = detector.manifest.postprocess.score_threshold if detector.manifest.nms == "inside" else 0.0
    print_highest_score(
        entries,
        sources,
        read_pixels,
        lambda image: detector.predict(image, least, calibrated=calibrated)["scores"].tolist(),
    )
    return entries
