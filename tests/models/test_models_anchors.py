"""Anchors: positions, shapes and caching."""

from __future__ import annotations

import copy
import pickle

import torch

from rankwise.models.anchors import Anchors
from rankwise.models.settings import AnchorSettings

CPU = torch.device("cpu")


def test_anchors_equal_a_plain_loop_over_locations() -> None:
    settings = AnchorSettings(base=4.0, scales=(1.0, 1.5), ratios=(0.5, 1.0, 2.0))
    grid = Anchors(settings, (8, 16))([(3, 5), (2, 3)], CPU)
    expected, strides = [], []
    for stride, (height, width) in ((8, (3, 5)), (16, (2, 3))):
        for row in range(height):
            for column in range(width):
                for scale in settings.scales:
                    for ratio in settings.ratios:
                        side = 4.0 * scale * stride
                        half_w, half_h = side / ratio**0.5 / 2, side * ratio**0.5 / 2
                        x, y = (column + 0.5) * stride, (row + 0.5) * stride
                        expected.append([x - half_w, y - half_h, x + half_w, y + half_h])
                        strides.append(stride)
    torch.testing.assert_close(grid.boxes, torch.tensor(expected), atol=1e-4, rtol=0)
    assert grid.strides.tolist() == strides
    assert grid.level_sizes == (90, 36)


def test_anchors_are_cached_per_size() -> None:
    anchors = Anchors(AnchorSettings(), (8,))
    first = anchors([(4, 4)], CPU)
    anchors([(5, 4)], CPU)
    assert anchors([(4, 4)], CPU).boxes is first.boxes


def test_the_anchor_cache_is_bounded() -> None:
    anchors = Anchors(AnchorSettings(), (8,))
    for width in range(1, 200):
        anchors([(1, width)], CPU)
    assert len(anchors._made) <= 64


def test_anchors_made_while_predicting_can_be_trained_with() -> None:
    anchors = Anchors(AnchorSettings(), (8,))
    with torch.inference_mode():
        anchors([(4, 4)], CPU)
    weight = torch.ones(1, requires_grad=True)
    (anchors([(4, 4)], CPU).boxes * weight).sum().backward()
    assert weight.grad.item() == anchors([(4, 4)], CPU).boxes.sum().item()


def test_copies_do_not_include_the_anchor_cache() -> None:
    anchors = Anchors(AnchorSettings(), (8,))
    made = anchors([(4, 4)], CPU).boxes
    for other in (copy.deepcopy(anchors), pickle.loads(pickle.dumps(anchors))):
        assert not other._made
        torch.testing.assert_close(other([(4, 4)], CPU).boxes, made)
