"""NMS in ONNX: the nodes from scores and boxes of all anchors to detections."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rankwise.models.settings import PostprocessSettings

if TYPE_CHECKING:
    from rankwise.models import Detector

#: Names of the outputs.
OUTPUTS = ("detection_boxes", "detection_scores", "detection_labels", "num_detections")


def settings_inside(detector: Detector) -> PostprocessSettings:
    """Post-processing settings with a score threshold that is at most the threshold of every class."""
    settings = detector.settings.postprocess
    select = detector.confidence.select(detector.classes, settings.score_threshold)
    lowest = select.least_raw(settings.score_threshold)
    return replace(settings, score_threshold=lowest, score_voting=False)


def nms_graph(settings: PostprocessSettings, classes: int, levels: int) -> Any:
    """The nodes as an ONNX graph, for opset 18 and later.

    Equivalent to ``rankwise.models.postprocess`` without score voting, in pixels of the input image: the best samples
    of each level, boxes clipped to the image, NMS by the ONNX operator, the best detections of each image.
    """
    import onnx.parser

    return onnx.parser.parse_graph(
        f"""
        nms (float[B, A, {classes}] scores, float[B, A, 4] boxes, int64[A] levels, int64[B, 2] sizes) => (
            float[batch, detections, 4] detection_boxes, float[batch, detections] detection_scores,
            int64[batch, detections] detection_labels, int64[batch] num_detections)
        {{
            {_CONSTANTS.format(classes=classes, s=settings)}
            {"".join(_LEVEL.format(level=level, next=level + 1) for level in range(levels))}
            nms_best = Concat <axis = 1> ({", ".join(f"nms_best_{level}" for level in range(levels))})
            nms_sample = Concat <axis = 1> ({", ".join(f"nms_sample_{level}" for level in range(levels))})
            {_CANDIDATES}
            {_BY_CLASS.format(list=", ".join(map(str, range(classes)))) if settings.per_class else _TOGETHER}
            {_DETECTIONS}
        }}
        """
    )


_CONSTANTS = """
    nms_start_0 = Constant <value_ints = [0]> ()
    nms_axis_1 = Constant <value_ints = [1]> ()
    nms_axis_last = Constant <value_ints = [-1]> ()
    nms_rows = Constant <value_ints = [0, -1]> ()
    nms_low = Constant <value_ints = [0]> ()
    nms_middle = Constant <value_ints = [2]> ()
    nms_high = Constant <value_ints = [4]> ()
    nms_xyxy = Constant <value_ints = [1, 0, 1, 0]> ()
    nms_image_and_sample = Constant <value_ints = [0, 2]> ()
    nms_no_label = Constant <value_int = -1> ()
    nms_zero = Constant <value_float = 0.0> ()
    nms_none = Constant <value_float = -1.0> ()
    nms_above_none = Constant <value_float = -0.5> ()
    nms_classes = Constant <value_ints = [{classes}]> ()
    nms_topk = Constant <value_ints = [{s.topk}]> ()
    nms_most = Constant <value_ints = [{s.max_detections}]> ()
    nms_score = Constant <value_float = {s.score_threshold:.9f}> ()
    nms_iou = Constant <value_float = {s.nms_threshold:.9f}> ()
"""

# The best samples (pairs of anchor and class) of one level.
_LEVEL = """
    nms_number_{level} = Constant <value_int = {level}> ()
    nms_here_{level} = Equal (levels, nms_number_{level})
    nms_one_{level} = Cast <to = 7> (nms_here_{level})
    nms_count_{level} = ReduceSum <keepdims = 1> (nms_one_{level})
    nms_start_{next} = Add (nms_start_{level}, nms_count_{level})
    nms_part_{level} = Slice (scores, nms_start_{level}, nms_start_{next}, nms_axis_1)
    nms_flat_{level} = Reshape (nms_part_{level}, nms_rows)
    nms_samples_{level} = Mul (nms_count_{level}, nms_classes)
    nms_k_{level} = Min (nms_samples_{level}, nms_topk)
    nms_best_{level}, nms_index_{level} = TopK <axis = 1> (nms_flat_{level}, nms_k_{level})
    nms_before_{level} = Mul (nms_start_{level}, nms_classes)
    nms_sample_{level} = Add (nms_index_{level}, nms_before_{level})
"""

# Their boxes, clipped to the image; samples below the threshold or without area get the score -1.
_CANDIDATES = """
    nms_anchor = Div (nms_sample, nms_classes)
    nms_label = Mod (nms_sample, nms_classes)
    nms_anchor_index = Unsqueeze (nms_anchor, nms_axis_last)
    nms_raw = GatherND <batch_dims = 1> (boxes, nms_anchor_index)
    nms_size = Gather <axis = 1> (sizes, nms_xyxy)
    nms_size_float = Cast <to = 1> (nms_size)
    nms_limit = Unsqueeze (nms_size_float, nms_axis_1)
    nms_positive = Max (nms_raw, nms_zero)
    nms_boxes = Min (nms_positive, nms_limit)
    nms_from = Slice (nms_boxes, nms_low, nms_middle, nms_axis_last)
    nms_to = Slice (nms_boxes, nms_middle, nms_high, nms_axis_last)
    nms_sides = Sub (nms_to, nms_from)
    nms_side = ReduceMin <keepdims = 0> (nms_sides, nms_axis_last)
    nms_real = Greater (nms_side, nms_zero)
    nms_enough = GreaterOrEqual (nms_best, nms_score)
    nms_candidate = And (nms_real, nms_enough)
    nms_value = Where (nms_candidate, nms_best, nms_none)
    nms_values = Unsqueeze (nms_value, nms_axis_1)
"""

# Scores [B, C, K]: each candidate has a score only in its own class.
_BY_CLASS = """
    nms_list = Constant <value_ints = [{list}]> ()
    nms_column = Unsqueeze (nms_list, nms_axis_last)
    nms_labels = Unsqueeze (nms_label, nms_axis_1)
    nms_own = Equal (nms_labels, nms_column)
    nms_by_class = Where (nms_own, nms_values, nms_none)
"""
_TOGETHER = """
    nms_by_class = Identity (nms_values)
"""

# The kept candidates, scattered to the rows of their images and sorted.
_DETECTIONS = """
    nms_selected = NonMaxSuppression (nms_boxes, nms_by_class, nms_most, nms_iou, nms_above_none)
    nms_position = Gather <axis = 1> (nms_selected, nms_image_and_sample)
    nms_kept = GatherND (nms_value, nms_position)
    nms_shape = Shape (nms_value)
    nms_empty = Expand (nms_none, nms_shape)
    nms_left = ScatterND (nms_empty, nms_position, nms_kept)
    nms_width = Shape <start = 1, end = 2> (nms_value)
    nms_detections = Min (nms_width, nms_most)
    nms_top, nms_at = TopK <axis = 1> (nms_left, nms_detections)
    nms_found = Greater (nms_top, nms_above_none)
    detection_scores = Where (nms_found, nms_top, nms_zero)
    nms_top_labels = GatherElements <axis = 1> (nms_label, nms_at)
    detection_labels = Where (nms_found, nms_top_labels, nms_no_label)
    nms_at_index = Unsqueeze (nms_at, nms_axis_last)
    nms_top_boxes = GatherND <batch_dims = 1> (nms_boxes, nms_at_index)
    nms_found_box = Unsqueeze (nms_found, nms_axis_last)
    detection_boxes = Where (nms_found_box, nms_top_boxes, nms_zero)
    nms_found_one = Cast <to = 7> (nms_found)
    num_detections = ReduceSum <keepdims = 0> (nms_found_one, nms_axis_1)
"""
