"""RankSort, aLRP and RankDet against published values and plain definitions, and fast against dense."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rankwise.losses import ALRPLoss, APELoss, PositiveBoxes, RankDetLoss, RankSortLoss

SCENES = json.loads((Path(__file__).parent / "ranking_losses.json").read_text())
METHODS = ["dense", "fast"]


def scene(
    rows: int = 400, classes: int = 3, positives: int = 30, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, labels, quality, image; a few rows ignored, some qualities and logits tied."""
    generator = torch.Generator().manual_seed(seed)
    logits = (1.5 * torch.randn(rows, classes, dtype=torch.float64, generator=generator)).to(dtype)
    labels = torch.full((rows,), classes)
    order = torch.randperm(rows, generator=generator)
    labels[order[:positives]] = torch.randint(0, classes, (positives,), generator=generator)
    labels[order[positives : positives + 10]] = -1
    quality = (torch.rand(rows, dtype=torch.float64, generator=generator) * 20).round() / 20
    logits[order[1]] = logits[order[0]]
    image = torch.randint(0, 4, (rows,), generator=generator)
    return logits.requires_grad_(), labels, quality.to(dtype), image


def split(logits: Tensor, labels: Tensor, quality: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Positives' logits and qualities, and negatives' logits, attached to ``logits``."""
    positive = labels[:, None] == torch.arange(logits.shape[1])
    negative = ~positive & (labels >= 0)[:, None]
    return logits[positive], quality[positive.any(1)], logits[negative]


def step(z: Tensor, delta: float) -> Tensor:
    return (z / (2 * delta) + 0.5).clamp(0, 1)


def gradient_of(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", range(len(SCENES)))
def test_published_values_are_reproduced(number, method):
    given = SCENES[number]
    logits = torch.tensor(given["logits"], dtype=torch.float64)[:, None].requires_grad_()
    labels = 1 - torch.tensor(given["positive"])
    quality = torch.tensor(given["quality"], dtype=torch.float64)
    checked = 0
    for name, expected in given["expected"].items():
        delta = expected["params"].get("delta")
        if name.startswith("ranksort"):
            outcome = RankSortLoss(delta, method=method).outcome(logits, labels, quality)
            for part in ("ranking", "sorting"):
                assert float(outcome.parts[part]) == pytest.approx(expected["parts"][part], abs=1e-9)
        elif name.startswith("alrp"):
            outcome = ALRPLoss(delta, method=method).outcome(logits, labels, quality)
        else:
            continue
        assert outcome.loss.item() == pytest.approx(expected["loss"], abs=1e-9)
        wanted = torch.tensor(expected["grad"], dtype=torch.float64)
        torch.testing.assert_close(gradient_of(outcome.loss, logits).flatten(), wanted, rtol=0, atol=1e-9)
        checked += 1
    assert checked >= 2


def test_ranksort_follows_the_definition_positive_by_positive():
    logits, labels, quality, _ = scene()
    p, q, n = split(logits, labels, quality)
    ranking, sorting, pull_p, push_n = 0.0, 0.0, torch.zeros_like(p), torch.zeros_like(n)
    for u in range(len(p)):
        above, higher = step(n - p[u], 0.5), step(p - p[u], 0.5)
        ranking_error = above.sum() / (above.sum() + higher.sum())
        target = (q >= q[u]) * higher
        sorting_error = (higher * (1 - q)).sum() / higher.sum() - (target * (1 - q)).sum() / target.sum()
        ranking, sorting = ranking + ranking_error / len(p), sorting + sorting_error / len(p)
        pull_p[u] -= ranking_error.detach()
        push_n += (above / above.sum() * ranking_error).detach()
        missorted = (q < q[u]) * higher
        if missorted.sum() > 0:
            pull_p[u] -= sorting_error.detach()
            pull_p = pull_p + (missorted / missorted.sum() * sorting_error).detach()
    outcome = RankSortLoss().outcome(logits, labels, quality)
    torch.testing.assert_close(outcome.parts["ranking"], ranking.detach())
    torch.testing.assert_close(outcome.parts["sorting"], sorting.detach())
    surrogate = ((pull_p.detach() * p).sum() + (push_n * n).sum()) / len(p)
    wanted = gradient_of(surrogate, logits)
    torch.testing.assert_close(gradient_of(outcome.loss, logits), wanted, rtol=1e-7, atol=1e-10)


def test_alrp_follows_the_definition_positive_by_positive():
    logits, labels, quality, _ = scene()
    p, q, n = split(logits, labels, quality)
    loss, pull_p, push_n = 0.0, torch.zeros_like(p), torch.zeros_like(n)
    box_weights, others = torch.zeros_like(p), ~torch.eye(len(p), dtype=torch.bool)
    for u in range(len(p)):
        above, higher = step(n - p[u], 1.0), step(p - p[u], 1.0) * others[u]
        rank = 1 + higher.sum() + above.sum()
        loss = loss + above.sum() / rank / len(p)
        pulled = (above.sum() + (higher * (1 - q)).sum()) / rank / len(p)
        pull_p[u] = -pulled.detach()
        push_n += (above / above.sum() * pulled).detach()
        box_weights = box_weights + ((higher + ~others[u]) / rank / len(p)).detach()
    outcome = ALRPLoss().outcome(logits, labels, quality)
    torch.testing.assert_close(outcome.loss, loss)
    torch.testing.assert_close(outcome.box_weights, box_weights, rtol=1e-9, atol=1e-12)
    wanted = gradient_of((pull_p.detach() * p).sum() + (push_n * n).sum(), logits)
    torch.testing.assert_close(gradient_of(outcome.loss, logits), wanted, rtol=1e-7, atol=1e-10)


def test_rankdet_refuses_the_name_of_an_engine_that_it_does_not_use():
    with pytest.raises(ValueError, match="method must be one of fast, dense, got 'numba'"):
        RankDetLoss(method="numba")


@pytest.mark.parametrize("method", METHODS)
def test_rankdet_follows_the_definition_pair_by_pair(method):
    logits, labels, quality, _ = scene()
    p, q, n = split(logits, labels, quality)
    f, negative = p.sigmoid(), n.sigmoid()
    region = (negative * 100).int().clamp(max=99)
    means = torch.stack([negative[region == g].mean() for g in range(100) if (region == g).any()])
    errors = torch.exp(means - f[:, None])
    ranking = ((errors / errors.sum()).detach() * errors).sum()
    kinds = labels[(labels >= 0) & (labels < logits.shape[1])]
    pairs = [(i, j) for i in range(len(p)) for j in range(len(p)) if i != j and kinds[i] == kinds[j]]
    first, second = torch.tensor(pairs).T
    errors = torch.exp(-(f[first] - f[second]) * (q[first] - q[second]))
    guided = ((errors / errors.sum()).detach() * errors).sum()
    outcome = RankDetLoss(method=method).outcome(logits, labels, quality)
    torch.testing.assert_close(outcome.parts["ranking"], ranking.detach())
    torch.testing.assert_close(outcome.parts["iou_guided"], guided.detach())
    wanted = gradient_of(ranking + guided, logits)
    torch.testing.assert_close(gradient_of(outcome.loss, logits), wanted, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rankdet_groups_a_logit_next_to_an_edge_by_its_sign_although_its_score_rounds_to_the_edge(dtype):
    logits = torch.tensor([[1.0], [-1.2e-7], [2.0], [-2.0]], dtype=dtype)
    labels, quality = torch.tensor([0, 1, 1, 1]), torch.ones(4)
    means = torch.stack([(torch.sigmoid(torch.tensor(-2.0)) + 0.5) / 2, torch.sigmoid(torch.tensor(2.0))])
    errors = torch.exp(means - torch.sigmoid(torch.tensor(1.0)))
    wanted = errors.square().sum() / errors.sum()
    assert float(RankDetLoss(groups=2)(logits, labels, quality)) == pytest.approx(float(wanted), abs=1e-3)


def test_rankdet_has_no_sorting_term_if_no_two_positives_share_a_class():
    logits = torch.randn(4, 2, requires_grad=True)
    outcome = RankDetLoss().outcome(logits, torch.tensor([0, 1, 2, 2]), torch.tensor([0.2, 0.9, 0.0, 0.0]))
    assert float(outcome.parts["iou_guided"]) == 0


@pytest.mark.parametrize("make", [RankSortLoss, ALRPLoss, RankDetLoss])
@pytest.mark.parametrize(
    ("dtype", "value", "slope"), [(torch.float64, 1e-9, 1e-8), (torch.float32, 1e-6, 1e-5)], ids=["float64", "float32"]
)
@pytest.mark.parametrize(("positives", "seed"), [(1, 0), (2, 1), (30, 2), (300, 3)])
def test_fast_equals_dense(make, dtype, value, slope, positives, seed):
    logits, labels, quality, _ = scene(rows=700, positives=positives, seed=seed, dtype=dtype)
    fast, dense = make(method="fast"), make(method="dense")
    got = fast.outcome(logits, labels, quality)
    expected = dense.outcome(logits.detach().double().requires_grad_(), labels, quality.double())
    assert got.loss.item() == pytest.approx(expected.loss.item(), rel=value)
    wanted = logits.detach().double().requires_grad_()
    wanted = gradient_of(dense(wanted, labels, quality.double()), wanted)
    assert (gradient_of(got.loss, logits) - wanted).norm() <= slope * wanted.norm()
    if expected.box_weights is not None:
        torch.testing.assert_close(got.box_weights.double(), expected.box_weights, rtol=1e-5, atol=1e-9)


def outliers(logits: Tensor) -> Tensor:
    """The same, with two of the negatives very far away."""
    logits = logits.clone()
    logits[-1, 0], logits[-2, 0] = 1e20, -1e20
    return logits


AWKWARD = {
    "logits over thousands": lambda logits, quality: (2000 * logits, quality),
    "all logits equal": lambda logits, quality: (0 * logits - 4.6, quality),
    "few different logits": lambda logits, quality: (logits.round(), quality),
    "all qualities equal": lambda logits, quality: (logits, 0 * quality + 0.5),
    "qualities 0 and 1": lambda logits, quality: (logits, quality.round()),
    "far from zero": lambda logits, quality: (logits + 5000, quality),
    "one far above and one far below": lambda logits, quality: (outliers(logits), quality),
    "near each other": lambda logits, quality: (1e-3 * logits - 4.6, quality),
}


@pytest.mark.parametrize("make", [RankSortLoss, ALRPLoss, RankDetLoss])
@pytest.mark.parametrize("kind", AWKWARD)
def test_fast_equals_dense_in_corner_cases(make, kind):
    logits, labels, quality, _ = scene(positives=120, seed=4)
    logits, quality = AWKWARD[kind](logits.detach(), quality)
    logits.requires_grad_()
    fast, dense = make(method="fast")(logits, labels, quality), make(method="dense")(logits, labels, quality)
    assert fast.item() == pytest.approx(dense.item(), rel=1e-9, abs=1e-12)
    got, wanted = gradient_of(fast, logits), gradient_of(dense, logits)
    assert (got - wanted).norm() <= 1e-8 * wanted.norm() + 1e-12


@pytest.mark.parametrize("make", [RankSortLoss, ALRPLoss])
@pytest.mark.parametrize("positives", [120, 1100])
def test_the_result_is_the_same_without_numba(make, positives):
    logits, labels, quality, _ = scene(rows=1500, positives=positives, seed=5)
    expected = make(method="dense")(logits, labels, quality)
    value = make(method="torch")(logits, labels, quality)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    wanted = gradient_of(expected, logits)
    assert (gradient_of(value, logits) - wanted).norm() <= 1e-8 * wanted.norm()


@pytest.mark.parametrize("make", [RankSortLoss, ALRPLoss])
@pytest.mark.parametrize("method", METHODS)
def test_image_scope_is_the_mean_over_positives_of_separate_images(make, method):
    logits, labels, quality, image = scene()
    labels[image == 2] = 3  # one image without positives
    got = make(scope="image", method=method).outcome(logits, labels, quality, image)
    total, weights = 0.0, torch.zeros(len(labels), dtype=torch.float64)
    positive = (labels >= 0) & (labels < 3)
    for number in range(4):
        of = image == number
        single = make().outcome(logits[of], labels[of], quality[of])
        share = (positive & of).double().sum() / positive.sum()
        total = total + single.loss * share
        if single.box_weights is not None:
            weights[positive & of] = single.box_weights * share
    torch.testing.assert_close(got.loss, total)
    torch.testing.assert_close(gradient_of(got.loss, logits), gradient_of(total, logits), rtol=1e-9, atol=1e-12)
    if got.box_weights is not None:
        torch.testing.assert_close(got.box_weights, weights[positive], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [APELoss, RankSortLoss, ALRPLoss])
@pytest.mark.parametrize("method", METHODS)
def test_class_scope_is_the_mean_over_positives_of_separate_classes(make, method):
    logits, labels, quality, _ = scene()
    labels[labels == 1] = 3  # one class without positives
    got = make(scope="class", method=method).outcome(logits, labels, quality)
    total, weights = 0.0, torch.zeros(len(labels), dtype=torch.float64)
    positive = (labels >= 0) & (labels < 3)
    for number in range(3):
        of = labels == number
        alone = torch.where(of, 0, torch.where(labels < 0, -1, 1))
        single = make(method="dense").outcome(logits[:, number : number + 1], alone, quality)
        share = of.double().sum() / positive.sum()
        total = total + single.loss * share
        if single.box_weights is not None:
            weights[of] = single.box_weights * share
    torch.testing.assert_close(got.loss, total)
    torch.testing.assert_close(gradient_of(got.loss, logits), gradient_of(total, logits), rtol=1e-9, atol=1e-12)
    if got.box_weights is not None:
        torch.testing.assert_close(got.box_weights, weights[positive], rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="one class per row"):
        make(scope="class").dense(logits, torch.zeros_like(logits))


@pytest.mark.parametrize("make", [RankSortLoss, ALRPLoss])
def test_gradients_sum_to_zero(make):
    logits, labels, quality, _ = scene()
    gradient = gradient_of(make()(logits, labels, quality), logits)
    assert gradient.abs().sum() > 0.1
    assert abs(float(gradient.sum())) < 1e-10


def test_a_perfect_order_has_no_ranksort_sorting_error():
    quality = torch.tensor([0.9, 0.7, 0.5, 0.0])
    logits = torch.tensor([[6.0], [4.0], [2.0], [-9.0]], requires_grad=True)
    outcome = RankSortLoss().outcome(logits, torch.tensor([0, 0, 0, 1]), quality)
    assert outcome.loss.item() == pytest.approx(0, abs=1e-9)
    outcome.loss.backward()
    assert logits.grad.abs().max() < 1e-9


def boxes(number: int, seed: int = 0) -> PositiveBoxes:
    errors = torch.rand(number, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return PositiveBoxes(errors.requires_grad_(), torch.ones(number, dtype=torch.float64))


def test_ranksort_scales_the_box_loss_to_its_own_value():
    logits, labels, quality, _ = scene()
    loss, found = RankSortLoss(), boxes(30)
    outcome = loss.outcome(logits, labels, quality)
    box = loss.box_loss(found, outcome)
    torch.testing.assert_close(box, outcome.loss.detach())
    slope = gradient_of(box, found.errors)
    torch.testing.assert_close(slope, torch.full_like(slope, (outcome.loss / found.errors.sum()).item()))


def test_alrp_box_loss_is_divided_by_the_rank_and_balanced():
    logits, labels, quality, _ = scene()
    loss, found = ALRPLoss(tau=0.75), boxes(30)
    outcome = loss.outcome(logits, labels, quality)
    plain = (2 * found.errors * outcome.box_weights).sum()
    box = loss.box_loss(found, outcome)
    torch.testing.assert_close(box, plain * ((outcome.loss + plain) / plain).detach())
    slope = gradient_of(box, found.errors)
    torch.testing.assert_close(slope / slope.sum(), outcome.box_weights / outcome.box_weights.sum())


def test_alrp_balance_is_the_ratio_of_averages_over_the_batches_seen():
    loss, both, alone = ALRPLoss(), 0.0, 0.0
    for seed in range(3):
        logits, labels, quality, _ = scene(seed=seed)
        outcome = loss.outcome(logits, labels, quality)
        found = boxes(30, seed)
        loss.box_loss(found, outcome)
        part = (found.errors * outcome.box_weights).sum().item()
        both, alone = both + outcome.loss.item() + part, alone + part
    assert float(loss.balance()) == pytest.approx(both / alone)


def test_alrp_balance_ignores_batches_without_positives_is_saved_and_only_changes_in_training():
    loss = ALRPLoss()
    logits, labels, quality, _ = scene()
    outcome = loss.outcome(logits, labels, quality)
    loss.box_loss(boxes(30), outcome)
    before = float(loss.balance())
    empty = loss.outcome(logits, torch.full_like(labels, 3), quality)
    assert loss.box_loss(boxes(0), empty).item() == 0
    assert float(loss.balance()) == before
    loss.eval()
    loss.box_loss(boxes(30, seed=7), outcome)
    assert float(loss.balance()) == before
    other = ALRPLoss()
    other.load_state_dict(loss.state_dict())
    assert float(other.balance()) == before


@pytest.mark.parametrize("make", [RankSortLoss, ALRPLoss, RankDetLoss])
def test_quality_is_needed(make):
    logits, labels, _, _ = scene()
    with pytest.raises(ValueError, match="quality"):
        make()(logits, labels)
