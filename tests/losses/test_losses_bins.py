"""Passes over the scores of negatives: bins, and compiled code against the same formulas in float64."""

import pytest
import torch
from torch import Tensor

from rankwise.losses import DRLoss, GHMLoss, Loss, RankDetLoss
from rankwise.losses.bins import bin_gradient, bin_sums, score_bin
from rankwise.losses.inputs import Samples

#: The losses whose passes over all samples are compiled, and whether they compare image by image.
LOSSES = {
    "GHM": (GHMLoss, {}),
    "RankDet": (RankDetLoss, {}),
    "RankDet, 7 groups": (RankDetLoss, {"groups": 7}),
    "DR": (DRLoss, {}),
    "DR by image": (DRLoss, {"scope": "image"}),
    "DR, lowest temperature": (DRLoss, {"negative_temperature": 0.02}),
}


def negatives(logits: Tensor) -> Samples:
    """Samples without positives, [A, 1]."""
    none = torch.zeros(0, dtype=torch.int64)
    return Samples(logits[:, None], torch.ones(len(logits), dtype=torch.int64), none, none, None, None)


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("bins", [2, 10, 30, 99, 100, 3000])
def test_scores_next_to_an_edge_are_in_the_bin_of_their_logit(bins, numba, monkeypatch):
    if not numba:
        monkeypatch.setattr("rankwise.losses.blocks.find_spec", lambda name: None)
    edges = torch.log(torch.arange(1, bins) / torch.arange(bins - 1, 0, -1, dtype=torch.float64))
    near = torch.cat([edges.float() * (1 + step * 2.0**-23) for step in range(-3, 4)] + [torch.tensor([-1e-30, 1e-30])])
    wanted = (near.double()[:, None] >= edges).sum(1)
    assert score_bin(near, near.sigmoid(), bins).tolist() == wanted.tolist()
    assert bin_sums(negatives(near), bins)[0].tolist() == wanted.bincount(minlength=bins).tolist()
    numbers = bin_gradient(negatives(near), torch.arange(bins), both=False)[:, 0] / near.sigmoid()
    assert numbers.round(decimals=3).tolist() == wanted.tolist()


def scene(rows: int, classes: int, spread: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, labels, quality and image: one row in twenty is positive, one in twenty is ignored."""
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, classes, generator=generator) * spread - 2
    chosen, labels = torch.rand(rows, generator=generator), torch.full((rows,), classes)
    chosen[0] = 0.0
    labels[chosen < 0.1] = -1
    labels[chosen < 0.05] = torch.randint(classes, (int((chosen < 0.05).sum()),), generator=generator)
    return logits, labels, torch.rand(rows, generator=generator), torch.arange(rows) * 3 // rows


def value_and_gradient(
    name: str, logits: Tensor, *others: Tensor, targets: Tensor | None = None
) -> tuple[float, Tensor]:
    make, settings = LOSSES[name]
    loss: Loss = make(**settings)
    leaf = logits.detach().requires_grad_()
    labels, quality, image = others
    if targets is not None:
        keep = torch.rand(targets.shape, generator=torch.Generator().manual_seed(0)) < 0.7
        value = loss.dense(leaf, targets, mask=keep)
    else:
        value = loss(leaf, labels, quality, image)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.item(), gradient.double()


def assert_same(found: tuple[float, Tensor], exact: tuple[float, Tensor]) -> None:
    assert found[0] == pytest.approx(exact[0], rel=2e-6)
    largest = float(exact[1].abs().max())
    assert largest > 0
    # The gradient of DR loss changes its sign at a score, next to which few of its digits are left.
    torch.testing.assert_close(found[1], exact[1], rtol=1e-5, atol=3e-6 * largest)
    close = torch.isclose(found[1], exact[1], rtol=1e-5, atol=1e-9 * largest)
    assert close.double().mean() > 0.97


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(
    ("rows", "classes", "spread"),
    [(700, 3, 2.0), (3000, 1, 4.0), (3, 5000, 2.0), (2048, 2, 30.0), (40_000, 8, 3.0)],
    ids=["small", "one class", "rows longer than a block", "far apart", "several threads"],
)
def test_compiled_passes_are_exact(name, rows, classes, spread):
    logits, labels, quality, image = scene(rows, classes, spread)
    found = value_and_gradient(name, logits, labels, quality, image)
    assert_same(found, value_and_gradient(name, logits.double(), labels, quality.double(), image))


@pytest.mark.parametrize("name", [name for name in LOSSES if "image" not in name])
def test_compiled_passes_leave_out_masked_entries(name):
    logits, labels, quality, image = scene(900, 4, 2.0)
    targets = torch.zeros(logits.shape)
    rows = torch.nonzero((labels >= 0) & (labels < 4))[:, 0]
    targets[rows, labels[rows]] = quality[rows]
    targets[rows, (labels[rows] + 1) % 4] = quality[rows] / 2  # two positives per row
    exact = value_and_gradient(name, logits.double(), labels, quality, image, targets=targets.double())
    assert_same(value_and_gradient(name, logits, labels, quality, image, targets=targets), exact)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("size", [100.0, 1e5, 3e38])
def test_any_finite_logit_has_a_finite_gradient(name, size):
    logits, labels, quality, image = scene(300, 3, 2.0)
    logits[::7] = size
    logits[1::7] = -size
    value, gradient = value_and_gradient(name, logits, labels, quality, image)
    assert torch.isfinite(gradient).all()
    if size < 1e30 or name != "GHM":  # its terms are linear in the logit, and their sum leaves float32
        exact, _ = value_and_gradient(name, logits.double(), labels, quality.double(), image)
        assert value == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_the_same_without_numba(name, monkeypatch):
    given = scene(700, 3, 2.0)
    found = value_and_gradient(name, *given)
    monkeypatch.setattr("rankwise.losses.blocks.find_spec", lambda name: None)
    assert_same(found, value_and_gradient(name, *given))
