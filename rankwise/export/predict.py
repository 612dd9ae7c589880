"""``rankwise predict`` for an exported detector. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankwise.evaluation.predict import find_images, predict_files
from rankwise.export.runtime import OnnxDetector
from rankwise.images.reading import read_pixels


def predict_images(
    run: Path,
    words: Sequence[str],
    out: Path,
    threshold: float | None = None,
    batch_size: int = 8,
    device: str = "auto",
) -> list[dict[str, Any]]:
    """Detects objects in images, draws them, and writes ``predictions.json``; returns what it wrote.

    Args:
        run: The ONNX file.
        words: Image files, folders and globs.
        out: Folder for the pictures and the JSON file.
        threshold: Least score; the run's own, the best F1 of each class, if not given.
        batch_size: How many images are read at a time.
        device: Where to compute.
    """
    files = find_images(words)
    detector = OnnxDetector(run, device)
    return predict_files(
        files, out, read_pixels, lambda images: detector.predict(images, threshold), detector.classes, batch_size
    )
