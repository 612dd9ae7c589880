"""Non-maximum suppression and score voting over many groups of boxes; a group is a class in an image."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor
from torchvision.ops import nms

from rankwise.boxes import paired_iou

#: Boxes per call of the operator, which compares all pairs: small enough that comparing boxes of different groups costs
#: less than another call. A GPU compares thousands in the time of a launch, and the host waits for each call.
_BOXES_PER_CALL = {"cpu": 256, "cuda": 32768}
#: Maximum number of pairs in memory during voting: about 200 MB.
_PAIRS_AT_ONCE = 2**21


def grouped_nms(boxes: Tensor, scores: Tensor, group: Tensor, threshold: float) -> Tensor:
    """Indices of the boxes [N, 4] kept by NMS within each group, int64 [N], in no particular order."""
    if not len(boxes):
        return group.new_empty(0)
    # Groups are shifted apart by more than the size of any box. In float64, because in float32 the shift of the
    # thousandth group would cost a tenth of a pixel, and the result for boxes near the threshold would depend on their
    # class.
    precise = torch.float32 if boxes.device.type == "mps" else torch.float64
    shifted = boxes.to(precise)
    shifted = shifted + (group * (shifted.max() - shifted.min() + 1))[:, None]
    scores = scores.to(precise)
    most = _BOXES_PER_CALL.get(boxes.device.type, 32768)
    if len(boxes) <= most:
        return nms(shifted, scores, threshold)
    order = group.argsort(stable=True)
    shifted, scores = shifted[order], scores[order]
    counts = torch.unique_consecutive(group[order], return_counts=True)[1].tolist()
    kept, begin = [], 0
    for first, last in _runs(counts, most):
        end = begin + sum(counts[first:last])
        kept.append(begin + nms(shifted[begin:end], scores[begin:end], threshold))
        begin = end
    return order[torch.cat(kept)]


def vote(boxes: Tensor, scores: Tensor, group: Tensor, kept: Tensor, sigma: float) -> Tensor:
    """Score voting: refines each kept box with the overlapping boxes of its group (https://arxiv.org/abs/2007.08103).

    Each becomes their weighted mean, with the weights score · exp(-(1 - IoU)² / sigma). ``boxes`` [N, 4], ``scores``
    and ``group`` are those of all boxes; ``kept`` [K] are indices. Returns [K, 4].
    """
    if not len(kept):
        return boxes[kept]
    sorted_group, order = group.sort(stable=True)
    kept_group = group[kept]
    first = torch.searchsorted(sorted_group, kept_group)
    counts = torch.searchsorted(sorted_group, kept_group, right=True) - first
    if boxes.device.type == "cuda" and find_spec("triton") is not None:
        from rankwise.models.nms_triton import vote as vote_on_gpu

        return vote_on_gpu(boxes, scores, order, kept, first, counts, sigma)
    result = []
    for begin, end in _runs(counts.tolist(), _PAIRS_AT_ONCE):
        count = counts[begin:end]
        of = torch.repeat_interleave(torch.arange(end - begin, device=boxes.device), count)  # [pairs]
        within = torch.arange(len(of), device=boxes.device) - (count.cumsum(0) - count)[of]
        other = order[first[begin:end][of] + within]
        own = boxes[kept[begin:end]]
        iou = paired_iou(own[of], boxes[other])
        weight = torch.where(iou > 0, scores[other] * (-((1 - iou) ** 2) / sigma).exp(), 0)
        total = torch.zeros_like(own[:, 0]).index_add_(0, of, weight)
        mean = torch.zeros_like(own).index_add_(0, of, weight[:, None] * boxes[other]) / total[:, None]
        result.append(torch.where(total[:, None] > 0, mean, own))
    return torch.cat(result)


def _runs(counts: list[int], most: int) -> list[tuple[int, int]]:
    """Splits a sequence of sizes into runs with a sum of at most ``most``; a larger item is a run by itself."""
    runs, begin, end, held = [], 0, 0, 0
    for count in counts:
        if held and held + count > most:
            runs.append((begin, end))
            begin, held = end, 0
        held += count
        end += 1
    return [*runs, (begin, end)] if end > begin else runs
