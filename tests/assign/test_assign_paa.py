"""PAA against a loop over ground truths with scikit-learn."""

from __future__ import annotations

import plain_paa
import pytest
import torch
from layouts import layout

from rankwise.assign import PAA

VARIANTS = [("scores", True), ("scores", False), ("ranking", True), ("localization", True), ("losses", False)]


@pytest.mark.parametrize(("clustering", "normalize"), VARIANTS)
def test_paa_agrees_with_a_loop_over_ground_truths_with_scikit_learn(clustering: str, normalize: bool) -> None:
    for seed in range(120):
        k = (9, 2)[seed % 2]
        predictions, targets = layout(seed)
        found = PAA(k, 0.1, clustering, normalize)(predictions, targets)
        expected = plain_paa.paa(predictions, targets, k, 0.1, clustering, normalize)
        assert torch.equal(found.matched, expected.matched), seed
        assert torch.equal(found.labels, expected.labels)
        assert int(found.unmatched) == int(expected.unmatched)
