"""Export of a detector to an ONNX file, which is verified before it is saved."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor, nn

from rankwise.export.calibration_graph import calibrate_anchors, calibrate_detections
from rankwise.export.comparison import compare, compare_detections, shapes_to_check
from rankwise.export.manifest import KEY, OPSET, Manifest
from rankwise.export.nms_graph import nms_graph, settings_inside
from rankwise.export.runtime import INSTALL, open_session
from rankwise.files.writing import explained, make_folder
from rankwise.interrupts import exit_at_once
from rankwise.models import Detector, ModelError, weights
from rankwise.models.confidence import HOW_TO_CALIBRATE
from rankwise.models.tta import tta_views

Nms = Literal["inside", "outside"]


class Network(nn.Module):
    """The exported part of a detector: from images of bytes to scores and boxes of all anchors."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores [B, A, C], boxes [B, A, 4] and the level of each anchor [A]."""
        predictions = self.detector(images)
        levels = [torch.full((size,), level, dtype=torch.int64) for level, size in enumerate(predictions.level_sizes)]
        return predictions.logits.sigmoid(), predictions.boxes, torch.cat(levels)


def export_run(run: Path, out: Path | None = None, nms: Nms = "outside", opset: int = OPSET) -> Path:
    """Exports a trained run to ONNX and prints how much the results differ; returns the file.

    Args:
        run: Run folder or weights file.
        out: Output file; by default ``model.onnx`` in the run folder or next to the weights file.
        nms: Whether NMS is part of the file.
        opset: Version of ONNX's operators.

    Raises:
        ModelError: If this is not a run, a package is missing, or the results differ too much; then no file is written.
    """
    detector = Detector.load(run)
    out = out or (run if run.is_dir() else run.parent) / "model.onnx"
    console = Console(highlight=False)
    if stopped := weights.unevaluated(run):
        console.print(stopped, soft_wrap=True, markup=False)
    return export_detector(detector, out, nms, opset, console)


def export_detector(
    detector: Detector, out: Path, nms: Nms = "outside", opset: int = OPSET, console: Console | None = None
) -> Path:
    """Exports a detector on the CPU to an ONNX file after verification; returns the file."""
    console = console or Console(quiet=True)
    _require_packages()
    _require_possible(detector, opset)
    detector = detector.eval()
    make_folder(out.parent)
    with explained(out), tempfile.TemporaryFile(dir=out.parent):
        pass  # fail before the export, which takes a minute
    console.print("exporting; this takes about a minute …")
    return write_checked(detector, trace(detector, opset), out, nms, console)


