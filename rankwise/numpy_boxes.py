"""IoU and non-maximum suppression of xyxy boxes in NumPy, in double precision: they work where there is no torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def paired_iou(
    boxes: NDArray[np.float64], others: NDArray[np.float64], crowd: NDArray[np.bool_] | bool = False
) -> NDArray[np.float64]:
    """The IoUs of boxes [..., 4] with others [..., 4], one by one, with broadcasting; 0 where a box has no area.

    Where ``crowd`` is true, the intersection is divided by the area of ``boxes`` instead of the union.
    """
    sides = np.minimum(boxes[..., 2:], others[..., 2:]) - np.maximum(boxes[..., :2], others[..., :2])
    shared = np.where((sides > 0).all(axis=-1), sides.prod(axis=-1), 0.0)
    area, other_area = ((some[..., 2:] - some[..., :2]).prod(axis=-1) for some in (boxes, others))
    union = np.where(crowd, area, area + other_area - shared)
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)


def nms(boxes: NDArray[np.floating], threshold: float) -> NDArray[np.int64]:
    """Indices of the boxes [N, 4], best first, that no better kept box overlaps by an IoU above the threshold."""
    exact = boxes.astype(np.float64)
    kept: list[int] = []
    left = np.arange(len(boxes))
    while len(left):
        best, left = left[0], left[1:]
        kept.append(int(best))
        left = left[paired_iou(exact[best], exact[left]) <= threshold]
    return np.asarray(kept, dtype=np.int64)
