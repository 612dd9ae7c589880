"""IoUThreshold and ATSS against reference loops, including empty and crowded images."""

from __future__ import annotations

import plain_assigners
import pytest
import torch
from gpu_counting import CountGPUWork, on_gpu, on_host
from layouts import layout

from rankwise.assign import ATSS, IoUThreshold
from rankwise.assign.atss import nearest
from rankwise.types import Assignment


def check_equal(found: Assignment, expected: Assignment) -> None:
    assert torch.equal(found.matched, expected.matched)
    assert torch.equal(found.labels, expected.labels)
    assert int(found.unmatched) == int(expected.unmatched)


@pytest.mark.parametrize("block", range(10))
def test_iou_threshold_equals_a_loop_over_objects(block: int) -> None:
    settings = [(0.5, 0.4, 0.0), (0.3, 0.3, 0.0), (0.6, 0.2, 0.25), (0.5, 0.4, 1.0)]
    for seed in range(block * 40, block * 40 + 40):
        positive, negative, low = settings[seed % len(settings)]
        predictions, targets = layout(seed)
        expected = plain_assigners.iou_threshold(predictions, targets, positive, negative, low)
        check_equal(IoUThreshold(positive, negative, low)(predictions, targets), expected)


@pytest.mark.parametrize("block", range(10))
def test_atss_equals_a_loop_over_objects(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        k = (9, 1, 4)[seed % 3]
        predictions, targets = layout(seed)
        check_equal(ATSS(k)(predictions, targets), plain_assigners.atss(predictions, targets, k))


def test_the_nearest_anchors_are_sorted_with_ties_by_index() -> None:
    generator = torch.Generator().manual_seed(0)
    for sizes, k, kinds in [((5, 2), 5, 2), ((100, 7, 1), 3, 4), ((1153, 300), 9, 10), ((4099,), 9, 1), ((90,), 20, 7)]:
        points = torch.randint(0, kinds, (20, 2), generator=generator) / 7
        anchors = torch.randint(0, kinds, (sum(sizes), 2), generator=generator) / 7
        distance = (points[:, None] - anchors).square().sum(2)
        starts = [sum(sizes[:level]) for level in range(len(sizes))]
        parts = zip(distance.split(sizes, 1), starts, strict=True)
        expected = torch.cat([part.sort(dim=1, stable=True).indices[:, :k] + start for part, start in parts], 1)
        assert torch.equal(nearest(points, anchors, sizes, k), expected)
        with CountGPUWork():
            found = nearest(on_gpu(points), on_gpu(anchors), sizes, k)
        assert torch.equal(on_host(found), expected)
