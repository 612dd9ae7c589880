"""Assigners on an emulated GPU: the same results as on a CPU, without a host sync."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpu_counting import CountGPUWork, on_gpu, on_host
from layouts import layout
from test_assign_gmm import padded, random_set

from rankwise.assign import ATSS, PAA, Assigner, IoUThreshold, chunks
from rankwise.assign.gmm import fit_mixtures
from rankwise.types import Predictions


@pytest.mark.parametrize(
    ("assigner", "seeds"),
    [
        (IoUThreshold(), 3),
        (IoUThreshold(0.6, 0.2, 0.25), 3),
        (ATSS(), 9),
        (PAA(), 3),
        (PAA(clustering="losses"), 1),
    ],
)
def test_gpu_assignment_equals_cpu_without_a_sync_whatever_the_size_of_the_chunks(
    assigner: Assigner, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(seeds):
        predictions, targets = layout(seed)
        expected = assigner(predictions, targets)
        monkeypatch.setitem(chunks.PAIR_BUDGET, "other", (64 << 20, 5000, 1)[seed % 3])
        with CountGPUWork() as work:
            tensors = (predictions.logits, predictions.boxes, predictions.anchors)
            found = assigner(Predictions(*map(on_gpu, tensors), predictions.level_sizes), targets)
        for name in ("labels", "matched", "unmatched"):
            assert torch.equal(on_host(getattr(found, name)), getattr(expected, name)), (seed, name)
        assert not work.syncs, work.report()


def test_gpu_mixtures_equal_cpu_in_one_launch() -> None:
    rng = np.random.default_rng(1)
    values, valid = padded([random_set(kind, rng) for kind in range(20)])
    valid[7] = False
    expected = fit_mixtures(values, valid)
    with CountGPUWork() as work:
        found = fit_mixtures(on_gpu(values), on_gpu(valid))
    assert work.kernels == {"fit_set": 1}, work.report()
    assert torch.equal(on_host(found.converged), expected.converged)
    torch.testing.assert_close(on_host(found.parameters), expected.parameters, rtol=1e-9, atol=1e-9)
