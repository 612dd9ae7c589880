"""Scope "world": several processes equal one process with the whole batch."""

import multiprocessing
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed import destroy_process_group, init_process_group
from torch.multiprocessing.spawn import start_processes

from rankwise.losses import (
    AdaptivePairs,
    APELoss,
    APLoss,
    PairwiseError,
    PELoss,
    Sigmoid,
    ValidNegatives,
)

ROWS, CLASSES = 240, 3

#: Where each process's rows end, by the number of processes: uneven, and one process has no rows at all.
SPLITS = {2: [60, 240], 3: [60, 100, 240], 4: [60, 60, 200, 240]}

LOSSES = {
    "APE": lambda **options: APELoss(**options),
    "APE by quality": lambda **options: APELoss(weight_by_quality=True, **options),
    "AP": lambda **options: APLoss(**options),
    "PE": lambda **options: PELoss(**options),
    "PE of few": lambda **options: PELoss(max_negatives=40, **options),
    "valid": lambda **options: PairwiseError(Sigmoid(5.0), ValidNegatives(), AdaptivePairs(), **options),
    "dense": lambda **options: APELoss(method="dense", **options),
}


def scene(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Some ignored rows; no positives in the first 60; in "empty" none at all, in "float32" and "ties" as it says."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64)
    labels = torch.full((ROWS,), CLASSES)
    labels[60 + torch.randperm(180, generator=generator)[:40]] = torch.randint(0, 3, (40,), generator=generator)
    labels[torch.randperm(ROWS, generator=generator)[:20]] = -1
    if name == "empty":
        labels = torch.where(labels >= 0, CLASSES, -1)
    if name == "ties":
        logits = logits.round()
    return logits.float() if name == "float32" else logits, labels, torch.rand(ROWS, generator=generator)


def run(loss: PairwiseError, name: str, part: slice) -> tuple[Tensor, Tensor]:
    logits, labels, quality = (value[part] for value in scene(name))
    logits = logits.clone().requires_grad_()
    value = loss(logits, labels, quality)
    return value.detach(), torch.autograd.grad(value, logits)[0]


def process(rank: int, folder: str) -> None:
    """Take part in each number of processes in turn; save all results."""
    torch.set_num_threads(1)
    for number, ends in SPLITS.items():
        if rank >= number:
            continue
        init_process_group("gloo", init_method=f"file://{folder}/meet{number}", rank=rank, world_size=number)
        part = slice(ends[rank - 1] if rank else 0, ends[rank])
        results: dict = {
            (name, of): run(make(scope="world"), of, part)
            for name, make in LOSSES.items()
            for of in ("plain", "empty", "float32", "ties")
        }
        results["mistakes"] = mistakes(rank, part)
        results["sent"] = sent()
        torch.save(results, Path(folder) / f"{number}-{rank}.pt")
        destroy_process_group()


def mistakes(rank: int, part: slice) -> list[str]:
    """What each process is told if only the first has NaN, a bad label, a NaN at a positive."""
    told = []
    for number in range(3):
        logits, labels, quality = (value[part].clone() for value in scene("plain"))
        if rank == 0:
            labels[:2] = torch.tensor([CLASSES, 0 if number == 2 else CLASSES])
            if number == 1:
                labels[5] = 9
            else:
                logits[1, 0] = torch.nan
        try:
            APELoss(scope="world")(logits, labels, quality)
        except ValueError as error:
            told.append(str(error))
    return told


def sent() -> int:
    """Bytes that a process hands to the others in a step with 2,000 positives."""
    total = 0

    def counting(function):
        def called(*args):
            nonlocal total
            total += sum(value.nbytes for value in args if isinstance(value, Tensor))
            return function(*args)

        return called

    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_gather", "all_reduce"):
            patch.setattr(distributed, name, counting(getattr(distributed, name)))
        logits = torch.randn(3000, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
        labels = torch.full((3000,), 4)
        labels[:2000] = 1
        APELoss(scope="world")(logits, labels, torch.rand(3000)).backward()
    return total


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[int, list[dict]]:
    folder = tmp_path_factory.mktemp("world")
    multiprocessing.set_forkserver_preload(["torch", "rankwise.losses"])  # imported once, not by each process
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    start_processes(process, (str(folder),), nprocs=max(SPLITS), start_method="forkserver")
    return {number: [torch.load(folder / f"{number}-{rank}.pt") for rank in range(number)] for number in SPLITS}


@pytest.mark.parametrize("number", SPLITS)
@pytest.mark.parametrize("of", ["plain", "empty", "float32", "ties"])
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradients_equal_those_of_one_process(name, of, number, results):
    value, gradient = run(LOSSES[name](), of, slice(None))
    assert (value > 0) == (of != "empty")
    for result in results[number]:
        torch.testing.assert_close(result[name, of][0], value, rtol=1e-6, atol=0)
    averaged = torch.cat([result[name, of][1] for result in results[number]]) / number
    if name == "PE of few" and of == "ties":  # of equal negatives at the end of the row any may be taken
        averaged, gradient = averaged.flatten().sort().values, gradient.flatten().sort().values
    assert (averaged - gradient).norm() <= 1e-6 * gradient.norm()


@pytest.mark.parametrize("number", SPLITS)
def test_a_mistake_in_one_process_is_an_error_in_all_of_them(number, results):
    nan, label, positive = results[number][0]["mistakes"]
    assert "[1, 0]" in nan
    assert "[1, 0]" in positive
    assert "9 in row 5" in label
    for result in results[number][1:]:
        assert len(result["mistakes"]) == 3
        assert all("another process" in message for message in result["mistakes"])


def test_a_step_sends_less_than_a_megabyte(results):
    for result in results[2]:
        assert 1000 < result["sent"] < 1e6