def trace(detector: Detector, opset: int = OPSET) -> Any:
    """Traces the network of a detector, on the CPU and in eval mode, to an ONNX model with dynamic batch size, height
    and width."""
    # No level may be one pixel wide, or the trace would be specialized to such images.
    coarsest = max(detector.neck.strides)
    images = torch.zeros(2, 3, 2 * coarsest, 3 * coarsest, dtype=torch.uint8)
    dynamic = torch.export.Dim.DYNAMIC
    with warnings.catch_warnings(), torch.no_grad(), exit_at_once():
        warnings.simplefilter("ignore")  # warnings about internals of torch
        program = torch.onnx.export(
            Network(detector).eval(),
            (images,),
            dynamo=True,
            opset_version=opset,
            input_names=["images"],
            output_names=["scores", "boxes", "levels"],
            dynamic_shapes=({0: dynamic, 2: dynamic, 3: dynamic},),
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    _tidy(model, len(detector.classes))
    return model


def write_checked(detector: Detector, network: Any, out: Path, nms: Nms, console: Console) -> Path:
    """Verifies and writes a traced network with its settings; nothing is written if the check fails."""
    import onnx

    threads = torch.get_num_threads()
    shapes = shapes_to_check(detector)
    with explained(out), tempfile.TemporaryDirectory(prefix=".export-", dir=out.parent) as folder:
        plain, final = Path(folder) / "network.onnx", Path(folder) / "model.onnx"
        onnx.save(_described(with_calibration(network, detector), detector, "outside"), plain)
        session = open_session(plain, threads=threads)
        differences = compare(detector, session, shapes)
        differences.check()
        console.print(f"verified against torch on {differences}", soft_wrap=True)
        if detector.confidence.calibration is None:
            console.print(f"scores of the file are raw: the run has no calibration; {HOW_TO_CALIBRATE}", soft_wrap=True)
        if len(tta_views(detector.settings.input, detector.settings.test)) > 1:
            without = "the file has no test-time augmentation: model.test of the run is not exported"
            console.print(without, soft_wrap=True)
        if nms == "inside":
            onnx.save(_described(with_nms(network, detector), detector, "inside"), final)
            inside = open_session(final, threads=threads)
            differences = compare_detections(detector, session, inside, shapes)
            differences.check()
            console.print(f"NMS verified on {differences}", soft_wrap=True)
            if detector.settings.postprocess.score_voting:
                console.print("this run uses score voting, which ONNX has no operator for: it is not part of the file")
        (final if nms == "inside" else plain).replace(out)
    console.print(f"{out} ({out.stat().st_size / 1e6:.1f} MB)", soft_wrap=True, markup=False)
    return out


def with_calibration(network: Any, detector: Detector) -> Any:
    """A traced network with the outputs ``scores``, calibrated, and ``raw_scores``; unchanged without a calibration."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(network)
    if detector.confidence.calibration is not None:
        calibrate_anchors(model, detector.confidence.calibration)
        onnx.checker.check_model(model)
    return model


def with_nms(network: Any, detector: Detector) -> Any:
    """A traced network followed by NMS."""
    import onnx

    settings = settings_inside(detector)
    tail = nms_graph(settings, len(detector.classes), len(detector.neck.strides))
    model = onnx.ModelProto()
    model.CopyFrom(network)
    model.graph.node.extend(tail.node)
    model.graph.input.extend(value for value in tail.input if value.name == "sizes")
    del model.graph.output[:]
    model.graph.output.extend(tail.output)
    if detector.confidence.calibration is not None:
        calibrate_detections(model.graph, detector.confidence.calibration)
    onnx.checker.check_model(model)
    return model


def _described(model: Any, detector: Detector, nms: Nms) -> Any:
    """Writes the settings of the detector into the metadata of a model; returns the model."""
    import onnx

    settings = detector.settings.postprocess if nms == "outside" else settings_inside(detector)
    manifest = Manifest(detector.classes, detector.settings.input, settings, detector.confidence, nms)
    onnx.helper.set_model_props(model, {KEY: manifest.to_json()})
    return model


def _tidy(model: Any, classes: int) -> None:
    """Renames dynamic sizes and removes source locations from the nodes."""
    graph = model.graph
    for item in [*graph.node, *graph.input, *graph.output, *graph.initializer, graph]:
        item.ClearField("metadata_props")
        item.ClearField("doc_string")
    graph.ClearField("value_info")
    names: dict[str, list[str | int]] = {
        "images": ["batch", 3, "height", "width"],
        "scores": ["batch", "anchors", classes],
        "boxes": ["batch", "anchors", 4],
        "levels": ["anchors"],
    }
    for value in [*graph.input, *graph.output]:
        for dimension, name in zip(value.type.tensor_type.shape.dim, names[value.name], strict=True):
            if isinstance(name, str):
                dimension.dim_param = name
    model.producer_name, model.doc_string = "rankwise", ""


def _require_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ModelError(f"export to ONNX needs {' and '.join(missing)}: {INSTALL}")


def _require_possible(detector: Detector, opset: int) -> None:
    if opset < OPSET:
        raise ModelError(f"opset is {opset}: choose {OPSET} or later")
    if detector.settings.backbone.deformable_stages:
        raise ModelError(
            "this detector has deformable convolutions (backbone.deformable_stages), which cannot be exported to ONNX"
        )
    for name, tensor in detector.state_dict().items():
        if not tensor.isfinite().all():
            raise ModelError(
                f"the weights of the detector are not finite (NaN or infinite), first in {name}, as after a diverged "
                f"training: use earlier weights, or train with a lower learning rate"
            )
