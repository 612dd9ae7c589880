"""Dense targets, for every loss: several positives per row, masks, weights, a normalizer."""

import copy
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from test_losses_all import ALL, gradient_of
from torch import Tensor

from rankwise.losses import (
    ALRPLoss,
    APELoss,
    APLoss,
    FocalLoss,
    Loss,
    MALoss,
    PairwiseError,
    QualityFocalLoss,
    RankSortLoss,
    Sigmoid,
    Step,
    ValidNegatives,
    dense,
    targets_numba,
)
from rankwise.losses.samplewise import SamplewiseLoss
from rankwise.pairsums.engines.torch import edges, histogram

IMAGES, ROWS, CLASSES = 2, 60, 5


@pytest.fixture(params=ALL, ids=lambda value: value.__name__)
def loss(request: Any) -> Loss:
    made: Loss = request.param()
    return made


def scene(several: int = 0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits and targets [B, A, C]: 12 rows with a positive, and so many of them with a second one."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(IMAGES * ROWS, CLASSES, generator=generator, dtype=torch.float64) - 2
    targets = torch.zeros_like(logits)
    rows = torch.randperm(len(logits), generator=generator)[: max(12, several)]
    kinds = torch.randint(CLASSES, (len(rows),), generator=generator)
    targets[rows, kinds] = 0.1 + 0.9 * torch.rand(len(rows), generator=generator, dtype=torch.float64)
    targets[rows[:several], (kinds[:several] + 1) % CLASSES] = 0.5
    return logits.view(IMAGES, ROWS, CLASSES), targets.view(IMAGES, ROWS, CLASSES)


def entry_by_entry(loss: Loss, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The loss and its gradient with every entry as a row of one class, those masked left out."""
    kept = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask.expand_as(targets)
    flat = logits.detach()[kept].unsqueeze(1).requires_grad_()
    image = torch.arange(len(logits))[:, None, None].expand_as(targets)[kept]
    value = copy.deepcopy(loss)(flat, (targets[kept] <= 0).long(), targets[kept], image)
    gradient = torch.zeros_like(logits)
    gradient[kept] = gradient_of(value, flat).squeeze(1)
    return value.detach(), gradient


def assert_dense(loss: Loss, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> None:
    leaf = logits.detach().requires_grad_()
    value = copy.deepcopy(loss).dense(leaf, targets, mask=mask)
    expected, gradient = entry_by_entry(loss, logits, targets, mask)
    torch.testing.assert_close(value.detach(), expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradient_of(value, leaf), gradient, rtol=1e-5, atol=1e-9)


#: RankDet ranks the positives of each class: as rows of one class they are all of one.
def by_class(loss: Loss) -> bool:
    return type(loss).__name__ == "RankDetLoss"


@pytest.mark.parametrize("several", [0, 5, 100], ids=["one per row", "a few with two", "most with two"])
def test_dense_targets_equal_labels_with_every_entry_as_a_row(loss: Loss, several: int) -> None:
    if by_class(loss):
        pytest.skip("its classes make a difference")
    assert_dense(loss, *scene(several))


def test_dense_targets_equal_labels(loss: Loss) -> None:
    logits, targets = scene()
    quality, labels = targets.max(-1)
    labels = torch.where(quality > 0, labels, CLASSES)
    first, second = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    dense, labelled = copy.deepcopy(loss).dense(first, targets), copy.deepcopy(loss)(second, labels, quality)
    torch.testing.assert_close(dense, labelled, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient_of(dense, first), gradient_of(labelled, second), rtol=1e-12, atol=1e-12)
    image = torch.arange(IMAGES).repeat_interleave(ROWS)
    rows = copy.deepcopy(loss)(logits.flatten(0, 1), labels.flatten(), quality.flatten(), image)
    torch.testing.assert_close(labelled, rows)


@pytest.mark.parametrize("several", [0, 5, 100], ids=["one per row", "a few with two", "most with two"])
def test_masked_entries_are_not_read(loss: Loss, several: int) -> None:
    logits, targets = scene(several)
    mask = torch.rand(logits.shape, generator=torch.Generator().manual_seed(7)) > 0.3
    spoiled = logits.masked_fill(~mask, -torch.inf)
    spoiled[0, 0, 0], mask[0, 0, 0] = torch.nan, False
    filled = targets.masked_fill(~mask, torch.nan)
    leaf = spoiled.requires_grad_()
    value = copy.deepcopy(loss).dense(leaf, filled, mask=mask)
    gradient = gradient_of(value, leaf)
    assert not gradient[~mask].any()
    if not by_class(loss):
        expected, wanted = entry_by_entry(loss, logits, targets, mask)
        torch.testing.assert_close(value.detach(), expected, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-9)


def test_a_mask_of_rows_is_like_ignored_labels(loss: Loss) -> None:
    logits, targets = scene()
    mask = torch.rand(IMAGES, ROWS, generator=torch.Generator().manual_seed(7)) > 0.3
    quality, labels = targets.max(-1)
    labels = torch.where(quality > 0, labels, CLASSES).masked_fill(~mask, -1)
    spoiled = logits.masked_fill(~mask[..., None], -torch.inf).requires_grad_()
    value = copy.deepcopy(loss)(spoiled, labels, quality)
    torch.testing.assert_close(copy.deepcopy(loss).dense(spoiled, targets, mask=mask), value, rtol=1e-9, atol=1e-12)
    assert not gradient_of(value, spoiled)[~mask].any()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows", [False, True], ids=["entries", "rows"])
def test_positives_are_the_targets_above_zero_with_and_without_numba(
    rows: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(targets_numba, "MIN_TARGETS_PER_THREAD", 100)
    generator = torch.Generator().manual_seed(2)
    targets = torch.rand(300, 5, generator=generator).mul_(1.2).sub_(1.0).clamp_(min=-5e-5)
    targets[7, 2], targets[8, 3], targets[9, 0] = 1e-42, -0.0, 1.00005
    kept = torch.rand(300, 1 if rows else 5, generator=generator) > 0.5
    where = (kept & (targets > 0)).nonzero()
    quality = targets[tuple(where.unbind(1))].clamp(max=1)
    for _ in range(2):
        *found, qualities = dense._positives(targets, kept)
        assert torch.equal(torch.stack(found, 1), where)
        assert torch.equal(qualities, quality)
        monkeypatch.setattr(dense, "find_spec", lambda name: None)


def test_every_loss_reports_its_positives(loss: Loss) -> None:
    logits, targets = scene(5)
    assert loss.dense_outcome(logits, targets).parts["positives"].item() == 17
    labels = torch.full((ROWS,), CLASSES)
    labels[:3] = 1
    assert loss.outcome(logits[0], labels, torch.rand(ROWS)).parts["positives"].item() == 3


def test_a_normalizer_replaces_the_number_of_positives(loss: Loss) -> None:
    logits, targets = scene(5)
    if isinstance(loss, SamplewiseLoss) and not loss.takes_weights:
        with pytest.raises(ValueError, match="has its own weighting"):
            loss.dense(logits, targets, normalizer=3.0)
        return
    addition = loss.dense_outcome(logits, targets).parts.get("correlation", torch.ones(()))
    fixed = 0.2 * (1 - addition)  # the correlation is a mean already
    plain = loss.dense(logits, targets) - fixed
    torch.testing.assert_close(loss.dense(logits, targets, normalizer=torch.tensor(34.0)) - fixed, plain / 2)


def test_weights_multiply_the_terms_of_entries() -> None:
    logits, targets = scene(5)
    weight = torch.rand(logits.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for loss in (FocalLoss(), QualityFocalLoss(), MALoss()):
        leaf = logits.clone().requires_grad_()
        value = loss.dense(leaf, targets, weight=weight, normalizer=1.0)
        gradient = gradient_of(value, leaf)
        terms = torch.zeros_like(logits)
        for at in torch.cartesian_prod(torch.arange(IMAGES), torch.arange(0, ROWS, 20), torch.arange(CLASSES)):
            only = torch.zeros_like(targets, dtype=torch.bool)
            only[tuple(at)] = True
            leaf = logits.clone().requires_grad_()
            one = loss.dense(leaf, targets, mask=only, normalizer=1.0)
            terms[tuple(at)] = gradient_of(one, leaf)[tuple(at)] * weight[tuple(at)]
        rows = slice(0, ROWS, 20)
        torch.testing.assert_close(gradient[:, rows], terms[:, rows], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(
            loss.dense(logits, targets, weight=weight[:, :, :1].squeeze(-1)),
            loss.dense(logits, targets, weight=weight[:, :, :1].expand_as(logits)),
        )


RANKING = {
    "APE": APELoss,
    "AP per image": partial(APLoss, scope="image"),
    "valid negatives": partial(PairwiseError, Sigmoid(4.0), ValidNegatives(0.5), weight_by_quality=True),
    "RankSort": RankSortLoss,
    "aLRP": partial(ALRPLoss, scope="image"),
}


@pytest.mark.parametrize("method", ["dense", "fast"])
@pytest.mark.parametrize("name", RANKING)
def test_an_integer_weight_of_a_negative_equals_repeating_it(name: str, method: str) -> None:
    loss = RANKING[name](method=method)
    logits, targets = scene(5)
    generator = torch.Generator().manual_seed(3)
    times = torch.randint(0, 4, targets.shape, generator=generator).where(targets <= 0, 1)
    own = torch.rand(targets.shape, generator=generator, dtype=torch.float64).where(targets > 0, 1)
    leaf = logits.clone().requires_grad_()
    terms = loss.dense(leaf, targets, weight=times.double(), reduction="none")
    image = torch.arange(IMAGES)[:, None, None].expand_as(targets)
    copies = times.flatten()
    repeated = logits.flatten().repeat_interleave(copies).unsqueeze(1).requires_grad_()
    kinds, quality = (targets <= 0).long().flatten(), targets.flatten()
    value = loss(repeated, *(part.repeat_interleave(copies) for part in (kinds, quality, image.flatten())))
    torch.testing.assert_close(terms.mean(), value)
    each = torch.arange(len(copies)).repeat_interleave(copies)
    summed = torch.zeros(len(copies), dtype=torch.float64).index_add_(0, each, gradient_of(value, repeated).squeeze(1))
    torch.testing.assert_close(gradient_of(terms.mean(), leaf).flatten(), summed)
    # Weights of positives multiply their terms, and the gradient is linear in them.
    weighted = loss.dense(leaf, targets, weight=own * times, normalizer=2.0)
    parts = loss.dense(leaf, targets, weight=times.double(), reduction="none") * own[targets > 0] / 2
    torch.testing.assert_close(weighted, parts.sum())
    torch.testing.assert_close(gradient_of(weighted, leaf), gradient_of(parts.sum(), leaf))


def plain_term(name: str, p: Tensor, quality: Tensor, u: int, negatives: Tensor, weight: Tensor) -> float:
    """The term of positive u as the papers define it, with weighted negatives."""
    delta = 0.5 if name == "RankSort" else 1.0
    among = ((p - p[u]) / (2 * delta) + 0.5).clamp(0, 1)
    above = float((((negatives - p[u]) / (2 * delta) + 0.5).clamp(0, 1) * weight).sum())
    if name == "aLRP":
        return above / (above + float(among.sum()) + 0.5)
    lacking, right = 1 - quality, quality >= quality[u]
    sorting = (among * lacking).sum() / among.sum() - (among * lacking)[right].sum() / among[right].sum()
    return above / (above + float(among.sum())) + float(sorting)


@pytest.mark.parametrize(("name", "make"), [("RankSort", RankSortLoss), ("aLRP", ALRPLoss)])
def test_terms_per_positive_follow_the_papers(name: str, make: type[Loss]) -> None:
    logits, targets = scene(5)
    weight = torch.rand(logits.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    positive = targets > 0
    weight = weight.masked_fill(positive, 1.0)
    terms = make().dense(logits, targets, weight=weight, reduction="none")
    samples = logits[positive], targets[positive]
    expected = [plain_term(name, *samples, u, logits[~positive], weight[~positive]) for u in range(int(positive.sum()))]
    torch.testing.assert_close(terms, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1.0, 40.0, 1e6])
@pytest.mark.parametrize("name", [*RANKING, "adaptive step"])
def test_fast_terms_with_weights_are_those_of_the_definition(
    name: str, spread: float, dtype: torch.dtype, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if many:  # the torch engine takes any number of samples for many
        monkeypatch.setattr(histogram, "MANY", 0)
        monkeypatch.setattr(edges, "MANY", 0)
    make = {**RANKING, "adaptive step": partial(PairwiseError, Step(0.3))}[name]
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(3, 200, 4, generator=generator) * spread).to(dtype)
    targets = torch.rand(3, 200, 4, generator=generator, dtype=torch.float64)
    targets = targets.masked_fill(targets < 0.95, 0)
    weight = torch.rand(targets.shape, generator=generator, dtype=torch.float64) * 3
    upstream = torch.rand(int((targets > 0).sum()), generator=generator, dtype=torch.float64)
    found = []
    for method, kind in (("torch", dtype), ("dense", torch.float64)):
        leaf = logits.to(kind).requires_grad_()
        terms = make(method=method).dense(leaf, targets.to(kind), weight=weight.to(dtype).to(kind), reduction="none")
        found.append((terms.detach().double(), torch.autograd.grad(terms @ upstream.to(kind), leaf)[0].double()))
    (terms, gradient), (expected, wanted) = found
    torch.testing.assert_close(terms, expected, rtol=1e-5, atol=1e-30)
    assert ((gradient - wanted).abs() <= (1e-5 * wanted.abs()).clamp(min=1e-9 * float(wanted.abs().max()))).all()


def test_terms_per_positive_ignore_masked_entries_and_can_be_empty() -> None:
    logits, targets = scene(5)
    mask = torch.rand(logits.shape, generator=torch.Generator().manual_seed(4)) > 0.3
    loss, spoiled = APELoss(method="dense"), logits.masked_fill(~mask, torch.nan).requires_grad_()
    terms = loss.dense(spoiled, targets, mask=mask, reduction="none")
    assert terms.shape == (int(((targets > 0) & mask).sum()),)
    torch.testing.assert_close(terms.mean(), loss.dense(logits, targets, mask=mask))
    nobody = loss.dense(spoiled, torch.zeros_like(targets), mask=mask, weight=torch.ones_like(targets))
    assert nobody.item() == 0
    assert not gradient_of(nobody, spoiled).any()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (APELoss(method="numba"), 'method="numba" does not support weight'),
        (RankSortLoss(scope="class"), 'do not support scope="class"'),
        (FocalLoss(), "FocalLoss has no terms per positive"),
        (APELoss(method="dense", scope="world"), "do not support"),
    ],
)
def test_losses_without_terms_per_positive_name_those_that_have_them(loss: Loss, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss.dense(*scene(), reduction="none")


def test_composed_losses_with_flat_distances_floors_and_a_limit_of_negatives() -> None:
    for loss in (
        PairwiseError(Sigmoid(1e-6)),
        PairwiseError(balance=ValidNegatives(0.5)),
        PairwiseError(Step(0.3), max_negatives=40),
        APELoss(cut=4, scope="image"),
    ):
        logits, targets = scene(5)
        mask = torch.rand(logits.shape, generator=torch.Generator().manual_seed(7)) > 0.3
        assert_dense(loss, logits, targets, mask)


def test_no_positives_and_nothing_at_all(loss: Loss) -> None:
    for shape in ((2, 7, 3), (0, 7, 3), (2, 0, 3)):
        leaf = torch.zeros(shape, requires_grad=True)
        value = loss.dense(leaf, torch.zeros(shape), mask=torch.ones(shape[:2], dtype=torch.bool))
        gradient = gradient_of(value, leaf)
        assert value.isfinite()
        assert (gradient >= 0).all()  # without positives no logit is pulled up
        assert gradient.shape == shape


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"logits": np.zeros((2, 3))}, TypeError, "logits must be a torch.Tensor, got ndarray"),
        ({"targets": 1.0}, TypeError, "targets must be a torch.Tensor, got float"),
        ({"targets": torch.zeros(2, 4)}, ValueError, "targets must have the shape of logits"),
        (
            {"targets": torch.full((2, 3), 1.5)},
            ValueError,
            r"targets must be in \[0, 1\]; 6 of 6.*1.5 in row 0, class 0",
        ),
        ({"targets": torch.full((2, 3), torch.nan)}, ValueError, r"targets must be in \[0, 1\].*nan in row 0"),
        ({"mask": torch.zeros(2, 3)}, ValueError, "mask must be bool"),
        ({"mask": torch.ones(5, dtype=torch.bool)}, ValueError, r"mask must have the shape \[2, 3\], or \[2\]"),
        ({"normalizer": 0.0}, ValueError, "normalizer must be a single number above 0"),
    ],
)
def test_bad_arguments_give_specific_errors(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"logits": torch.zeros(2, 3), "targets": torch.zeros(2, 3)} | change
    with pytest.raises(error, match=message):
        APELoss().dense(**arguments)


def test_arrays_and_scalars_are_refused_in_the_call_with_labels(loss: Loss) -> None:
    logits, labels = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    for name, call in {
        "logits": (np.zeros((4, 2)), labels, None),
        "labels": (logits, 1, None),
        "quality": (logits, labels, 0.5),
    }.items():
        with pytest.raises(TypeError, match=f"{name} must be a torch.Tensor, got"):
            loss(*call)  # type: ignore[arg-type]


@pytest.mark.parametrize("made", [t for t in ALL if "lam" in (t.__init__.__annotations__)])
def test_a_number_as_a_string_is_refused(made: type[Loss]) -> None:
    with pytest.raises(TypeError, match=re.escape(f"{made.__name__}: lam must be a finite number, got '8'")):
        made(lam="8")  # type: ignore[call-arg]


def test_gradients_by_torch_func(loss: Loss) -> None:
    logits, targets = scene()
    leaf = logits.clone().requires_grad_()
    expected = gradient_of(copy.deepcopy(loss).dense(leaf, targets), leaf)
    torch.testing.assert_close(torch.func.grad(lambda x: loss.dense(x, targets))(logits), expected)
