"""Sums over pairs of products of differences against the pairs themselves."""

import pytest
import torch

from rankwise.pairsums import product_sums


@pytest.mark.parametrize("a", [0.1, 1.0, 2.0, 20.0])
@pytest.mark.parametrize(("number", "groups"), [(0, 3), (1, 3), (2, 3), (300, 3), (300, 80)])
def test_product_sums_are_those_of_all_pairs(a, number, groups):
    generator = torch.Generator().manual_seed(number)
    f, q = torch.rand(2, number, dtype=torch.float64, generator=generator)
    group = torch.randint(0, groups, (number,), generator=generator)
    values = torch.rand(number, 2, dtype=torch.float64, generator=generator)
    pairs = torch.exp(-a * (f[:, None] - f) * (q[:, None] - q)) * (group[:, None] == group)
    torch.testing.assert_close(product_sums(f, q, group, groups, a, values), pairs @ values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("times", [1, 20], ids=["few", "many"])
def test_product_sums_at_the_ends_of_the_range(times):
    f, q = torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]], dtype=torch.float64).repeat(1, times)
    pairs = torch.exp(-20.0 * (f[:, None] - f) * (q[:, None] - q)).sum(1, keepdim=True)
    zeros, ones = torch.zeros(len(f), dtype=torch.int64), torch.ones(len(f), 1, dtype=torch.float64)
    got = product_sums(f, q, zeros, 1, 20.0, ones)
    torch.testing.assert_close(got, pairs, rtol=1e-10, atol=1e-10)
