"""The detector: backbone, pyramid and head, from images to predictions to detections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rankwise.errors import ModelError
from rankwise.files.names import join_names
from rankwise.images.sources import find_images, is_folder
from rankwise.images.tensors import as_image
from rankwise.models import weights
from rankwise.models.anchors import Anchors, cell_anchors
from rankwise.models.backbone import Backbone
from rankwise.models.box_coding import IntegralCoder, box_coder
from rankwise.models.confidence import Confidence
from rankwise.models.head import Head
from rankwise.models.integrity import no_larger_than
from rankwise.models.neck import FeaturePyramid
from rankwise.models.postprocess import Sizes, postprocess
from rankwise.models.settings import DetectorSettings
from rankwise.models.tta import detect_with_tta, tta_views
from rankwise.types import Detections, Predictions


class Detector(nn.Module):
    """A dense one-stage detector. RetinaNet, FCOS and ATSS are settings of it.

    Args:
        settings: All its parts.
        classes: Names of the classes, in the order of their labels.

    Attributes:
        confidence: Calibration and thresholds, if it has been evaluated.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, settings: DetectorSettings, classes: Sequence[str]) -> None:
        super().__init__()
        if not classes:
            raise ModelError("a detector needs at least one class")
        if isinstance(classes, str):
            raise ModelError(f"classes is the text {classes!r}: give a list of names")
        if len(set(classes)) < len(classes):
            twice = sorted({name for name in classes if list(classes).count(name) > 1})
            raise ModelError(f"class names must be unique: {', '.join(twice)} appears twice")
        self.settings = settings
        self.classes = list(classes)
        self.confidence = Confidence()
        self.backbone = Backbone(settings.backbone)
        self.neck = FeaturePyramid(settings.neck, self.backbone.channels, self.backbone.strides)
        self.anchors = Anchors(settings.anchors, self.neck.strides)
        self.coder = box_coder(settings.head)
        self.head = Head(
            settings.head, settings.neck.channels, len(self.neck.strides), len(self.classes), self._first_codes()
        )
        # Not saved with the weights, because they are in the settings.
        self.register_buffer("mean", torch.tensor(settings.input.mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(settings.input.std)[:, None, None], persistent=False)

    @property
    def thresholds(self) -> dict[str, float] | None:
        """The score threshold of ``predict`` by class name, if the detector has been evaluated."""
        return self.confidence.thresholds

    @thresholds.setter
    def thresholds(self, values: dict[str, float] | None) -> None:
        if values is not None and set(values) != set(self.classes):
            given, needed = (join_names(list(names), most=8) for names in (values, self.classes))
            raise ModelError(f"thresholds are for the classes {given}: give one for each of {needed}")
        self.confidence = replace(self.confidence, thresholds=values)

    def forward(self, images: Tensor) -> Predictions:
        """Logits and boxes of all anchors, for images [B, 3, H, W] of bytes, or of floats from 0 to 1.

        Any size is allowed: sides that are not multiples of ``input.divisor`` are padded at the right and bottom.
        """
        levels = self.neck(self.backbone(self._prepare(images)))
        logits, codes = self.head(levels)
        grid = self.anchors([(level.shape[-2], level.shape[-1]) for level in levels], logits.device)
        # Autocast would compute products of coordinates in half precision.
        with torch.autocast(logits.device.type, enabled=False):
            boxes = self.coder.decode(codes, grid.boxes, grid.strides)
        if isinstance(self.coder, IntegralCoder):
            distribution = codes.unflatten(-1, (4, self.coder.bins + 1))
            return Predictions(logits, boxes, grid.boxes, grid.level_sizes, distribution, grid.strides)
        return Predictions(logits, boxes, grid.boxes, grid.level_sizes)

    def postprocess(self, predictions: Predictions, sizes: Sizes, original_sizes: Sizes) -> list[Detections]:
        """Detections of each image, best first, in pixels of the original images.

        Args:
            predictions: The output of ``forward``.
            sizes: (height, width) of each image passed to ``forward``, without padding.
            original_sizes: (height, width) of each image before resizing.
        """
        return postprocess(predictions, sizes, original_sizes, self.settings.postprocess)

    @overload
    def predict(
        self,
        images: list[Any],
        threshold: float | None = None,
        batch_size: int = 1,
        *,
        precision: float | None = None,
        calibrated: bool = True,
    ) -> list[Detections]: ...

    @overload
    def predict(
        self,
        images: Any,
        threshold: float | None = None,
        batch_size: int = 1,
        *,
        precision: float | None = None,
        calibrated: bool = True,
    ) -> Any: ...

    @torch.inference_mode()
    def predict(
        self,
        images: Any,
        threshold: float | None = None,
        batch_size: int = 1,
        *,
        precision: float | None = None,
        calibrated: bool = True,
    ) -> Any:
        """Detects objects: ``{"boxes": [N, 4] xyxy, "scores": [N], "labels": [N]}``, best first, in image pixels.

        ``detector.classes[label]`` is the class name. If the detector has a calibration (``detector.confidence``,
        fitted by its evaluation), a score is the probability that the detection is correct.

        Args:
            images: The path of an image file, a PIL image, an array [H, W, 3] of bytes or a tensor [3, H, W] of bytes
                or of floats from 0 to 1; a list of these, which returns a list; or a folder or a pattern such as
                ``photos/*.jpg``, which returns a dict with the path of each image.
            threshold: The minimum score. By default, each class has the threshold with its best F1; a detector that was
                never evaluated uses ``postprocess.score_threshold``.
            batch_size: Number of images of a list per batch. Images of a batch are padded to the same size, which may
                change results slightly.
            precision: The desired precision, such as 0.9, instead of a threshold.
            calibrated: False returns raw scores.
        """
        if batch_size < 1:
            raise ModelError(f"batch_size is {batch_size}: it must be at least 1")
        if is_folder(images):
            files = find_images([str(images)])
            found = self.predict(files, threshold, batch_size, precision=precision, calibrated=calibrated)
            return dict(zip(map(str, files), found, strict=True))
        several = isinstance(images, list | tuple) or (isinstance(images, np.ndarray | Tensor) and images.ndim == 4)
        items = list(images) if several else [images]
        settings = self.settings.postprocess
        select = self.confidence.select(self.classes, settings.score_threshold, threshold, precision, calibrated)
        # Boxes below the threshold still take part in score voting, as in the evaluation.
        settings = replace(settings, score_threshold=select.least_raw(settings.score_threshold))
        views = tta_views(self.settings.input, self.settings.test)
        device = self.mean.device
        results: list[Detections] = []
        training = self.training
        self.eval()
        try:
            for first in range(0, len(items), batch_size):
                originals = [as_image(item) for item in items[first : first + batch_size]]
                results += [select(found) for found in detect_with_tta(self, originals, views, settings, device)]
        finally:
            self.train(training)
        return results if several else results[0]

    def save(self, path: str | PathLike[str], **extra: Any) -> None:
        """Writes weights, settings, classes, calibration and thresholds to one .safetensors file.

        Args:
            path: The output file.
            **extra: Other plain values to store, such as the epoch and its AP.
        """
        description = {"settings": self.settings.to_dict(), "classes": self.classes, "extra": extra}
        if self.confidence != Confidence():
            description["confidence"] = self.confidence.to_dict()
        weights.write(Path(path), self.state_dict(), description, {"format": "pt"})

    @classmethod
    def load(cls, run: str | PathLike[str], device: str | torch.device = "cpu") -> Detector:
        """Loads a detector from a run folder or a file of ``save``, ready to predict.

        Loading runs no code from the file. Calibration and thresholds are stored with the weights. Runs of earlier
        versions have neither: thresholds come from ``eval.json``, scores are raw, and ``rankwise eval`` adds the
        calibration.

        Args:
            run: The run folder, whose best.safetensors is used, or a file.
            device: The device.

        Raises:
            ModelError: If the file does not exist or is not a detector.
        """
        path = weights.find(Path(run))
        content = weights.read(path)
        with no_larger_than(content.tensors, path):
            detector = cls(content.settings.without_pretrained(), content.classes)
        weights.fill(detector, content.tensors, path)
        detector.confidence = content.confidence or Confidence(
            thresholds=weights.read_thresholds(path.parent, content.classes)
        )
        return detector.to(device).eval()

    def _prepare(self, images: Tensor) -> Tensor:
        if not isinstance(images, Tensor):
            raise ModelError(
                f"images must be one tensor [batch, 3, height, width], not a {type(images).__name__}: for the objects "
                "in images of any size, as torchvision's detectors give them, call detector.predict([image, …])"
            )
        if images.ndim != 4 or images.shape[1] != 3:
            raise ModelError(
                f"images must have the shape [batch, 3, height, width], not {list(images.shape)}; "
                "detector.predict(image) takes a single image"
            )
        if images.dtype == torch.uint8:
            normal = (images - 255 * self.mean) / (255 * self.std)
        elif images.is_floating_point():
            normal = (images - self.mean) / self.std
        else:
            raise ModelError(f"images must be uint8, or float from 0 to 1, not {images.dtype}")
        divisor = self.settings.input.divisor
        right, bottom = -images.shape[3] % divisor, -images.shape[2] % divisor
        # An exported network must not depend on the image size used for the export.
        if torch.compiler.is_compiling() or right or bottom:
            normal = functional.pad(normal, (0, right, 0, bottom))
        return normal

    def _first_codes(self) -> Tensor:
        """The initial output of the head: each box is its anchor; distributions are uniform."""
        cell = cell_anchors(self.settings.anchors)
        if isinstance(self.coder, IntegralCoder):
            return torch.zeros(len(cell), self.coder.size)
        return self.coder.encode(cell, cell, torch.ones_like(cell[:, 0]))
