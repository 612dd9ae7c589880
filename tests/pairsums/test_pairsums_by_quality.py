"""Sums of the step over positives of lower quality against the pairs themselves."""

import pytest
import torch

from rankwise.pairsums.compiled_by_quality import over_higher, over_lower


@pytest.mark.parametrize("number", [1, 2, 40, 700])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("delta", [0.05, 0.5, 20.0])
def test_sums_by_quality_are_those_of_all_pairs(number, ties, delta):
    generator = torch.Generator().manual_seed(number)
    positives, quality = torch.randn(2, number, dtype=torch.float64, generator=generator)
    positives = 3 * positives + 100
    if ties:
        positives, quality = positives.round(), quality.round()
    values = torch.rand(number, 2, dtype=torch.float64, generator=generator)
    step = ((positives - positives[:, None]) / (2 * delta) + 0.5).clamp(0, 1) * (quality < quality[:, None])
    lower = over_lower(positives, quality, values, delta)
    torch.testing.assert_close(lower, step @ values, rtol=1e-11, atol=1e-10)
    higher = over_higher(positives, quality, values[:, 0], delta)
    torch.testing.assert_close(higher, values[:, 0] @ step, rtol=1e-11, atol=1e-10)


def test_equal_qualities_have_no_pairs():
    positives = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = torch.ones(50, 1, dtype=torch.float64)
    assert not over_lower(positives, torch.full((50,), 0.5), values, 0.5).any()
