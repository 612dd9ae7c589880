"""Detectors from ONNX files, run by onnxruntime. This module does not need torch."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, overload

import numpy as np
from PIL import Image

from rankwise.errors import ModelError
from rankwise.export.manifest import Manifest
from rankwise.export.nms import find_detections
from rankwise.export.nms_graph import OUTPUTS
from rankwise.files.names import escaped
from rankwise.images.arrays import as_pixels
from rankwise.images.settings import InputSettings, padded_size
from rankwise.images.sources import find_images, is_folder

INSTALL = "it needs more packages, install them with: pip install onnx onnxscript onnxruntime"


class OnnxDetector:
    """A detector exported by ``rankwise export``.

    Args:
        path: The ONNX file.
        device: auto (a GPU if onnxruntime has one), cpu or cuda.
        threads: Number of threads; the default of onnxruntime if not given.

    Attributes:
        classes: Names of the labels.
        manifest: All settings that came with the file.

    Raises:
        ModelError: If the file does not exist, is not ONNX or not from rankwise, or if onnxruntime is not installed.
    """

    def __init__(self, path: str | PathLike[str], device: str = "auto", threads: int | None = None) -> None:
        self._session = open_session(Path(path), device, threads)
        self.manifest = Manifest.from_metadata(self._session.get_modelmeta().custom_metadata_map, str(path))
        self.classes = self.manifest.classes
        self._check_outputs(path)

    def _check_outputs(self, path: str | PathLike[str]) -> None:
        """Refuses a network whose outputs do not match its settings."""
        wanted = OUTPUTS if self.manifest.nms == "inside" else ("scores", "boxes", "levels")
        outputs = {output.name: output.shape for output in self._session.get_outputs()}
        if missing := [name for name in wanted if name not in outputs]:
            raise ModelError(f"{escaped(path)}: its network has no output {', '.join(missing)}. Export the run again")
        if "scores" in outputs and isinstance(outputs["scores"][-1], int):
            self._check_labels(outputs["scores"][-1] - 1, path, exactly=True)

    def _check_labels(self, highest: int, path: object = "this model", exactly: bool = False) -> None:
        if highest >= len(self.classes) or (exactly and highest + 1 < len(self.classes)):
            raise ModelError(
                f"{escaped(path)}: it has {len(self.classes)} classes, but its network returns label {highest}. "
                "Export the run again"
            )

    @overload
    def predict(
        self,
        images: list[Any],
        threshold: float | None = None,
        *,
        precision: float | None = None,
        calibrated: bool = True,
    ) -> list[dict[str, np.ndarray]]: ...

    @overload
    def predict(
        self, images: Any, threshold: float | None = None, *, precision: float | None = None, calibrated: bool = True
    ) -> Any: ...

    def predict(
        self, images: Any, threshold: float | None = None, *, precision: float | None = None, calibrated: bool = True
    ) -> Any:
        """Detects objects: for each image, boxes [N, 4] xyxy in its pixels, scores [N] and labels [N], best first.

        Args:
            images: The path of an image file, a PIL image, an array [H, W, 3] of bytes or a tensor [3, H, W] of bytes
                or of floats from 0 to 1; a list of these, for a list of results; or a folder or glob such as
                ``photos/*.jpg``, for a dictionary of results by path.
            threshold: The minimum score. By default, each class has the threshold with its best F1.
            precision: The desired precision, such as 0.9, instead of a threshold.
            calibrated: False returns raw scores.
        """
        if is_folder(images):
            files = find_images([str(images)])
            every = self.predict(files, threshold, precision=precision, calibrated=calibrated)
            return dict(zip(map(str, files), every, strict=True))
        several = isinstance(images, list | tuple) or (isinstance(images, np.ndarray) and images.ndim == 4)
        items = list(images) if several else [images]
        manifest = self.manifest
        lowest, score_map = manifest.postprocess.score_threshold, manifest.confidence.calibration
        select = manifest.confidence.select(self.classes, lowest, threshold, precision, calibrated)
        chosen = threshold is not None or precision is not None
        if manifest.nms == "inside" and chosen and select.least_raw(1) < lowest * (1 - 1e-5):
            kind = "scores" if score_map is None else "raw scores"
            raise ModelError(
                f"threshold is {select.limits[0]:g}, but NMS is inside this model and drops {kind} below {lowest:g}; "
                f"export the run with --nms outside to use lower thresholds"
            )
        settings = replace(manifest.postprocess, score_threshold=select.least_raw(lowest))
        results = []
        for item in items:
            image = as_pixels(item)
            batch, size = prepare(image, manifest.input)
            original = (image.shape[0], image.shape[1])
            if manifest.nms == "inside":
                found = self._predict_with_nms_inside(batch, size, original)
            else:
                name = "scores" if score_map is None else "raw_scores"
                scores, boxes, levels = self._session.run([name, "boxes", "levels"], {"images": batch})
                found = find_detections(scores[0], boxes[0], levels, size, original, settings)
            results.append(select(found))
        return results if several else results[0]

    def _predict_with_nms_inside(
        self, batch: np.ndarray, size: tuple[int, int], original: tuple[int, int]
    ) -> dict[str, np.ndarray]:
        raw = "detection_scores" if self.manifest.confidence.calibration is None else "raw_detection_scores"
        boxes, scores, labels, count = self._session.run(
            ["detection_boxes", raw, "detection_labels", "num_detections"],
            {"images": batch, "sizes": np.array([size], dtype=np.int64)},
        )
        scale = np.array([original[1] / size[1], original[0] / size[0]] * 2, dtype=np.float32)
        n = int(count[0])
        self._check_labels(int(labels[0, :n].max(initial=0)))
        return {"boxes": boxes[0, :n] * scale, "scores": scores[0, :n], "labels": labels[0, :n]}


def open_session(path: Path, device: str = "cpu", threads: int | None = None) -> Any:
    """Opens an ONNX file with onnxruntime on auto, cpu or cuda; it chooses the number of threads if none is given."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(f"{path}: onnxruntime is not installed; {INSTALL}") from error
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only: warnings are about the graph, which users did not write
    if threads is not None:
        options.intra_op_num_threads = threads
    providers = _providers(device, onnxruntime)
    try:
        return onnxruntime.InferenceSession(path, options, providers=providers)
    except Exception as error:  # onnxruntime has many exception classes
        raise ModelError(f"{path} is not an ONNX model, or damaged ({str(error).splitlines()[0]})") from error


def prepare(image: np.ndarray, settings: InputSettings) -> tuple[np.ndarray, tuple[int, int]]:
    """Prepares an image, uint8 [H, W, 3], for the network, uint8 [1, 3, H, W]; also returns its (height, width) without
    padding."""
    height, width = settings.input_size(*image.shape[:2])
    if (height, width) != image.shape[:2]:
        # Pillow uses antialiasing for downscaling, like the resizing during training.
        image = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
    color = np.array(settings.mean_colour, dtype=np.uint8)[:, None, None]
    batch = np.broadcast_to(color, (1, 3, *padded_size([(height, width)], settings.divisor))).copy()
    batch[0, :, :height, :width] = image.transpose(2, 0, 1)
    return batch, (height, width)


def _providers(device: str, onnxruntime: Any) -> list[str]:
    cpu, cuda = "CPUExecutionProvider", "CUDAExecutionProvider"
    available = onnxruntime.get_available_providers()
    if device == "cpu" or (device == "auto" and cuda not in available):
        return [cpu]
    if device not in ("auto", "cuda"):
        raise ModelError(f"device is {device!r}: an ONNX model runs on auto, cpu or cuda")
    if cuda not in available:
        raise ModelError("device is 'cuda', but the installed onnxruntime cannot use it: pip install onnxruntime-gpu")
    return [cuda, cpu]
