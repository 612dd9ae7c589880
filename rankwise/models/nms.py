"""Non-maximum suppression and score voting over many groups of boxes at once; a group is a class in an image."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor
from torchvision.ops import nms

from rankwise.boxes import paired_iou

#: So many boxes go into one call of the operator, which compares all with all: small enough that comparing boxes of
#: different groups in vain costs less than another call. A GPU compares thousands in the time of a launch, and each
#: call makes the host wait for it.
_BOXES_PER_CALL = {"cpu": 256, "cuda": 32768}
#: So many pairs of boxes are held at once in voting: about 200 MB.
_PAIRS_AT_ONCE = 2**21


def grouped_nms(boxes: Tensor, scores: Tensor, group: Tensor, threshold: float) -> Tensor:
    """Indices of the boxes that no better box of their group overlaps by more than the threshold, in no given order.

    Args:
        boxes: xyxy, [N, 4].
        scores: [N].
        group: Boxes of different groups leave each other alone, int64 [N].
        threshold: An IoU.
    """
    if not len(boxes):
        return group.new_empty(0)
    # Apart from each other by more than any box is long. In float64, since the shift of the thousandth group would
    # cost float32 a tenth of a pixel, and boxes near the threshold would be kept or not by their class.
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
    """The kept boxes, each drawn to the boxes of its group that overlap it (https://arxiv.org/abs/2007.08103).

    Each becomes the mean of them with weights score · exp(-(1 - IoU)² / sigma).

    Args:
        boxes: All boxes, kept or not, xyxy, [N, 4].
        scores: [N].
        group: int64 [N].
        kept: Indices of the kept ones, [K].
        sigma: How fast the weight falls.

    Returns:
        The new boxes, [K, 4].
    """
    if not len(kept):
        return boxes[kept]
    sorted_group, order = group.sort(stable=True)
    mine = group[kept]
    first = torch.searchsorted(sorted_group, mine)
    counts = torch.searchsorted(sorted_group, mine, right=True) - first
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
    """Cuts a row of things of these sizes into runs of at most ``most`` together, a larger one by itself."""
    runs, begin, end, held = [], 0, 0, 0
    for count in counts:
        if held and held + count > most:
            runs.append((begin, end))
            begin, held = end, 0
        held += count
        end += 1
    return [*runs, (begin, end)] if end > begin else runs
