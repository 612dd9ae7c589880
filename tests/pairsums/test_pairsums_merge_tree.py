"""Sums over the samples that come early in two orders against the plain sums."""

import pytest
import torch

from rankwise.pairsums.merge_tree import first_in_both


@pytest.mark.parametrize("number", [1, 2, 7, 8, 100])
def test_sums_are_over_the_samples_before_both_ends(number):
    generator = torch.Generator().manual_seed(number)
    place, rank = (torch.randperm(number, generator=generator) for _ in range(2))
    limit = torch.randint(number, (number,), generator=generator)
    ends = torch.randint(number + 1, (3, number), generator=generator)
    values = torch.rand(number, 2, dtype=torch.float64, generator=generator)
    wanted = ((place < limit[:, None]) & (rank < ends[..., None])).double() @ values
    torch.testing.assert_close(first_in_both(place, rank, limit, ends, values), wanted, rtol=1e-12, atol=1e-12)
