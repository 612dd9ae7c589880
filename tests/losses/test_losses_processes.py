"""Losses in several processes: averaged as DDP does, they are those of one process with the whole batch."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed import all_reduce, destroy_process_group, init_process_group
from torch.multiprocessing.spawn import spawn

from rankwise.losses import (
    ALRPLoss,
    FocalLoss,
    GHMLoss,
    Loss,
    PositiveBoxes,
    QualityFocalLoss,
    VarifocalLoss,
)

LOSSES = [FocalLoss, QualityFocalLoss, VarifocalLoss, GHMLoss]
#: Rows of the two processes: uneven, and the positives are all in the first.
SPLIT = 70


def scene() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(100, 3, generator=generator, dtype=torch.float64)
    labels = torch.full((100,), 3)
    labels[:12] = torch.randint(0, 3, (12,), generator=generator)
    return logits, labels, torch.rand(100, generator=generator, dtype=torch.float64)


def run(loss: Loss, part: slice) -> tuple[Tensor, Tensor]:
    logits, labels, quality = (value[part] for value in scene())
    logits = logits.clone().requires_grad_()
    value = loss(logits, labels, quality)
    return value.detach(), torch.autograd.grad(value, logits)[0]


def process(rank: int, folder: str) -> None:
    init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    part = slice(0, SPLIT) if rank == 0 else slice(SPLIT, 100)
    results = {}
    for make in LOSSES:
        value, gradient = run(make(), part)
        all_reduce(value)
        results[make.__name__] = (value / 2, gradient / 2)
    balanced = ALRPLoss()
    logits, labels, quality = (value[part] for value in scene())
    outcome = balanced.outcome(logits, labels, quality)
    positives = int((labels < 3).sum())
    box = balanced.box_loss(PositiveBoxes(torch.rand(positives), torch.ones(positives)), outcome)
    results["balance"] = (balanced.balance(), box)
    torch.save(results, Path(folder) / f"{rank}.pt")
    destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict[str, tuple[Tensor, Tensor]]]:
    folder = tmp_path_factory.mktemp("processes")
    spawn(process, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("make", LOSSES)
def test_two_processes_are_one_with_the_whole_batch(make, results):
    value, gradient = run(make(), slice(None))
    for result in results:
        torch.testing.assert_close(result[make.__name__][0], value)
    both = torch.cat([result[make.__name__][1] for result in results])
    torch.testing.assert_close(both, gradient, rtol=1e-9, atol=1e-12)


def test_alrp_balance_is_the_same_in_all_processes_and_that_of_those_with_positives(results):
    assert results[0]["balance"][0] == results[1]["balance"][0]
    assert results[0]["balance"][0] > 1
    assert results[1]["balance"][1] == 0
