"""Losses of recent DETR-like detectors and the correlation loss, against formulas and published code."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F
from transformers.loss.loss_deimv2 import Deimv2Loss
from transformers.loss.loss_lw_detr import LwDetrImageLoss

from rankwise.losses import APELoss, CorrelationLoss, FocalLoss, IABCELoss, MALoss, PositionSupervisedLoss, SmoothAPLoss
from rankwise.losses.correlation import soft_rank

IMAGES, QUERIES, CLASSES = 3, 40, 5


class Scene:
    """Matched queries of three images, the last without objects, in the form of transformers and in ours."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        draw = {"generator": generator, "dtype": torch.float64}
        self.logits = (2 * torch.randn(IMAGES, QUERIES, CLASSES, **draw) - 1).requires_grad_()
        corner, size = torch.rand(IMAGES, QUERIES, 2, **draw), 0.1 + 0.4 * torch.rand(IMAGES, QUERIES, 2, **draw)
        self.boxes = torch.cat([0.3 + 0.4 * corner, size], -1)
        self.targets, self.indices = [], []
        self.labels = torch.full((IMAGES, QUERIES), CLASSES)
        self.quality = torch.zeros(IMAGES, QUERIES, dtype=torch.float64)
        for number, objects in enumerate((4, 7, 0)):
            queries = torch.randperm(QUERIES, generator=generator)[:objects].sort().values
            order = torch.randperm(objects, generator=generator)
            classes = torch.randint(CLASSES, (objects,), generator=generator)
            truth = self.boxes[number, queries] * (0.8 + 0.4 * torch.rand(objects, 4, **draw))
            self.targets.append({"class_labels": classes[order.argsort()], "boxes": truth[order.argsort()]})
            self.indices.append((queries, order))
            self.labels[number, queries] = classes
            self.quality[number, queries] = iou(self.boxes[number, queries], truth)
        self.outputs = {"logits": self.logits, "pred_boxes": self.boxes}
        self.positives = int((self.labels < CLASSES).sum())
        self.image = torch.arange(IMAGES).repeat_interleave(QUERIES)

    @property
    def call(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.logits.flatten(0, 1), self.labels.flatten(), self.quality.flatten(), self.image


def iou(a: Tensor, b: Tensor) -> Tensor:
    low = torch.maximum(a[:, :2] - a[:, 2:] / 2, b[:, :2] - b[:, 2:] / 2)
    high = torch.minimum(a[:, :2] + a[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2)
    both = (high - low).clamp(min=0).prod(1)
    return both / (a[:, 2:].prod(1) + b[:, 2:].prod(1) - both)


def assert_same(loss: Tensor, expected: Tensor, logits: Tensor, rtol: float = 1e-9) -> None:
    torch.testing.assert_close(loss, expected, rtol=rtol, atol=1e-12)
    got, wanted = torch.autograd.grad(loss, logits)[0], torch.autograd.grad(expected, logits)[0]
    torch.testing.assert_close(got, wanted, rtol=rtol, atol=1e-10)


@pytest.mark.parametrize(("gamma", "alpha"), [(1.5, None), (2.0, 0.3)])
def test_mal_equals_transformers(gamma: float, alpha: float | None) -> None:
    scene = Scene()
    criterion = Deimv2Loss.__new__(Deimv2Loss)
    torch.nn.Module.__init__(criterion)
    criterion.num_classes, criterion.gamma, criterion.mal_alpha = CLASSES, gamma, alpha
    expected = criterion.loss_labels_mal(scene.outputs, scene.targets, scene.indices, scene.positives)["loss_mal"]
    loss = MALoss(gamma, 1.0 if alpha is None else alpha)
    assert_same(loss(*scene.call), expected, scene.logits, rtol=1e-6)  # transformers takes IoUs in float32


def test_ia_bce_equals_transformers() -> None:
    scene = Scene()
    criterion = LwDetrImageLoss(None, CLASSES, 0.25, ["labels"], group_detr=1)
    expected = criterion.loss_labels(scene.outputs, scene.targets, scene.indices, scene.positives)["loss_ce"]
    assert_same(IABCELoss()(*scene.call), expected, scene.logits, rtol=1e-6)


def test_ia_bce_stays_finite_where_the_published_code_takes_log_of_zero() -> None:
    logits = torch.tensor([[-200.0], [200.0]], requires_grad=True)
    value = IABCELoss()(logits, torch.tensor([0, 1]), torch.tensor([0.5, 0.0]))
    assert value.item() == pytest.approx(0.01 * 200 + 200)
    assert torch.autograd.grad(value, logits)[0].isfinite().all()


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_position_supervised_follows_the_formula_in_each_image(power: float) -> None:
    scene = Scene()
    p, best = scene.logits.sigmoid(), scene.quality.amax(1, keepdim=True).clamp(min=1e-9)
    target = F.one_hot(scene.labels, CLASSES + 1)[..., :-1] * (scene.quality / best).pow(power)[..., None]
    weight = torch.where(target > 0, 0.25, 0.75)
    entropy = F.binary_cross_entropy(p, target, reduction="none")
    expected = (weight * (target - p).abs() ** 2 * entropy).sum() / scene.positives
    assert_same(PositionSupervisedLoss(power=power)(*scene.call), expected, scene.logits)


def test_position_supervised_without_image_treats_the_batch_as_one_image() -> None:
    scene = Scene()
    logits, labels, quality, image = scene.call
    together, apart = (PositionSupervisedLoss()(logits, labels, quality, which) for which in (None, image))
    assert together.item() != pytest.approx(apart.item(), rel=1e-5)
    torch.testing.assert_close(together, PositionSupervisedLoss()(logits, labels, quality, torch.zeros_like(image)))


def positives(scene: Scene) -> tuple[Tensor, Tensor]:
    logits, labels, quality, _ = scene.call
    rows = labels < CLASSES
    return logits[rows, labels[rows]].sigmoid().detach(), quality[rows]


def correlation(scene: Scene, coefficient: str, softness: float = 0.01) -> float:
    loss = CorrelationLoss(FocalLoss(), coefficient, weight=1.0, softness=softness)
    outcome = loss.outcome(*scene.call)
    plain = FocalLoss()(*scene.call)
    assert outcome.loss.item() - plain.item() == pytest.approx(1 - outcome.parts["correlation"].item())
    return outcome.parts["correlation"].item()


def test_correlation_coefficients_equal_scipy() -> None:
    scene = Scene()
    scores, quality = positives(scene)
    assert correlation(scene, "pearson") == pytest.approx(stats.pearsonr(scores, quality).statistic)
    assert correlation(scene, "spearman", 1e-6) == pytest.approx(stats.spearmanr(scores, quality).statistic)
    covariance = torch.cov(torch.stack([scores, quality]))
    apart = (scores.mean() - quality.mean()) ** 2
    expected = 2 * covariance[0, 1] / (covariance.trace() + apart)
    assert correlation(scene, "concordance") == pytest.approx(expected.item())


def test_with_the_published_softness_spearman_is_pearson() -> None:
    scene = Scene()
    assert correlation(scene, "spearman", 1.0) == pytest.approx(correlation(scene, "pearson"))


@pytest.mark.parametrize("softness", [1e-3, 0.05, 1.0])
def test_soft_ranks_are_projections_with_their_gradient(softness: float) -> None:
    values = torch.rand(9, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ranks, adjoint = soft_rank(values, softness)
    assert ranks.sum().item() == pytest.approx(45)
    assert (ranks[values.argsort()].diff() >= 0).all()
    steps = 1e-8 * torch.eye(len(values), dtype=values.dtype)
    ends = [[soft_rank(values + step, softness)[0] for step in signed] for signed in (steps, -steps)]
    jacobian = (torch.stack(ends[0]) - torch.stack(ends[1])) / 2e-8
    weights = torch.randn(len(values), dtype=values.dtype)
    torch.testing.assert_close(adjoint(weights), jacobian @ weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("coefficient", ["spearman", "pearson", "concordance"])
def test_the_gradient_of_the_correlation_is_its_derivative(coefficient: str) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(7, 2, dtype=torch.float64, generator=generator).requires_grad_()
    labels, quality = torch.tensor([0, 1, 2, 0, 1, -1, 0]), torch.rand(7, dtype=torch.float64, generator=generator)
    loss = CorrelationLoss(FocalLoss(), coefficient)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels, quality), (logits,), eps=1e-7)


def test_gradient_descent_raises_the_correlation_and_keeps_the_other_loss() -> None:
    scene = Scene()
    loss, logits = CorrelationLoss(APELoss(), weight=1.0), scene.logits.detach().clone().flatten(0, 1).requires_grad_()
    before = loss.outcome(logits, *scene.call[1:])
    assert "ranking_error" in before.parts
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        loss(logits, *scene.call[1:]).backward()
        optimizer.step()
    assert loss.outcome(logits, *scene.call[1:]).parts["correlation"] > max(0.95, before.parts["correlation"])


@pytest.mark.parametrize("coefficient", ["spearman", "pearson", "concordance"])
def test_no_correlation_without_two_different_positives(coefficient: str) -> None:
    logits = torch.zeros(4, 1, requires_grad=True)
    for labels in ([1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]):
        outcome = CorrelationLoss(FocalLoss(), coefficient).outcome(logits, torch.tensor(labels), torch.full((4,), 0.5))
        torch.testing.assert_close(outcome.loss, FocalLoss()(logits, torch.tensor(labels)))
        assert math.isfinite(torch.autograd.grad(outcome.loss, logits)[0].sum())


@pytest.mark.parametrize("method", ["fast", "dense"])
def test_smooth_ap_equals_its_formula_with_the_gradient_of_autograd(method: str) -> None:
    scene = Scene()
    logits, labels, quality, _ = scene.call
    scores = logits.sigmoid()
    positive = F.one_hot(labels, CLASSES + 1)[:, :-1].bool()
    u, v = scores[positive], scores[~positive]
    among = torch.sigmoid((u - u[:, None]) / 0.01)
    rank_among = among.sum(1) - 0.5 + 1
    rank = rank_among + torch.sigmoid((v - u[:, None]) / 0.01).sum(1)
    expected = 1 - (rank_among / rank).mean()
    assert_same(SmoothAPLoss(method=method)(logits, labels, quality), expected, scene.logits)


@pytest.mark.parametrize(
    ("positives", "temperature", "shift"), [(30, 0.01, 0), (600, 0.01, -4), (50, 1e-4, 0), (50, 3.0, 0), (200, 0.05, 6)]
)
def test_fast_smooth_ap_counts_every_pair(positives: int, temperature: float, shift: float) -> None:
    generator = torch.Generator().manual_seed(positives)
    logits = 2 * torch.randn(2000, 8, dtype=torch.float64, generator=generator) + shift
    labels = torch.full((2000,), 8)
    labels[:positives] = torch.randint(8, (positives,), generator=generator)
    labels[-9:] = -1
    found = []
    for method in ("fast", "dense"):
        leaf = logits.clone().requires_grad_()
        loss = SmoothAPLoss(temperature, method=method)(leaf, labels)
        found.append((loss.item(), torch.autograd.grad(loss, leaf)[0]))
    (loss, gradient), (wanted, expected) = found
    assert loss == pytest.approx(wanted, rel=1e-12)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12 * float(expected.abs().max()))


def test_smooth_ap_refuses_a_temperature_that_no_table_can_hold() -> None:
    with pytest.raises(ValueError, match=r"at least 0\.0001"):
        SmoothAPLoss(1e-5)
    assert SmoothAPLoss(1e-5, method="dense").temperature == 1e-5
