"""``rankwise predict`` for an exported detector. This module does not need torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankwise.evaluation.predict import AgnosticNms, Format, predict_files, say_highest, say_units
from rankwise.export.runtime import OnnxDetector
from rankwise.images.reading import read_pixels
from rankwise.images.sources import find_inputs


def predict_images(
    run: Path,
    words: Sequence[str],
    out: Path,
    threshold: float | None = None,
    batch_size: int = 1,
    device: str = "auto",
    precision: float | None = None,
    calibrated: bool = True,
    agnostic_nms: AgnosticNms = "pictures",
    pictures: bool = True,
    format: Format = "json",
    crop: bool = False,
) -> list[dict[str, Any]]:
    """Detects objects in images and videos, draws them, and writes ``predictions.json``; returns its entries.

    Args:
        run: The ONNX file.
        words: Image and video files, folders, globs, and ``webcam``.
        out: Output folder.
        threshold: The minimum score; by default the thresholds of the run, with the best F1 per class.
        batch_size: Number of images read at a time.
        device: The device.
        precision: The desired precision, instead of a threshold.
        calibrated: False uses raw scores.
        agnostic_nms: Where a box suppresses overlapping boxes of other classes.
        pictures: Whether to draw images.
        format: An additional output format: ``coco`` or ``yolo``.
        crop: Whether to save each object as a separate image.
    """
    sources = find_inputs(words)
    detector = OnnxDetector(run, device)
    say_units(detector.manifest.confidence, precision, calibrated)
    entries = predict_files(
        sources,
        out,
        read_pixels,
        lambda images: detector.predict(images, threshold, precision=precision, calibrated=calibrated),
        detector.classes,
        batch_size,
        agnostic_nms,
        pictures,
        format,
        crop,
    )
    # With NMS inside, scores below its threshold are unknown.
    least = detector.manifest.postprocess.score_threshold if detector.manifest.nms == "inside" else 0.0
    say_highest(
        entries,
        sources,
        read_pixels,
        lambda image: detector.predict(image, least, calibrated=calibrated)["scores"].tolist(),
    )
    return entries
