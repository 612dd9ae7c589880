"""``rankwise predict`` for an exported detector. Nothing here needs torch."""

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
    """Detects objects in images and videos, draws them, and writes ``predictions.json``; returns what it wrote.

    Args:
        run: The ONNX file.
        words: Image and video files, folders, globs, and ``webcam``.
        out: Folder for what is written.
        threshold: Least score; the run's own, the best F1 of each class, if not given.
        batch_size: How many images are read at a time.
        device: Where to compute.
        precision: Instead of a threshold, the part of the boxes that shall be right.
        calibrated: False gives raw scores.
        agnostic_nms: Where a box hides those of other classes at nearly the same place.
        pictures: Whether pictures are drawn.
        format: Another file beside ``predictions.json``: ``coco`` or ``yolo``.
        crop: Whether each object is written as a picture of its own.
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
    # With suppression inside, scores below its threshold are not known.
    least = detector.manifest.postprocess.score_threshold if detector.manifest.nms == "inside" else 0.0
    say_highest(
        entries,
        sources,
        read_pixels,
        lambda image: detector.predict(image, least, calibrated=calibrated)["scores"].tolist(),
    )
    return entries
