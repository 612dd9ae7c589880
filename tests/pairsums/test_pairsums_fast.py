"""The fast sums over pairs against the definition, and the passes under them."""

import threading

import pytest
import torch
from torch import Tensor

from rankwise.pairsums import (
    DensePairSums,
    FastPairSums,
    Negatives,
    NotFiniteError,
    Sigmoid,
    SigmoidCrossEntropy,
    Step,
    error_driven,
    fast,
    pair_sums,
    passes,
    sigmoid,
    threads,
)
from rankwise.pairsums.cells import Cells
from rankwise.pairsums.expansion import expansion

DISTANCES = [Step(0.5), Sigmoid(8.0), SigmoidCrossEntropy(8.0), SigmoidCrossEntropy(5.0)]
SKIP = torch.tensor([[0, 1], [3, 5], [5, 9], [1990, 2000]])


def normal(number: int, mean: float = 0.0, deviation: float = 1.0, seed: int = 0) -> Tensor:
    return torch.randn(number, generator=torch.Generator().manual_seed(seed)) * deviation + mean


def both(negatives: Tensor, positives: Tensor, distance, floor: float | None = None) -> tuple:
    """Fast and dense sums over the same samples, some of them skipped."""
    given = Negatives(negatives, skip=SKIP)
    lowest = None if floor is None else positives.double() - floor
    return FastPairSums(given, positives, distance, lowest), DensePairSums(given, positives, distance, lowest)


@pytest.fixture(params=[True, False], ids=["compiled", "torch"])
def compiled(request, monkeypatch) -> bool:
    monkeypatch.setattr(passes, "use_compiled", request.param)
    return request.param


