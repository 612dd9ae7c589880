"""Calibration in ONNX: the nodes that turn raw scores into probabilities, as ``rankwise.models.score_map`` does."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.models.score_map import TAIL, ScoreMap


class Nodes:
    """Nodes and constants that are to be added to a graph.

    Args:
        prefix: What the names of inner values begin with.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any, kind: type = np.float32) -> str:
        """A constant; returns its name."""
        import onnx

        name = f"{self.prefix}_constant_{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(values, dtype=kind), name))
        return name

    def add(self, operator: str, *inputs: str, gives: str | None = None, **attributes: Any) -> str:
        """A node with one output; returns the output's name."""
        return self.add_several(operator, 1, *inputs, gives=gives, **attributes)[0]

    def add_several(
        self, operator: str, outputs: int, *inputs: str, gives: str | None = None, **attributes: Any
    ) -> list[str]:
        """A node with several outputs; returns their names."""
        import onnx

        names = [gives or f"{self.prefix}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(onnx.helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def add_to(self, graph: Any) -> None:
        """Appends everything to a graph."""
        graph.node.extend(self.nodes)
        graph.initializer.extend(self.constants)


def calibrate(
    nodes: Nodes, score_map: ScoreMap, scores: str, labels: str | None = None, gives: str | None = None
) -> str:
    """Adds the nodes of a calibration; returns the name of the calibrated scores.

    Args:
        nodes: Where to add them.
        score_map: The calibration.
        scores: Name of the raw scores, float32; without labels their last axis is that of the classes.
        labels: Name of the labels, int64 of the same shape, where each score has one; negative ones are taken as 0.
        gives: The name of the result, if it matters.
    """
    starts, x0, y0, slope = score_map.segments
    classes, count = x0.shape
    # As near to 0 and 1 as the map goes; the logarithm of 0 is minus infinity.
    above = nodes.add("Max", nodes.add("Log", scores), nodes.constant(np.log(np.nextafter(0, 1))))
    rest = nodes.add("Sub", nodes.constant(1.0), scores)
    below = nodes.add("Log", nodes.add("Max", rest, nodes.constant(1 - np.nextafter(1, 0))))
    x = nodes.add("Sub", above, below)
    if labels is None:
        label = nodes.constant(np.arange(classes), np.int64)
    else:
        label = nodes.add("Max", labels, nodes.constant(0, np.int64))
    # The segment of each score: how many segments start below it.
    place = nodes.add("Mul", label, nodes.constant(count, np.int64))
    if count > 2:  # the segments on both sides of a single knot are one
        for column in starts.T:
            start = nodes.add("Gather", nodes.constant(np.minimum(column, 1e30)), label)
            place = nodes.add("Add", place, nodes.add("Cast", nodes.add("Greater", x, start), to=7))
    origin, height, steepness = (
        nodes.add("Gather", nodes.constant(table.reshape(-1)), place) for table in (x0, y0, slope)
    )
    away = nodes.add("Mul", steepness, nodes.add("Sub", x, origin))
    y = nodes.add("Add", height, away)
    # The tails.
    size, tail = nodes.add("Abs", y), nodes.constant(TAIL)
    beyond = nodes.add("Max", nodes.add("Sub", size, tail), nodes.constant(0.0))
    grown = nodes.add("Log", nodes.add("Add", beyond, nodes.constant(1.0)))
    total = nodes.add("Add", nodes.add("Min", size, tail), grown)
    return nodes.add("Sigmoid", nodes.add("Mul", nodes.add("Sign", y), total), gives=gives)


def calibrate_anchors(model: Any, score_map: ScoreMap) -> None:
    """Makes the output ``scores`` of a traced network calibrated, and keeps the raw ones as ``raw_scores``.

    Args:
        model: The network; it is changed.
        score_map: The calibration.
    """
    graph = model.graph
    _rename(graph.node, {"scores": "raw_scores"})
    place = next(index for index, value in enumerate(graph.output) if value.name == "scores")
    raw = graph.output.add()
    raw.CopyFrom(graph.output[place])
    raw.name = "raw_scores"
    nodes = Nodes("calibration")
    calibrate(nodes, score_map, "raw_scores", gives="scores")
    nodes.add_to(graph)


def calibrate_detections(graph: Any, score_map: ScoreMap) -> None:
    """Makes the scores of final detections calibrated, sorts each image by them, and adds ``raw_detection_scores``.

    Args:
        graph: With the nodes of suppression; it is changed.
        score_map: The calibration.
    """
    names = ("detection_boxes", "detection_scores", "detection_labels")
    boxes, scores, labels = (f"calibration_raw_{name}" for name in names)
    _rename(graph.node, dict(zip(names, (boxes, scores, labels), strict=True)))
    nodes = Nodes("calibration")
    probability = calibrate(nodes, score_map, scores, labels)
    value = nodes.add("Where", "nms_found", probability, nodes.constant(-1.0))
    count = nodes.add("Shape", value, start=1, end=2)
    top, order = nodes.add_several("TopK", 2, value, count, axis=1)
    nodes.add("Max", top, nodes.constant(0.0), gives=names[1])
    nodes.add("GatherElements", labels, order, axis=1, gives=names[2])
    nodes.add("GatherElements", scores, order, axis=1, gives="raw_detection_scores")
    index = nodes.add("Unsqueeze", order, nodes.constant([-1], np.int64))
    nodes.add("GatherND", boxes, index, batch_dims=1, gives=names[0])
    nodes.add_to(graph)
    import onnx

    graph.output.append(onnx.helper.make_tensor_value_info("raw_detection_scores", 1, ["batch", "detections"]))


def _rename(nodes: Any, names: dict[str, str]) -> None:
    for node in nodes:
        for values in (node.input, node.output):
            for place, value in enumerate(values):
                if value in names:
                    values[place] = names[value]
