"""Losses in several processes, averaged as in DDP, equal one process with the whole batch."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed import all_reduce, destroy_process_group, init_process_group
from torch.multiprocessing.spawn import start_processes

from rankwise.losses import (
    ALRPLoss,
    FocalLoss,
    GHMLoss,
    Loss,
    Outcome,
    PositiveBoxes,
    QualityFocalLoss,
    RankSortLoss,
    VarifocalLoss,
)

LOSSES = {
    "focal": FocalLoss,
    "quality": QualityFocalLoss,
    "varifocal": VarifocalLoss,
    "ghm": GHMLoss,
    "ranksort": lambda: RankSortLoss(scope="world"),
    "alrp": lambda: ALRPLoss(scope="world"),
}
#: The first rows are the first process's, the rest the second's.
SPLIT = 70
#: Rows of the positives: in both processes, in one, in none.
POSITIVES = {"both": [*range(9), 70, 75, 99], "one": list(range(12)), "none": []}


def scene(where: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, labels, quality and box errors."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(100, 3, generator=generator, dtype=torch.float64)
    labels = torch.full((100,), 3)
    rows = POSITIVES[where]
    labels[rows] = torch.randint(0, 3, (len(rows),), generator=generator)
    return logits, labels, *torch.rand(2, 100, generator=generator, dtype=torch.float64)


def run(loss: Loss, where: str, part: slice) -> dict[str, Tensor]:
    """Loss and box loss of some of the rows, with their gradients."""
    logits, labels, quality, errors = (value[part] for value in scene(where))
    logits, errors = logits.clone().requires_grad_(), errors.clone().requires_grad_()
    outcome: Outcome = loss.outcome(logits, labels, quality)
    mine = errors[labels < 3]
    box = loss.box_loss(PositiveBoxes(mine, torch.ones_like(mine)), outcome)
    result = {"loss": outcome.loss.detach(), "box": box.detach()}
    result["gradient"] = torch.autograd.grad(outcome.loss, logits)[0]
    result["box gradient"] = torch.autograd.grad(box, errors)[0]
    return result


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    part = slice(0, SPLIT) if rank == 0 else slice(SPLIT, 100)
    results = {}
    for name, make in LOSSES.items():
        for where in POSITIVES:
            result = run(make(), where, part)
            for value in (result["loss"], result["box"]):
                all_reduce(value)
            results[name, where] = {key: value / 2 for key, value in result.items()}
    torch.save(results, Path(folder) / f"{rank}.pt")
    destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict[tuple[str, str], dict[str, Tensor]]]:
    folder = tmp_path_factory.mktemp("processes")
    start_processes(process, (str(folder),), nprocs=2, start_method="fork")  # which needs no imports
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("where", POSITIVES)
@pytest.mark.parametrize("name", LOSSES)
def test_two_processes_equal_one_with_the_whole_batch(name, where, results):
    expected = run(LOSSES[name](), where, slice(None))
    parts = [result[name, where] for result in results]
    for key in ("loss", "box"):
        torch.testing.assert_close(parts[0][key], expected[key], rtol=1e-9, atol=1e-12)
    for key in ("gradient", "box gradient"):
        both = torch.cat([part[key] for part in parts])
        torch.testing.assert_close(both, expected[key], rtol=1e-8, atol=1e-12)
