"""Sums over pairs of products of differences against the pairs themselves."""

import pytest
import torch

from rankwise.pairsums import product_sums


@pytest.mark.parametrize("a", [0.1, 1.0, 2.0, 20.0])
@pytest.mark.parametrize("number", [0, 1, 2, 300])
def test_product_sums_are_those_of_all_pairs(a, number):
    generator = torch.Generator().manual_seed(number)
    f, q = torch.rand(2, number, dtype=torch.float64, generator=generator)
    group = torch.randint(0, 3, (number,), generator=generator)
    values = torch.rand(number, 2, dtype=torch.float64, generator=generator)
    pairs = torch.exp(-a * (f[:, None] - f) * (q[:, None] - q)) * (group[:, None] == group)
    torch.testing.assert_close(product_sums(f, q, group, 3, a, values), pairs @ values, rtol=1e-12, atol=1e-12)


def test_product_sums_at_the_ends_of_the_range():
    f, q = torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    pairs = torch.exp(-20.0 * (f[:, None] - f) * (q[:, None] - q)).sum(1, keepdim=True)
    got = product_sums(f, q, torch.zeros(4, dtype=torch.int64), 1, 20.0, torch.ones(4, 1, dtype=torch.float64))
    torch.testing.assert_close(got, pairs, rtol=1e-10, atol=1e-10)
