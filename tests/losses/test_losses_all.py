"""Properties of every loss; a new loss is tested as soon as it is exported."""

import copy
import inspect

import pytest
import torch
from torch import Tensor

from rankwise import losses
from rankwise.losses import Loss, PositiveBoxes

ALL = sorted(
    (value for value in vars(losses).values() if isinstance(value, type) and issubclass(value, Loss) and value != Loss),
    key=lambda value: value.__name__,
)


@pytest.fixture(params=ALL, ids=lambda value: value.__name__)
def loss(request) -> Loss:
    return request.param()


def scene(
    rows: int = 300, classes: int = 4, positives: int = 12, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """A head in the middle of training: logits, labels with a few ignored rows, quality."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=generator) - 2
    labels = torch.full((rows,), classes)
    order = torch.randperm(rows, generator=generator)
    labels[order[:positives]] = torch.randint(0, classes, (positives,), generator=generator)
    labels[order[positives : positives + 5]] = -1
    quality = torch.rand(rows, generator=generator)
    return logits.to(dtype).requires_grad_(), labels, quality


def gradient_of(value: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(value, logits)[0]


def assert_precise(loss: Loss, logits: Tensor, labels: Tensor, quality: Tensor, tolerance: float = 1e-5) -> None:
    """Value and gradient are those of double precision, the gradient as far as its largest part goes."""
    double = logits.detach().double().requires_grad_()
    exact = copy.deepcopy(loss)(double, labels, quality.double())
    value, expected = loss(logits, labels, quality), gradient_of(exact, double)
    torch.testing.assert_close(value.double(), exact.double(), rtol=1e-6, atol=1e-7)
    off = (gradient_of(value, logits).double() - expected).abs().max()
    assert off <= tolerance * expected.abs().max() + 1e-12


def is_pairwise(loss: Loss) -> bool:
    return hasattr(loss, "method")


def test_there_are_all_losses_of_the_comparison():
    names = {value.__name__ for value in ALL}
    assert names >= {
        *("ALRPLoss", "APELoss", "APLoss", "DRLoss", "FocalLoss", "GHMLoss", "GeneralizedFocalLoss", "PELoss"),
        *("QualityFocalLoss", "RankDetLoss", "RankSortLoss", "VarifocalLoss", "MALoss", "IABCELoss"),
        *("PositionSupervisedLoss", "CorrelationLoss"),
    }


def test_docstring_names_the_paper_and_every_argument(loss):
    text = inspect.getdoc(type(loss)) or ""
    if type(loss) is not losses.PairwiseError:
        assert "https://" in text
    arguments = text.partition("Args:")[2]
    for name in list(inspect.signature(type(loss)).parameters):
        assert f"\n    {name}: " in arguments, f"{name} is not documented"


def test_finite_and_connected_without_positives(loss):
    logits, labels, quality = scene()
    labels = torch.where(labels >= 0, 4, -1)
    outcome = loss.outcome(logits, labels, quality)
    gradient = gradient_of(outcome.loss, logits)
    assert outcome.loss.isfinite()
    assert gradient.isfinite().all()
    if is_pairwise(loss):
        assert outcome.loss.item() == 0
        assert not gradient.any()
    else:
        assert gradient[labels >= 0].abs().max() > 0


def test_box_loss_without_positives_is_a_connected_zero(loss):
    logits, labels, quality = scene()
    outcome = loss.outcome(logits, torch.full_like(labels, 4), quality)
    errors = torch.zeros(0, requires_grad=True)
    distribution = torch.zeros(0, 4, 9, requires_grad=True)
    box = loss.box_loss(PositiveBoxes(errors, torch.zeros(0), distribution, torch.zeros(0, 4)), outcome)
    assert box.item() == 0
    box.backward()


def test_box_loss_falls_with_the_box_errors(loss):
    logits, labels, quality = scene()
    outcome = loss.outcome(logits, labels, quality)
    errors = torch.rand(12, generator=torch.Generator().manual_seed(1)).requires_grad_()
    boxes = PositiveBoxes(errors, torch.ones(12), torch.zeros(12, 4, 9), torch.ones(12, 4))
    slope = torch.autograd.grad(loss.box_loss(boxes, outcome), errors)[0]
    assert (slope > 0).all()
    assert slope.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_half_precision_is_computed_in_float32(loss, dtype):
    logits, labels, quality = scene(dtype=dtype)
    value = loss(logits, labels, quality)
    gradient = gradient_of(value, logits)
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    full = logits.detach().float().requires_grad_()
    expected = copy.deepcopy(loss)(full, labels, quality)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, gradient_of(expected, full).to(dtype), rtol=2e-2, atol=1e-5)


def test_huge_half_precision_logits_are_as_good_as_double_ones(loss):
    logits, labels, quality = scene(dtype=torch.float16)
    logits = (logits.detach() * 2000).requires_grad_()
    assert logits.isfinite().all()
    assert_precise(loss, logits, labels, quality, tolerance=1e-3)


def test_works_under_autocast(loss):
    logits, labels, quality = scene()
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(logits, labels, quality)
    torch.testing.assert_close(value, copy.deepcopy(loss)(logits, labels, quality), rtol=1e-5, atol=1e-6)


def test_the_order_of_the_rows_does_not_matter(loss):
    logits, labels, quality = scene(dtype=torch.float64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(5))
    value = copy.deepcopy(loss)(logits, labels, quality)
    gradient = gradient_of(value, logits)
    mixed = logits.detach()[order].requires_grad_()
    other = loss(mixed, labels[order], quality[order])
    torch.testing.assert_close(other, value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient_of(other, mixed), gradient[order], rtol=1e-7, atol=1e-10)


def test_results_are_deterministic(loss):
    logits, labels, quality = scene()
    again = copy.deepcopy(loss)
    first, second = loss(logits, labels, quality), again(logits, labels, quality)
    assert torch.equal(first, second)
    assert torch.equal(gradient_of(first, logits), gradient_of(second, logits))


def test_gradient_descent_lowers_the_loss_and_raises_the_positives(loss):
    logits, labels, quality = scene()
    positive = torch.nn.functional.one_hot(labels.clamp(min=0), 5)[:, :4].bool() & (labels >= 0)[:, None]
    negative = ~positive & (labels >= 0)[:, None]
    optimizer = torch.optim.Adam([logits], lr=0.1)
    before, gap = None, logits.detach()[positive].mean() - logits.detach()[negative].mean()
    for _ in range(60):
        optimizer.zero_grad()
        value = loss(logits, labels, quality)
        before = value.item() if before is None else before
        value.backward()
        optimizer.step()
    assert loss(logits, labels, quality).item() < 0.9 * before
    assert logits.detach()[positive].mean() - logits.detach()[negative].mean() > gap + 1


def test_quality_gets_no_gradient(loss):
    logits, labels, quality = scene()
    quality.requires_grad_()
    loss(logits, labels, quality).backward()
    assert quality.grad is None


def test_quality_is_read_only_at_positives(loss):
    logits, labels, quality = scene()
    other = torch.where((labels >= 0) & (labels < 4), quality, torch.nan)
    torch.testing.assert_close(copy.deepcopy(loss)(logits, labels, other), loss(logits, labels, quality))


def test_one_class(loss):
    logits, labels, quality = scene(classes=1)
    assert gradient_of(copy.deepcopy(loss)(logits, labels, quality), logits)[labels == 0].sum() < 0
    assert_precise(loss, logits, labels, quality)


def test_ignored_rows_have_no_effect(loss):
    logits, labels, quality = scene()
    value = copy.deepcopy(loss)(logits, labels, quality)
    assert not gradient_of(value, logits)[labels < 0].any()
    kept = labels >= 0
    torch.testing.assert_close(value, loss(logits[kept], labels[kept], quality[kept]))


def test_non_contiguous_logits(loss):
    logits, labels, quality = scene()
    turned = logits.detach().t().contiguous().t().requires_grad_()
    assert not turned.is_contiguous()
    value, expected = copy.deepcopy(loss)(turned, labels, quality), loss(logits, labels, quality)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient_of(value, turned), gradient_of(expected, logits))


def test_empty_input_is_finite_and_connected(loss):
    logits = torch.zeros(0, 3, requires_grad=True)
    value = loss(logits, torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    assert value.isfinite()
    value.backward()
    assert logits.grad.shape == (0, 3)


@pytest.mark.parametrize("classes", [1, 3])
def test_positives_only(loss, classes):
    logits = torch.randn(6, classes, generator=torch.Generator().manual_seed(2)).requires_grad_()
    labels = torch.arange(6) % classes
    assert_precise(loss, logits, labels, torch.linspace(0, 1, 6))


def test_a_single_positive_and_a_single_negative(loss):
    logits = torch.tensor([[-1.0], [1.0]], requires_grad=True)
    gradient = gradient_of(loss(logits, torch.tensor([0, 1]), torch.tensor([0.8, 0.0])), logits)
    assert gradient[0] < 0 < gradient[1]


def test_all_logits_equal(loss):
    logits, labels, quality = scene()
    equal = torch.full_like(logits, -4.6).requires_grad_()
    value = loss(equal, labels, quality)
    assert value.isfinite()
    gradient = gradient_of(value, equal)
    positive = (labels >= 0) & (labels < 4)
    assert gradient.isfinite().all()
    assert gradient[positive, labels[positive]].sum() < 0


def test_logits_spread_over_thousands(loss):
    logits, labels, quality = scene()
    assert_precise(loss, (logits.detach() * 1500).requires_grad_(), labels, quality)


def test_gradient_scales_with_the_upstream_gradient(loss):
    logits, labels, quality = scene()
    value = loss(logits, labels, quality)
    once = torch.autograd.grad(value, logits, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(3 * value, logits)[0], 3 * once)


def test_backward_may_run_several_times(loss):
    logits, labels, quality = scene()
    value = loss(logits, labels, quality)
    once = torch.autograd.grad(value, logits, retain_graph=True)[0].clone()
    for _ in range(3):
        value.backward(retain_graph=True)
    torch.testing.assert_close(logits.grad, 3 * once)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluates_without_gradients(loss, mode):
    logits, labels, quality = scene()
    expected = copy.deepcopy(loss)(logits, labels, quality).detach()
    with mode():
        torch.testing.assert_close(loss(logits, labels, quality), expected)


def test_threads_do_not_change_the_result(loss):
    logits, labels, quality = scene(rows=30_000, classes=20)
    threads = torch.get_num_threads()
    try:
        results = []
        for number in (1, 3):
            torch.set_num_threads(number)
            value = copy.deepcopy(loss)(logits, labels, quality)
            results.append((value, gradient_of(value, logits)))
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-9)


def test_works_under_torch_compile(loss):
    logits, labels, quality = scene()
    expected = copy.deepcopy(loss)(2 * logits, labels, quality)
    torch.compiler.reset()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x: Tensor) -> Tensor:
        return loss(2 * x, labels, quality) + 1

    value = step(logits)
    torch.testing.assert_close(value - 1, expected)
    torch.testing.assert_close(gradient_of(value, logits), gradient_of(expected, logits))


def test_parts_for_the_log_are_detached_scalars(loss):
    outcome = loss.outcome(*scene())
    assert outcome.parts
    for name, value in outcome.parts.items():
        assert value.shape == (), name
        assert not value.requires_grad, name
        assert value.isfinite(), name


def test_labels_may_be_of_any_integer_type(loss):
    logits, labels, quality = scene()
    expected = copy.deepcopy(loss)(logits, labels, quality)
    torch.testing.assert_close(loss(logits, labels.int(), quality), expected)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_bad_logits_are_an_error_that_says_where(loss, bad):
    logits, labels, quality = scene()
    logits = logits.detach()
    logits[7, 2] = bad
    with pytest.raises(ValueError, match=r"logits.*7, 2"):
        loss(logits, labels, quality)


def test_labels_out_of_range_are_an_error_that_says_where(loss):
    logits, labels, quality = scene()
    labels[9] = 5
    with pytest.raises(ValueError, match=r"labels.*9"):
        loss(logits, labels, quality)


def test_mismatched_shapes_are_an_error(loss):
    logits, labels, quality = scene()
    with pytest.raises(ValueError, match="labels"):
        loss(logits, labels[1:], quality)
    with pytest.raises(ValueError, match="logits"):
        loss(logits[None], labels, quality)
    with pytest.raises(ValueError, match="labels"):
        loss(logits, labels.float(), quality)


def test_gradients_of_confident_mistakes_are_kept(loss):
    """Where float32 rounds a score to 1, the distance to 1 is not 0."""
    logits, labels, quality = scene()
    logits = (torch.rand(logits.shape, generator=torch.Generator().manual_seed(1)) * 6 + 14).requires_grad_()
    assert_precise(loss, logits, labels, quality)
