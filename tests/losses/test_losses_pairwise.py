"""Pairwise error: published values, explicit formulas, options, bad input."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pairwise_scenes import Scene, make_scene
from torch import Tensor

from rankwise.losses import (
    APELoss,
    APLoss,
    FocalLoss,
    PairwiseError,
    PELoss,
    PositiveVsNegative,
    Rank,
    Sigmoid,
    SigmoidCrossEntropy,
    Step,
    ValidNegatives,
)

VECTORS = json.loads((Path(__file__).parent / "ranking_losses.json").read_text())


@pytest.mark.parametrize("method", ["dense", "fast"])
@pytest.mark.parametrize("number", range(len(VECTORS)))
def test_published_values_are_reproduced(number, method):
    given = VECTORS[number]
    labels, quality = 1 - torch.tensor(given["positive"]), torch.tensor(given["quality"], dtype=torch.float64)
    scene = Scene(torch.tensor(given["logits"], dtype=torch.float64)[:, None], labels, quality, labels)
    losses = {"ape_": APELoss, "ap_i": APLoss}
    entries = {name: entry for name, entry in given["expected"].items() if name[:4] in losses}
    assert entries
    for name, entry in entries.items():
        value, gradient = scene.run(losses[name[:4]](**entry["params"], method=method))
        assert value.item() == pytest.approx(entry["loss"], rel=0, abs=1e-9)
        wanted = torch.tensor(entry["grad"], dtype=torch.float64)
        torch.testing.assert_close(gradient.flatten(), wanted, rtol=0, atol=1e-9)


def softly(z: Tensor) -> Tensor:
    return torch.nn.functional.softplus(z, threshold=50)


def test_ape_follows_the_formula_positive_by_positive():
    scene = make_scene(60, 2, 9, seed=3)
    logits = scene.logits.double().requires_grad_()
    is_positive = scene.labels[:, None] == torch.arange(2)
    p, n, q = logits[is_positive], logits[~is_positive], scene.quality[is_positive.any(1)]
    total = 0.0
    for u in range(len(p)):
        others = [v for v in range(len(p)) if v != u]
        rank = 0.5 + (8 * (p[others] - p[u])).sigmoid().sum() + (8 * (n - p[u])).sigmoid().sum()
        lower = [v for v in others if q[v] < q[u]]
        error = softly(8 * (n - p[u])).sum() / 8 + softly(8 * (p[lower] - p[u])).sum() / 8
        total = total + error / rank.detach()
    total = total / len(p)
    value, gradient = scene.run(APELoss())
    torch.testing.assert_close(value, total.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, torch.autograd.grad(total, logits)[0], rtol=0, atol=1e-12)


def test_plain_ap_loss_is_one_minus_the_mean_precision():
    scene = make_scene(80, 1, 12, spread=10.0, seed=1)  # so far apart that the step is one
    value, _ = scene.run(APLoss(delta=1e-6, interpolated=False))
    order = scene.logits[:, 0].argsort(descending=True)
    positive = scene.labels[order] == 0
    precision = positive.cumsum(0) / torch.arange(1, 81)
    assert value.item() == pytest.approx(1 - precision[positive].mean().item(), abs=1e-6)


def test_interpolated_ap_loss_uses_the_best_precision_at_or_below():
    scene = make_scene(80, 1, 12, spread=10.0, seed=1)
    order = scene.logits[:, 0].argsort(descending=True)
    positive = scene.labels[order] == 0
    precision = (positive.cumsum(0) / torch.arange(1, 81))[positive]
    best = precision.flip(0).cummax(0).values.flip(0)
    assert (best > precision).any()
    value, gradient = scene.run(APLoss(delta=1e-6))
    assert value.item() == pytest.approx(1 - best.mean().item(), abs=1e-6)
    torch.testing.assert_close(gradient[order, 0][positive], (best - 1).double() / 12, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_ape_with_equal_qualities_is_pe(dtype):
    scene = make_scene(200, 2, 20)
    scene.quality[:] = 0.7
    for a, b in zip(scene.run(APELoss(), dtype), scene.run(PELoss(), dtype), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("loss", [APELoss(), PELoss(), APLoss(delta=2.0), PairwiseError(Sigmoid(3.0))])
def test_the_loss_of_a_single_positive_decreases_with_its_logit(loss):
    scene = make_scene(300, 1, 1, gap=0.0)
    before = torch.inf
    for height in torch.linspace(-2, 2, 21):
        scene.logits[scene.labels == 0] = height
        value, gradient = scene.run(loss)
        assert value < before
        assert gradient[scene.labels == 0] < 0
        before = value


def test_pairs_with_large_errors_keep_their_gradient():
    logits = torch.tensor([[0.0], [50.0]], requires_grad=True)
    APELoss()(logits, torch.tensor([0, 1]), torch.tensor([0.5, 0.0])).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[-1.0], [1.0]]) / 1.5)


def test_a_single_positive_far_above_all_negatives_has_almost_no_gradient():
    logits = torch.cat([torch.full((1, 1), 6.0), torch.zeros(1000, 1)]).requires_grad_()
    labels = torch.tensor([0] + [1] * 1000)
    PELoss()(logits, labels).backward()
    assert 0 < -logits.grad[0] < 1e-15


def test_tiny_losses_are_accurate_to_the_last_digits():
    logits = torch.tensor([[3.0], [-2.0], [-2.5]])
    value = PELoss()(logits, torch.tensor([0, 1, 1]))
    z = torch.tensor([-5.0, -5.5], dtype=torch.float64) * 8
    expected = softly(z).sum() / 8 / (0.5 + z.sigmoid().sum())
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)


def test_valid_negatives_count_only_pairs_within_the_margin():
    logits = torch.tensor([[0.0], [-0.2], [-0.3], [1.0]], dtype=torch.float64)
    loss = PairwiseError(SigmoidCrossEntropy(), ValidNegatives(0.25), PositiveVsNegative())
    expected = softly(torch.tensor([-1.6, 8.0], dtype=torch.float64)).sum() / 8 / 2
    assert loss(logits, torch.tensor([0, 1, 1, 1])).item() == pytest.approx(expected.item(), rel=1e-12)


def test_a_positive_without_valid_pairs_has_no_error():
    logits = torch.tensor([[5.0], [-1.0]], requires_grad=True)
    value = PairwiseError(balance=ValidNegatives())(logits, torch.tensor([0, 1]), torch.ones(2))
    value.backward()
    assert value.item() == 0
    assert not logits.grad.any()


def test_the_cut_drops_pairs_below_it_and_keeps_one_at_it():
    logits = torch.tensor([[0.0], [-0.5], [-0.75]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 1])
    value = PELoss(cut=4.0)(logits, labels)
    value.backward()
    at = torch.tensor(-4.0, dtype=torch.float64)
    assert value.item() == pytest.approx((softly(at) / 8 / (0.5 + at.sigmoid())).item(), rel=1e-12)
    assert logits.grad[1] > 0
    assert logits.grad[2] == 0


@pytest.mark.parametrize("method", ["dense", "fast"])
def test_max_negatives_counts_the_highest(method):
    scene = make_scene(100, 3, 5, seed=4)
    negative = scene.labels[:, None] != torch.arange(3)
    least = scene.logits[negative].topk(20).values[-1]
    keep = ~negative | (scene.logits >= least)
    low = Scene(torch.where(keep, scene.logits, -1e4), scene.labels, scene.quality, scene.image)
    value, gradient = scene.run(APELoss(max_negatives=20, method=method))
    expected, wanted = low.run(APELoss(method="dense"))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, wanted, rtol=1e-8, atol=1e-12)
    assert (gradient[negative] != 0).sum() == 20


@pytest.mark.parametrize("method", ["dense", "fast"])
@pytest.mark.parametrize("together", [True, False])
def test_image_scope_ranks_each_image_separately_and_averages_over_positives(method, together):
    scene = make_scene(120, 2, 15, ignored=5, images=4, seed=6)
    if together:
        scene.image = scene.image.sort().values
    scene.labels[scene.image == 2] = 2  # an image without positives
    value, gradient = scene.run(APELoss(scope="image", method=method))
    number = int(((scene.labels >= 0) & (scene.labels < 2)).sum())
    expected, wanted = 0.0, torch.zeros_like(gradient)
    for image in range(4):
        rows = scene.image == image
        alone = Scene(scene.logits[rows], scene.labels[rows], scene.quality[rows], scene.image[rows])
        one, one_gradient = alone.run(APELoss(method="dense"))
        share = int(((alone.labels >= 0) & (alone.labels < 2)).sum()) / number
        expected = expected + one * share
        wanted[rows] = one_gradient * share
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, wanted, rtol=1e-8, atol=1e-12)


def test_world_scope_in_one_process_is_the_batch():
    scene = make_scene(50, 2, 5)
    for a, b in zip(scene.run(APELoss(scope="world")), scene.run(APELoss()), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("options", [{}, {"balance": ValidNegatives(0.1)}, {"distance": Step()}], ids=str)
def test_gradients_among_twenty_thousand_positives_are_those_of_their_pairs(options):
    """Of the positives of the highest quality: nobody else pushes these down."""
    scene = make_scene(30_000, 1, 20_000, spread=2.0)
    loss = PairwiseError(**options)
    _, gradient = scene.run(loss, torch.float32)
    positive = scene.labels == 0
    rows = scene.quality.where(positive, -1).topk(40).indices
    p, x, q = scene.logits[rows].double(), scene.logits[:, 0].double(), scene.quality
    assert len(q[rows].unique()) > 30
    pairs = (~positive | (q < q[rows, None])) & (x > p - (0.1 if "balance" in options else torch.inf))
    rank = loss.distance.rank(x - p)
    balance = pairs.sum(1).clamp(min=1) if "balance" in options else rank.sum(1)
    pushes = rank * pairs / balance[:, None] / 20_000
    expected = pushes[:, rows].sum(0) - pushes.sum(1)
    assert (pushes[:, rows].sum(0) > 0).sum() > 30
    torch.testing.assert_close(gradient[rows, 0].double(), expected, rtol=1e-5, atol=1e-9 * float(gradient.abs().max()))


@pytest.fixture(scope="module")
def peaks() -> dict[str, float]:
    """Peak memory of losses above their inputs, as multiples of the logits, in a process that has done nothing else."""
    script = Path(__file__).parent / "peak_memory.py"
    found = subprocess.run([sys.executable, str(script), "4"], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell")
def test_memory_stays_within_four_times_the_logits_with_twenty_thousand_positives(peaks):
    assert len(peaks) == 7
    assert all(1 <= peak < 4 for peak in peaks.values()), peaks  # the gradient alone is 1


def test_huge_and_tiny_logits_are_handled():
    logits = torch.tensor([[3e37], [-3e37], [1e-30], [1e30], [0.0]], requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 0])
    value, dense = PELoss()(logits, labels), PELoss(method="dense")(logits, labels)
    assert value.isfinite()
    torch.testing.assert_close(value, dense)
    gradients = [torch.autograd.grad(one, logits)[0] for one in (value, dense)]
    assert gradients[0].isfinite().all()
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("loss", [APELoss(), APLoss(), PairwiseError(balance=ValidNegatives(), scope="image")])
def test_in_place_changes_before_backward_are_detected(loss):
    scene = make_scene(40, 2, 4)
    leaf = scene.logits.clone().requires_grad_()
    logits = leaf * 1.0
    value = loss(logits, scene.labels, scene.quality, scene.image)
    logits.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_bad_input_is_an_error_that_says_what_to_do():
    scene = make_scene(40, 2, 4)
    with pytest.raises(ValueError, match="this loss needs the argument quality"):
        APELoss()(scene.logits, scene.labels)
    with pytest.raises(ValueError, match="image"):
        APELoss(scope="image")(scene.logits, scene.labels, scene.quality)
    bad = scene.quality.clone()
    row = int((scene.labels < 2).nonzero()[0])
    bad[row] = 1.5
    with pytest.raises(ValueError, match=rf"quality.*1\.5.*row {row}"):
        APELoss()(scene.logits, scene.labels, bad)


@pytest.mark.parametrize(
    "loss",
    [
        *(make(method=method) for make in (APELoss, APLoss) for method in ("numba", "torch", "dense")),
        *(PELoss(max_negatives=3), PELoss(cut=4.0)),
    ],
    ids=lambda loss: f"{type(loss).__name__}-{loss.method}",
)
@pytest.mark.parametrize("where", ["negative", "positive"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_are_found_wherever_they_are(loss, where, bad):
    scene = make_scene(40, 2, 4, ignored=3)
    wanted = {"negative": scene.labels == 2, "positive": (scene.labels == 0) | (scene.labels == 1)}
    row = int(wanted[where].nonzero()[0])
    column = int(scene.labels[row]) if where == "positive" else 1
    scene.logits[scene.labels == -1] = bad  # nobody reads ignored rows
    assert loss(scene.logits, scene.labels, scene.quality).isfinite()
    scene.logits[row, column] = bad
    with pytest.raises(ValueError, match=rf"logits.*\[{row}, {column}\]"):
        loss(scene.logits, scene.labels, scene.quality)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Step(0), "delta"),
        (lambda: Sigmoid(-1.0), "lam"),
        (lambda: SigmoidCrossEntropy(cut=0.0), "cut"),
        (lambda: ValidNegatives(-0.1), "margin"),
        (lambda: ValidNegatives(math.inf), "margin"),
        (lambda: Rank(-1.0), "own"),
        (lambda: APELoss(max_negatives=0), "max_negatives"),
        (lambda: APELoss(scope="planet"), "scope"),
        (lambda: APELoss(method="quick"), "method"),
        (lambda: PairwiseError(interpolated=True), "interpolated"),
    ],
)
def test_bad_options_are_an_error_that_names_them(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_class_in_place_of_a_distance_and_nan_are_errors_that_say_so():
    with pytest.raises(TypeError, match=r"distance must be an instance of a Distance, such as Step\(\), got <class"):
        PairwiseError(Step)
    for value in (math.nan, math.inf):
        with pytest.raises(TypeError, match=f"FocalLoss: gamma must be a finite number, got {value}"):
            FocalLoss(gamma=value)
