"""Calibration in ONNX: the nodes that turn raw scores into probabilities, as ``rankwise.models.score_map`` does."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.export.nms_graph import OUTPUTS
from rankwise.models.score_map import TAIL, ScoreMap


class Nodes:
    """Collects nodes and constants to add to a graph; the names of intermediate values have a prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any, dtype: type = np.float32) -> str:
        """Adds a constant; returns its name."""
        import onnx

        name = f"{self.prefix}_constant_{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(values, dtype=dtype), name))
        return name

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Adds a node with one output; returns the name of the output."""
        return self.add_several(operator, 1, *inputs, output=output, **attributes)[0]

    def add_several(
        self, operator: str, outputs: int, *inputs: str, output: str | None = None, **attributes: Any
    ) -> list[str]:
        """Adds a node with several outputs; returns their names."""
        import onnx

        names = [output or f"{self.prefix}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(onnx.helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def add_to(self, graph: Any) -> None:
        """Appends everything to a graph."""
        graph.node.extend(self.nodes)
        graph.initializer.extend(self.constants)


def calibrate(
    nodes: Nodes, score_map: ScoreMap, scores: str, labels: str | None = None, output: str | None = None
) -> str:
    """Adds the nodes of a calibration; returns the name of the calibrated scores.

    Args:
        nodes: The collection to add to.
        score_map: The calibration.
        scores: Name of the raw scores, float32; without labels, the last axis is the class.
        labels: Name of the labels of the scores, int64 of the same shape; negative labels count as 0.
        output: Name of the result; a new name by default.
    """
    starts, x0, y0, slope = score_map.segments
    classes, count = x0.shape
    # Clipped to the range of the map, because the logarithm of 0 is infinite.
    above = nodes.add("Max", nodes.add("Log", scores), nodes.constant(np.log(np.nextafter(0, 1))))
    rest = nodes.add("Sub", nodes.constant(1.0), scores)
    below = nodes.add("Log", nodes.add("Max", rest, nodes.constant(1 - np.nextafter(1, 0))))
    x = nodes.add("Sub", above, below)
    if labels is None:
        label = nodes.constant(np.arange(classes), np.int64)
    else:
        label = nodes.add("Max", labels, nodes.constant(0, np.int64))
    # The index of the segment of each score: the number of segments that start below it.
    segment = nodes.add("Mul", label, nodes.constant(count, np.int64))
    if count > 2:  # with a single knot, the segments on both sides are the same line
        for column in starts.T:
            start = nodes.add("Gather", nodes.constant(np.minimum(column, 1e30)), label)
            segment = nodes.add("Add", segment, nodes.add("Cast", nodes.add("Greater", x, start), to=7))
    origin, height, steepness = (
        nodes.add("Gather", nodes.constant(table.reshape(-1)), segment) for table in (x0, y0, slope)
    )
    away = nodes.add("Mul", steepness, nodes.add("Sub", x, origin))
    y = nodes.add("Add", height, away)
    # The tails grow logarithmically.
    size, tail = nodes.add("Abs", y), nodes.constant(TAIL)
    beyond = nodes.add("Max", nodes.add("Sub", size, tail), nodes.constant(0.0))
    grown = nodes.add("Log", nodes.add("Add", beyond, nodes.constant(1.0)))
    total = nodes.add("Add", nodes.add("Min", size, tail), grown)
    return nodes.add("Sigmoid", nodes.add("Mul", nodes.add("Sign", y), total), output=output)


def calibrate_anchors(model: Any, score_map: ScoreMap) -> None:
    """Calibrates the output ``scores`` of a traced network, in place, and keeps the raw scores as ``raw_scores``."""
    graph = model.graph
    _rename(graph.node, {"scores": "raw_scores"})
    position = next(index for index, value in enumerate(graph.output) if value.name == "scores")
    raw = graph.output.add()
    raw.CopyFrom(graph.output[position])
    raw.name = "raw_scores"
    nodes = Nodes("calibration")
    calibrate(nodes, score_map, "raw_scores", output="scores")
    nodes.add_to(graph)


def calibrate_detections(graph: Any, score_map: ScoreMap) -> None:
    """Calibrates and sorts the detections of :func:`rankwise.export.nms_graph.nms_graph`, in place, and adds
    ``raw_detection_scores``."""
    names = OUTPUTS[:3]
    boxes, scores, labels = (f"calibration_raw_{name}" for name in names)
    _rename(graph.node, dict(zip(names, (boxes, scores, labels), strict=True)))
    nodes = Nodes("calibration")
    probability = calibrate(nodes, score_map, scores, labels)
    value = nodes.add("Where", "nms_found", probability, nodes.constant(-1.0))
    count = nodes.add("Shape", value, start=1, end=2)
    top, order = nodes.add_several("TopK", 2, value, count, axis=1)
    nodes.add("Max", top, nodes.constant(0.0), output=names[1])
    nodes.add("GatherElements", labels, order, axis=1, output=names[2])
    nodes.add("GatherElements", scores, order, axis=1, output="raw_detection_scores")
    index = nodes.add("Unsqueeze", order, nodes.constant([-1], np.int64))
    nodes.add("GatherND", boxes, index, batch_dims=1, output=names[0])
    nodes.add_to(graph)
    import onnx

    graph.output.append(onnx.helper.make_tensor_value_info("raw_detection_scores", 1, ["batch", "detections"]))


def _rename(nodes: Any, names: dict[str, str]) -> None:
    for node in nodes:
        for values in (node.input, node.output):
            for index, value in enumerate(values):
                if value in names:
                    values[index] = names[value]