PLACES = {
    "middle of training": (normal(2000, -6, 1.2), normal(40, -2, 1.5, seed=1)),
    "end of training": (normal(2000, -8, 1.5), normal(40, 0, 1.5, seed=1)),
    "negatives far above": (normal(2000, 40, 2), normal(40, 0, 1, seed=1)),
    "one positive": (normal(2000), normal(1)),
    "all equal": (torch.full((2000,), -4.6), torch.full((40,), -4.6)),
    "hundreds apart": (normal(2000, 0, 300), normal(40, 0, 300, seed=1)),
    "millions apart": (normal(2000, 0, 3e6), normal(40, 0, 3e6, seed=1)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("distance", DISTANCES, ids=str)
@pytest.mark.parametrize("floor", [None, 0.0, 0.7, 6.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_every_single_sum_is_that_of_the_pairs(place, distance, floor, dtype, compiled):
    quick, plain = both(*(x.to(dtype) for x in PLACES[place]), distance, floor)
    rtol = 1e-7 if dtype == torch.float32 else 1e-12
    atol = 1e-45 if dtype == torch.float32 else 1e-300  # far below all positives e^(λz) is 0
    for a, b in zip(quick.over_negatives(), plain.over_negatives(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
    for a, b in zip(quick.over_positives(), plain.over_positives(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("distance", DISTANCES, ids=str)
@pytest.mark.parametrize("floor", [None, 0.7])
def test_what_is_read_back_is_that_of_the_pairs(place, distance, floor, compiled):
    quick, plain = both(*PLACES[place], distance, floor)
    weights = torch.rand(len(quick.positives), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    got, wanted = torch.full((2000,), torch.nan), torch.zeros(2000)
    quick.read_back(weights, got)
    plain.read_back(weights, wanted)
    assert (got[Negatives(got, skip=SKIP).skipped()] == 0).all()
    assert (got - wanted).norm() <= 2e-7 * wanted.norm()


@pytest.mark.parametrize("distance", DISTANCES, ids=str)
@pytest.mark.parametrize("floor", [None, 0.7])
@pytest.mark.parametrize("spread", [1.0, 500.0])
def test_sums_by_quality_are_those_of_the_pairs(distance, floor, spread, compiled, monkeypatch):
    monkeypatch.setattr(fast, "FEW", 0)
    positives = normal(600, deviation=spread, seed=3).double()
    quality = (torch.rand(600, generator=torch.Generator().manual_seed(4)) * 50).round() / 50
    values = torch.rand(600, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    lowest = None if floor is None else positives - floor
    none = Negatives(positives[:0])
    quick, plain = (kind(none, positives, distance, lowest) for kind in (FastPairSums, DensePairSums))
    for a, b in zip(quick.over_positives(quality, values), plain.over_positives(quality, values), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    for given in (quality, None):
        back = quick.read_back_positives(values, given), plain.read_back_positives(values, given)
        torch.testing.assert_close(*back, rtol=1e-10, atol=1e-10)


def test_read_back_is_the_transpose_of_the_sums(compiled):
    quick, _ = both(normal(2000, -3), normal(50, seed=1), Sigmoid(8.0))
    weights = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    out = torch.empty(2000)
    quick.read_back(weights, out)
    assert out.double().sum().item() == pytest.approx((weights @ quick.over_negatives().rank).item(), rel=1e-7)


def test_compiled_and_plain_passes_agree_bit_by_bit_on_the_cells(monkeypatch):
    edges = normal(50, seed=7).double().sort().values
    for cells in (
        Cells(64.0, (-300.0,), (250.0,), 3),
        Cells(2.0, (-30.0, 10.0, 500.0), (-5.0, 20.0, 600.0), 5),
        Cells(1.0, (0.0,), (0.0,), 1, edges),
        Cells(4.0, (-9.0,), (8.0,), 2, edges),
    ):
        x = torch.cat([normal(500, 0, 3), edges.float(), torch.tensor([1e30, -1e30, 0.0, 250.0, 40.0])])
        sums = []
        for use in (True, False):
            monkeypatch.setattr(passes, "use_compiled", use)
            sums.append(passes.moments(Negatives(x), cells))
        assert torch.equal(sums[0][:, 0], sums[1][:, 0])
        torch.testing.assert_close(sums[0], sums[1], rtol=1e-6, atol=1e-9)
        assert int(sums[0][:, 0].sum()) == x.numel()


def test_every_number_is_in_the_cell_whose_bounds_hold_it():
    edges = torch.tensor([-0.25, 0.125, 0.125, 0.625], dtype=torch.float64)
    cells = Cells(2.0, (-4.0, 10.0), (3.0, 12.0), 1, edges)
    x = torch.tensor([-9.0, -2.0, -0.25, -0.2, 0.125, 0.13, 4.9, 5.0, 6.2, 90.0])
    index, place = cells.locate(x)
    assert index.tolist() == [0, 0, 3, 4, 5, 7, 11, 12, 14, 14]
    assert place[4].item() == 0.25 - 0.5
    assert place[-1].item() == 180 - 12 - 0.5
    assert cells.size == 8 + 3 + 4


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_number_of_threads_changes_nothing_but_rounding(count, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    negatives, positives = normal(400_000, -6, 1.2), normal(60, -2, seed=1)
    skip = torch.stack([torch.arange(0, 400_000, 977), torch.arange(0, 400_000, 977) + 3], 1)
    sums = FastPairSums(Negatives(negatives, skip=skip), positives, SigmoidCrossEntropy(8.0))
    got = sums.over_negatives()
    again = sums.over_negatives()
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
    monkeypatch.setattr(passes, "use_compiled", False)
    for a, b in zip(got, sums.over_negatives(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


def test_passes_may_run_in_several_threads_at_once():
    sums = FastPairSums(Negatives(normal(300_000, -3)), normal(50, seed=1), Sigmoid(8.0))
    wanted = sums.over_negatives().rank
    got = [torch.empty(0)] * 8

    def work(number: int) -> None:
        got[number] = sums.over_negatives().rank

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(torch.equal(rank, wanted) for rank in got)


def test_parts_cover_the_whole_range_in_order(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert threads.in_parts(lambda begin, end: (begin, end), 10, 1) == [(0, 3), (3, 6), (6, 10)]
    assert threads.in_parts(lambda begin, end: (begin, end), 10, 6) == [(0, 10)]


def test_positives_too_far_apart_for_any_lattice_are_summed_pair_by_pair():
    positives = torch.tensor([-3e30, 0.0, 1e20])
    negatives = Negatives(torch.tensor([1.0, -5.0, 1e25]))
    sums = pair_sums(negatives, positives, SigmoidCrossEntropy(8.0))
    assert isinstance(sums, DensePairSums)
    assert sums.over_negatives().rank.tolist()[::2] == [3.0, 1.0]


def test_lattice_is_kept_only_near_positives(monkeypatch):
    cells = sigmoid.SigmoidCells(torch.tensor([0.0, 1e5], dtype=torch.float64), Sigmoid(8.0), torch.float32)
    assert len(cells.lattice.low) == 2
    assert cells.size < 400
    monkeypatch.setattr(sigmoid, "MOST_CELLS", 100)
    with pytest.raises(sigmoid.TooWideError):
        sigmoid.SigmoidCells(torch.tensor([0.0, 1e5], dtype=torch.float64), Sigmoid(8.0), torch.float32)


@pytest.mark.parametrize("precision", sigmoid.PRECISION.values(), ids=["float32", "float64"])
def test_polynomials_between_cells_are_as_exact_as_promised(precision):
    tolerance = 1e-8 if precision.part_degree == 3 else 1e-13
    given = expansion(precision.width, precision.degree, 3, torch.device("cpu"))
    f, g = torch.rand(2, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.5
    powers = torch.arange(precision.degree + 1)
    for offset in range(-3, 4):
        z = precision.width * (offset + f - g)
        for matrix, function in ((given.rank, torch.sigmoid), (given.error, torch.nn.functional.softplus)):
            value = torch.einsum("na,ab,nb->n", f[:, None] ** powers, matrix[offset + 3], g[:, None] ** powers)
            torch.testing.assert_close(value, function(z), rtol=tolerance, atol=0)


def test_not_finite_numbers_are_found_with_their_place(compiled):
    values = normal(300)
    values[77] = torch.inf
    sums = FastPairSums(Negatives(values, start=30, columns=10), normal(3), Step(0.5))
    with pytest.raises(NotFiniteError, match=r"1 of 300.*\[10, 7\]"):
        sums.over_negatives()


def test_error_driven_gives_the_gradient_it_was_told():
    logits = normal(12).view(3, 4).requires_grad_()
    flat = logits.detach().flatten()
    negatives = Negatives(flat, skip=torch.tensor([[2, 3], [7, 8]]))
    sums = pair_sums(negatives, flat[[2, 7]], Step(0.5))
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    loss = error_driven(logits, torch.tensor(5.0), [(sums, weights)], torch.tensor([2, 7]), torch.tensor([-1.0, -2.0]))
    (2 * loss).backward()
    wanted = torch.zeros(12)
    DensePairSums(negatives, flat[[2, 7]], Step(0.5)).read_back(2 * weights, wanted)
    wanted[[2, 7]] = torch.tensor([-2.0, -4.0])
    assert loss.item() == 5.0
    torch.testing.assert_close(logits.grad.flatten(), wanted)


def test_picked_negatives_remember_their_places():
    negatives = Negatives(torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0]), start=10, skip=torch.tensor([[0, 1], [3, 4]]))
    picked = negatives.picked()
    assert picked.values.tolist() == [1.0, 4.0, 3.0]
    assert picked.index.tolist() == [11, 12, 14]
    assert picked.at(torch.tensor([2, 0])).index.tolist() == [14, 11]
