"""IoUThreshold and ATSS against plain loops, and on the days when something is missing or too much."""

from __future__ import annotations

import plain_assigners
import pytest
import torch
from layouts import layout

from rankwise.assign import ATSS, IoUThreshold
from rankwise.assign.atss import smallest
from rankwise.types import Assignment


def check_equal(found: Assignment, expected: Assignment) -> None:
    assert torch.equal(found.matched, expected.matched)
    assert torch.equal(found.labels, expected.labels)
    assert int(found.unmatched) == int(expected.unmatched)


@pytest.mark.parametrize("block", range(10))
def test_iou_threshold_agrees_with_a_loop_over_ground_truths(block: int) -> None:
    settings = [(0.5, 0.4, 0.0), (0.3, 0.3, 0.0), (0.6, 0.2, 0.25), (0.5, 0.4, 1.0)]
    for seed in range(block * 100, block * 100 + 100):
        positive, negative, low = settings[seed % len(settings)]
        predictions, targets = layout(seed)
        expected = plain_assigners.iou_threshold(predictions, targets, positive, negative, low)
        check_equal(IoUThreshold(positive, negative, low)(predictions, targets), expected)


@pytest.mark.parametrize("block", range(10))
def test_atss_agrees_with_a_loop_over_ground_truths(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        k = (9, 1, 4)[seed % 3]
        predictions, targets = layout(seed)
        check_equal(ATSS(k)(predictions, targets), plain_assigners.atss(predictions, targets, k))


def test_the_smallest_of_a_row_are_found_in_order_whatever_ties_there_are() -> None:
    generator = torch.Generator().manual_seed(0)
    for columns, k, kinds in [
        (5, 5, 2),
        (100, 3, 4),
        (128, 1, 3),
        (1153, 9, 10),
        (4096, 9, 50),
        (4099, 9, 1),
        (9000, 20, 7),
    ]:
        values = torch.randint(0, kinds, (20, columns), generator=generator) / 7
        expected = values.sort(dim=1, stable=True).indices[:, :k]
        assert torch.equal(smallest(values, k), expected)
