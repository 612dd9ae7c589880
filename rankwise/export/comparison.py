"""Compares an ONNX file with its detector on random images of several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rankwise.export.nms import find_detections
from rankwise.export.nms_graph import settings_inside
from rankwise.models import Detector, ModelError, input_size
from rankwise.models.score_map import ScoreMap

#: Tolerances of boxes (pixels) and scores. onnxruntime sums convolutions in another order, with a relative float32
#: error of a millionth. For images longer than 256 pixels, the tolerance of the boxes is larger.
BOX_TOLERANCE = 1e-3
_FULL_TOLERANCE_SIDE = 256
SCORE_TOLERANCE = 1e-4
#: Relative rounding error of a raw score. The calibration of a hardly trained detector is so steep that it amplifies
#: this error beyond the tolerance.
RAW_ROUNDING = 1e-6
#: Two boxes whose IoU equals the threshold up to rounding may be treated differently by two implementations of NMS.
MATCHED_TOLERANCE = 0.99

#: Batch, height and width.
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Differences:
    """The largest differences.

    Attributes:
        boxes: Difference of clipped boxes in pixels.
        scores: Difference of scores.
        images: Number of images.
        excess: Largest difference of boxes as a multiple of the tolerance of its image.
        matched: Fraction of detections that both have, if NMS is part of the file.
    """

    boxes: float
    scores: float
    images: int
    excess: float
    matched: float = 1.0

    def __str__(self) -> str:
        text = (
            f"{self.images} random images: boxes differ by at most {self.boxes:.1e} pixels, scores by {self.scores:.1e}"
        )
        return text if self.matched == 1.0 else f"{text}; {self.matched:.2%} of the detections are the same"

    def check(self) -> None:
        """Raises a ModelError if they are too large or NaN."""
        if self.excess <= 1 and self.scores <= SCORE_TOLERANCE and self.matched >= MATCHED_TOLERANCE and self.images:
            return
        raise ModelError(
            f"the results of the exported model differ from those of the detector: {self}; boxes differ by "
            f"{self.excess:.1f} times the tolerance, the tolerance of scores is {SCORE_TOLERANCE:g}. No file was "
            f"written"
        )


def shapes_to_check(detector: Detector) -> list[Shape]:
    """Batch shapes to check: the usual size in landscape and portrait format, and some odd ones."""
    coarsest = max(detector.neck.strides)
    # Group norm fails on a level of a single pixel if there are few channels.
    height, width = (max(side, coarsest + 1) for side in input_size(3, 4, detector.settings.input))
    return [
        (1, height, width),
        (1, width, height),
        (2, 2 * coarsest, 3 * coarsest),
        (3, coarsest + 1, 3 * coarsest - 7),
        (1, 2 * coarsest + 17, coarsest + 5),
    ]


@torch.no_grad()
def compare(detector: Detector, session: Any, shapes: Sequence[Shape], seed: int = 0) -> Differences:
    """Compares scores and boxes of all anchors between torch and the session of the file with NMS outside, on random
    images."""
    boxes = scores = excess = 0.0
    score_map = detector.confidence.calibration
    for images in _random_images(shapes, seed):
        predictions = detector(images)
        exported = session.run([raw_output(detector), "boxes", "levels"], {"images": images.numpy()})
        sides = np.array([images.shape[3], images.shape[2]] * 2, dtype=np.float32)
        expected = predictions.logits.sigmoid().numpy(), predictions.boxes.numpy()
        levels = np.repeat(np.arange(len(predictions.level_sizes)), predictions.level_sizes)
        if (
            expected[0].shape != exported[0].shape
            or expected[1].shape != exported[1].shape
            or not np.array_equal(levels, exported[2])
        ):
            raise ModelError(
                f"the exported model returns {exported[0].shape} scores, but the detector {expected[0].shape}"
            )
        # np.maximum propagates NaN.
        scores = float(np.maximum(scores, np.abs(expected[0] - exported[0]).max()))
        if score_map is not None and np.isfinite(scores):
            (probability,) = session.run(["scores"], {"images": images.numpy()})
            labels = np.broadcast_to(np.arange(len(detector.classes)), probability.shape)
            scores = float(np.maximum(scores, _off(score_map, exported[0], labels, probability)))
        distance = np.abs(expected[1].clip(0, sides) - exported[1].clip(0, sides)).max()
        boxes = float(np.maximum(boxes, distance))
        excess = float(np.maximum(excess, distance / _tolerance(images)))
    return Differences(boxes, scores, sum(shape[0] for shape in shapes), excess)


@torch.no_grad()
def compare_detections(
    detector: Detector, session: Any, inside: Any, shapes: Sequence[Shape], seed: int = 0
) -> Differences:
    """Compares the detections of the file with NMS inside with those of NMS in NumPy for the same scores and boxes.

    ``session`` is that of the file with NMS outside. Where scores are equal, NMS in torch takes any of them first.
    """
    settings = settings_inside(detector)
    score_map = detector.confidence.calibration
    boxes, scores, excess, matched, total = 0.0, 0.0, 0.0, 0, 0
    for images in _random_images(shapes, seed):
        # Some images are smaller than their batch.
        sizes = [(images.shape[2] - 9 * index, images.shape[3] - 5 * index) for index in range(len(images))]
        found = inside.run(None, {"images": images.numpy(), "sizes": np.array(sizes, dtype=np.int64)})
        raw_scores, anchor_boxes, levels = session.run(
            [raw_output(detector), "boxes", "levels"], {"images": images.numpy()}
        )
        for index, size in enumerate(sizes):
            wanted = find_detections(raw_scores[index], anchor_boxes[index], levels, size, size, settings)
            n = int(found[3][index])
            own = {name: column[index, :n] for name, column in zip(("boxes", "scores", "labels"), found, strict=False)}
            total += max(n, len(wanted["scores"]))
            for box, raw, label in zip(*wanted.values(), strict=True):
                away = np.abs(own["boxes"] - box).max(axis=1) + 1e9 * (own["labels"] != label)
                if len(away) and away.min() <= 1:
                    matched += 1
                    boxes = float(np.maximum(boxes, away.min()))
                    excess = float(np.maximum(excess, away.min() / _tolerance(images)))
                    scores = float(np.maximum(scores, _off(score_map, raw, label, own["scores"][away.argmin()])))
    return Differences(boxes, scores, sum(shape[0] for shape in shapes), excess, matched / total if total else 1.0)


def _off(score_map: ScoreMap | None, raw: Any, labels: Any, found: Any) -> float:
    """The largest difference between scores and those of the raw scores, apart from the rounding of raw scores."""
    if score_map is None:
        return float(np.abs(raw - found).max())
    below, above = (
        score_map(np.clip(np.float64(raw) * factor, 0, 1), labels) for factor in (1 - RAW_ROUNDING, 1 + RAW_ROUNDING)
    )
    return float(np.maximum(np.maximum(below - found, found - above), 0).max())


def raw_output(detector: Detector) -> str:
    """The name of the output with raw scores in a file with NMS outside."""
    return "scores" if detector.confidence.calibration is None else "raw_scores"


def _tolerance(images: torch.Tensor) -> float:
    """The tolerance of boxes in these images, in pixels."""
    return BOX_TOLERANCE * max(1.0, max(images.shape[2:]) / _FULL_TOLERANCE_SIDE)


def _random_images(shapes: Sequence[Shape], seed: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (b, 3, h, w), dtype=torch.uint8, generator=random) for b, h, w in shapes]
