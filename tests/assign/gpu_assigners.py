"""Compares assigners on an emulated GPU with a CPU; run by test_assign_gpu.py with Triton's interpreter."""

from __future__ import annotations

import numpy as np
import torch
from gpu_counting import CountGPUWork, on_gpu, on_host
from layouts import layout
from test_assign_gmm import padded, random_set

from rankwise.assign import ATSS, PAA, Assigner, IoUThreshold, chunks
from rankwise.assign.gmm import fit_mixtures
from rankwise.types import Predictions

ASSIGNERS: list[tuple[Assigner, int]] = [
    (IoUThreshold(), 9),
    (IoUThreshold(0.6, 0.2, 0.25), 9),
    (ATSS(), 9),
    (PAA(), 3),
    (PAA(clustering="losses"), 1),
]


def assigners() -> None:
    """Same labels and matches, without a host sync, whatever the size of the pieces."""
    for assigner, seeds in ASSIGNERS:
        for seed in range(seeds):
            predictions, targets = layout(seed)
            expected = assigner(predictions, targets)
            chunks.PAIR_BUDGET["other"] = (64 << 20, 5000, 1)[seed % 3]
            with CountGPUWork() as work:
                tensors = (predictions.logits, predictions.boxes, predictions.anchors)
                found = assigner(Predictions(*map(on_gpu, tensors), predictions.level_sizes), targets)
            for name in ("labels", "matched", "unmatched"):
                assert torch.equal(on_host(getattr(found, name)), getattr(expected, name)), (assigner, seed, name)
            assert not work.syncs, work.report()


def mixtures() -> None:
    """The same fits as on a CPU, one launch for all."""
    rng = np.random.default_rng(1)
    values, valid = padded([random_set(kind, rng) for kind in range(20)])
    valid[7] = False
    expected = fit_mixtures(values, valid)
    with CountGPUWork() as work:
        found = fit_mixtures(on_gpu(values), on_gpu(valid))
    assert work.kernels == {"fit_set": 1}, work.report()
    assert torch.equal(on_host(found.converged), expected.converged)
    for name in ("weights", "means", "variances"):
        torch.testing.assert_close(on_host(getattr(found, name)), getattr(expected, name), rtol=1e-9, atol=1e-9)


if __name__ == "__main__":
    mixtures()
    assigners()
    print("equal")
