"""``rankwise predict`` for an exported detector. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankwise.evaluation.predict import AgnosticNms, find_images, predict_files, say_units
from rankwise.export.runtime import OnnxDetector
from rankwise.images.reading import read_pixels


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
) -> list[dict[str, Any]]:
    """Detects objects in images, draws them, and writes ``predictions.json``; returns what it wrote.

    Args:
        run: The ONNX file.
        words: Image files, folders and globs.
        out: Folder for the pictures and the JSON file.
        threshold: Least score; the run's own, the best F1 of each class, if not given.
        batch_size: How many images are read at a time.
        device: Where to compute.
        precision: Instead of a threshold, the part of the boxes that shall be right.
        calibrated: False gives raw scores.
        agnostic_nms: Where a box hides those of other classes at nearly the same place.
    """
    files = find_images(words)
    detector = OnnxDetector(run, device)
    say_units(detector.manifest.confidence, precision, calibrated)
    return predict_files(
        files,
        out,
        read_pixels,
        lambda images: detector.predict(images, threshold, precision=precision, calibrated=calibrated),
        detector.classes,
        batch_size,
        agnostic_nms,
    )
