"""The engines: exact against the definition, for any finite logits, chosen once a call, under torch.compile."""

import gc
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest
import torch
from engine_scenes import LOSSES, STAGES, assert_exact, run, scene
from gpu_counting import CountGPUWork, on_gpu, on_host
from numba.core.registry import CPUDispatcher
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import rankwise.pairsums
from rankwise.losses import ALRPLoss, APELoss, PairwiseError, PELoss, RankSortLoss, Sigmoid, Step, ValidNegatives
from rankwise.pairsums import RankingSpec, Samples, SigmoidCrossEntropy, choose, engines
from rankwise.pairsums.engines.numba import many, passes, sigmoid, step
from rankwise.pairsums.engines.torch import edges, histogram

ENGINES = ["numba", "torch"]


@pytest.mark.parametrize("method", ENGINES)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("stage", STAGES)
def test_every_sample_gets_the_gradient_of_the_definition(name, stage, method):
    assert_exact(LOSSES[name], method, *scene(*STAGES[stage]))


@pytest.fixture
def _as_many(monkeypatch):
    """The torch engine takes any number of samples for many."""
    monkeypatch.setattr(histogram, "MANY", 0)
    monkeypatch.setattr(edges, "MANY", 0)
    monkeypatch.setattr(histogram, "BLOCK", 1000)
    monkeypatch.setattr(histogram, "ONE", 1 << 11)


@pytest.mark.usefixtures("_as_many")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("stage", STAGES)
def test_many_samples_get_the_gradient_of_the_definition_in_torch(name, stage):
    assert_exact(LOSSES[name], "torch", *scene(*STAGES[stage]))


@pytest.mark.usefixtures("_as_many")
@pytest.mark.parametrize("name", ["APE", "AP", "RankSort", "aLRP"])
def test_many_samples_at_the_ends_of_ramps_get_the_gradient_of_the_definition_in_torch(name):
    logits, labels, quality = scene(0, 1.5, 0.5, 1.5, positives=300, rows=900)
    assert_exact(LOSSES[name], "torch", (logits * 4).round() / 4, labels, (quality * 5).round() / 5)


@pytest.mark.usefixtures("_as_many")
@pytest.mark.parametrize("distance", [Step(), Step(0.25), SigmoidCrossEntropy()])
@pytest.mark.parametrize("ties", [False, True])
def test_many_samples_with_a_cutoff_get_the_gradient_of_the_definition_in_torch(distance, ties):
    def make(method: str) -> PairwiseError:
        return PairwiseError(distance, ValidNegatives(), method=method)

    logits, labels, quality = scene(0, 1.5, 0.5, 1.5, positives=100, rows=900)
    assert_exact(make, "torch", (logits * 4).round() / 4 if ties else logits, labels, quality)


@pytest.mark.usefixtures("_as_many")
def test_many_samples_of_any_finite_float32_are_summed_right_in_torch():
    huge("torch")


@pytest.mark.parametrize("method", ENGINES)
@pytest.mark.parametrize("name", ["APE", "AP", "RankSort", "aLRP"])
@pytest.mark.parametrize("ties", [False, True])
def test_thousands_of_positives_get_the_gradient_of_the_definition(name, method, ties):
    logits, labels, quality = scene(0, 1.5, 0.5, 1.5, positives=1400, rows=1800)
    if ties:
        logits, quality = (logits * 4).round() / 4, (quality * 5).round() / 5
    assert_exact(LOSSES[name], method, logits, labels, quality)


def huge(method: str) -> None:
    """Any finite float32: spreads and shifts up to 3e38, positives and negatives beyond each other."""
    for spread, shift in ((1e3, 0), (1e5, 0), (1.0, 1e5), (30.0, 1e7), (1e8, 0), (1.0, 1e8), (1e8, 1e9), (1e20, 0),
                          (1e14, -1e15), (1.0, 3e37), (5e36, 0)):  # fmt: skip
        for name in LOSSES:
            logits, labels, quality = scene(shift, spread, shift, spread, rows=200)
            assert_exact(LOSSES[name], method, logits, labels, quality)
    logits = torch.tensor([[1e8], [1e8], [2e8], [0.0]])
    labels, quality = torch.tensor([0, 0, 1, 1]), torch.tensor([0.3, 0.6, 0.0, 0.0])
    for name in LOSSES:
        assert_exact(LOSSES[name], method, logits, labels, quality)
    logits, labels, quality = scene(0, 1, 1, 1, rows=200)
    logits[labels == 3, 0] = 3e37
    logits[labels == 3, 1] = -3e38
    for name in LOSSES:
        assert_exact(LOSSES[name], method, logits, labels, quality)


@pytest.mark.slow
def test_any_finite_float32_is_summed_right_and_in_bounds(tmp_path):
    """In a process of its own that compiles anew: numba checks bounds only in code that it compiled to do so."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_engines; test_engines.huge('numba')"
    here = Path(__file__).parent
    settings = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(here.parents[1])}
    settings["NUMBA_OPT"] = "0"  # optimizing would take longer than it saves
    settings["PYTHONPATH"] += os.pathsep + str(here.parent)  # for what the tests of several packages share
    command = [sys.executable, "-c", code, str(here)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_any_finite_float32_is_summed_right_in_torch():
    huge("torch")


@pytest.mark.parametrize("method", ENGINES)
@pytest.mark.parametrize(("shift", "spread"), [(1e14, 1e2), (1e23, 1e9), (0, 3e26)])
def test_float64_logits_that_share_a_large_shift_keep_their_differences(shift, spread, method):
    generator = torch.Generator().manual_seed(0)
    logits = shift + spread * torch.randn(400, 1, generator=generator, dtype=torch.float64)
    labels = (torch.arange(400) > 20).long()
    found, expected = (PELoss(lam=16.0, method=name)(logits, labels) for name in (method, "dense"))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("method", [*ENGINES, "dense"])
def test_a_loss_beyond_float32_is_an_error_that_says_so(method):
    logits, labels = torch.tensor([[-3e38], [3e38]]), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="overflows"):
        PELoss(method=method)(logits, labels)


# One choice of engine a call


def test_engines_are_listed_with_their_devices():
    listed = {engine.name: engine for engine in engines()}
    assert list(listed) == ["triton", "numba", "torch", "dense"]
    assert listed["numba"].devices == "cpu"
    assert listed["numba"].missing is None


def chosen(spec: RankingSpec, method: str = "fast", device: str = "cpu") -> str:
    samples = Samples(torch.zeros(3, 2, device=device), torch.zeros(3, dtype=torch.int64, device=device))
    return choose(method, spec, samples).name


def test_fast_takes_the_best_engine_that_can():
    plain = RankingSpec("pairwise", SigmoidCrossEntropy())
    assert chosen(plain) == "numba"
    assert chosen(plain, device="meta") == "torch"
    assert chosen(RankingSpec("pairwise", SigmoidCrossEntropy(cut=4.0))) == "torch"
    assert chosen(RankingSpec("pairwise", Step(), margin=0.25)) == "torch"
    assert chosen(plain, "dense") == "dense"


def test_an_engine_that_cannot_is_an_error_that_says_why():
    with pytest.raises(ValueError, match='method="numba" is not possible: it cannot drop pairs'):
        PELoss(cut=4.0, method="numba")(torch.zeros(3, 1), torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match="needs tensors on a CPU, got meta"):
        chosen(RankingSpec("pairwise", Step()), "numba", "meta")


def test_a_batch_passes_the_eight_files_that_the_documentation_names():
    page = Path(__file__).parents[2] / "docs" / "engines.md"
    named = re.findall(r"^\| `([a-z_/]+\.py)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) == len(set(named)) == 8
    package, entered = Path(rankwise.pairsums.__file__).parents[1], set()

    def profile(frame: FrameType, event: str, _) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(package):
            entered.add(path.relative_to(package).as_posix())

    logits, labels, quality = scene(*STAGES["middle"])
    loss = APELoss(method="numba")
    loss(logits, labels, quality)  # imports and compiles
    sys.setprofile(profile)
    try:
        loss(logits.requires_grad_(), labels, quality).backward()
    finally:
        sys.setprofile(None)
    ours = {path for path in entered if path.startswith("pairsums/") or path == "losses/ranking.py"}
    assert ours - {"pairsums/spec.py"} == set(named)


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("APE", ["find_positives", "sums_of_few", "higher_of_few"], ["gradient"]),
        ("AP", ["find_positives", "_cells", "sums"], ["_cells", "gradient"]),
        ("RankSort", ["find_positives", "_cells", "sums", "push"], ["_cells", "gradient"]),
    ],
)
def test_a_call_takes_few_compiled_calls(name, forward, backward):
    compiled = {
        (module.__file__, function)
        for module in (many, passes, sigmoid, step)
        for function, value in vars(module).items()
        if isinstance(value, CPUDispatcher)
    }
    logits, labels, quality = scene(*STAGES["middle"])
    loss, entered = LOSSES[name](method="numba"), []

    def profile(frame: FrameType, event: str, _) -> None:
        if event == "call" and (frame.f_code.co_filename, frame.f_code.co_name) in compiled:
            entered.append(frame.f_code.co_name)

    loss(logits.requires_grad_(), labels, quality).backward()  # compiles
    sys.setprofile(profile)
    try:
        value = loss(logits, labels, quality)
        calls = len(entered)
        value.backward()
    finally:
        sys.setprofile(None)
    assert (entered[:calls], entered[calls:]) == (forward, backward)


@dataclass(frozen=True)
class Squared(Sigmoid):
    """A distance of one's own."""

    def error(self, z: Tensor) -> Tensor:
        return super().rank(z).square()


def test_a_distance_of_ones_own_is_only_summed_by_the_definition():
    with pytest.raises(ValueError, match=r'Squared.*method="dense"'):
        PairwiseError(Squared())
    logits, labels, quality = scene(*STAGES["middle"])
    loss = PairwiseError(Squared(), method="dense")(logits, labels, quality)
    assert loss.item() != pytest.approx(PairwiseError(Sigmoid())(logits, labels, quality).item(), rel=0.01)


def test_a_loss_prints_its_settings():
    text = repr(APELoss(lam=5.0, scope="image"))
    assert text.startswith("APELoss(")
    for setting in ("SigmoidCrossEntropy(lam=5.0", "adaptive=True", "scope='image'", "method='fast'"):
        assert setting in text


# Bad values


@pytest.mark.parametrize("method", [*ENGINES, "dense"])
@pytest.mark.parametrize("scope", ["batch", "image"])
def test_unchecked_bad_values_make_the_loss_nan_and_are_counted(method, scope):
    logits, labels, quality = scene(*STAGES["middle"])
    image = torch.arange(len(labels)) // 500
    logits[7, 1], logits[8, 2] = torch.nan, -torch.inf
    labels[100] = 9
    quality[(labels == 1).nonzero()[0]] = 1.5
    outcome = APELoss(method=method, scope=scope, check=False).outcome(logits, labels, quality, image)
    assert outcome.loss.isnan()
    assert outcome.parts["faults"] == 4


@pytest.mark.parametrize("method", [*ENGINES, "dense"])
@pytest.mark.parametrize("spread", [1, 1e6], ids=["near", "far apart"])
@pytest.mark.parametrize("name", LOSSES)
def test_an_unchecked_bad_value_makes_every_gradient_nan(name, spread, method):
    logits, labels, quality = scene(*STAGES["middle"])
    logits.mul_(spread)[7, 1] = torch.nan
    leaf = logits.requires_grad_()
    LOSSES[name](method=method, check=False)(leaf, labels, quality).backward()
    assert leaf.grad[labels >= 0].isnan().all()


def test_faults_are_zero_where_all_is_well():
    assert APELoss(check=False).outcome(*scene(*STAGES["middle"])).parts["faults"] == 0


# Threads and operations


@pytest.mark.parametrize("name", ["APE", "AP"])
def test_the_number_of_threads_changes_nothing_but_rounding(name, monkeypatch):
    logits, labels, quality = scene(*STAGES["middle"], rows=100_000)
    results = []
    for count in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        results.append(run(LOSSES[name], "numba", logits, labels, quality)[:2])
        again = run(LOSSES[name], "numba", logits, labels, quality)[:2]
        assert all(torch.equal(a, b) for a, b in zip(results[-1], again, strict=True))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-6, atol=0)


def test_losses_may_run_in_several_threads_at_once():
    logits, labels, quality = scene(*STAGES["middle"], rows=50_000)
    wanted = run(APELoss, "numba", logits, labels, quality)[1]
    got = [torch.empty(0)] * 6

    def work(number: int) -> None:
        got[number] = run(APELoss, "numba", logits, labels, quality)[1]

    workers = [threading.Thread(target=work, args=(number,)) for number in range(len(got))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(torch.equal(gradient, wanted) for gradient in got)


class Operations(TorchDispatchMode):
    """Counts operations that compute: not views, not allocations."""

    VIEWS = re.compile(
        r"(view|view_as_complex|view_as_real|detach|alias|slice|select|unsqueeze|squeeze|expand|permute|transpose|t|"
        r"unbind|as_strided|split|_unsafe_view|empty|new_empty|empty_like|_local_scalar_dense|chunk)\."
    )

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).removeprefix("aten.")
        if not self.VIEWS.match(name):
            self.names.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "most"), [("APE", 60), ("PE", 60), ("APE by quality", 62), ("AP", 93), ("RankSort", 111), ("aLRP", 107)]
)
def test_the_torch_engine_takes_few_operations(name, most):
    logits, labels, quality = scene(*STAGES["middle"])
    loss = LOSSES[name](method="torch", check=False)
    loss(logits, labels, quality)  # what depends on the distance alone is kept
    leaf = logits.requires_grad_()
    with Operations() as counted:
        loss(leaf, labels, quality).backward()
    assert len(counted.names) <= most, counted.names


class Numbers(TorchDispatchMode):
    """Counts the numbers that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        parts = result if isinstance(result, tuple | list) else [result]
        self.total += sum(part.numel() for part in parts if isinstance(part, Tensor))
        return result


@pytest.mark.parametrize("name", LOSSES)
def test_a_positive_adds_no_more_work_for_the_torch_engine_among_many(name):
    work = []
    for positives in (10, 16_000):
        logits, labels, quality = scene(*STAGES["middle"], positives=positives, rows=17_000)
        with Numbers() as counted:
            LOSSES[name](method="torch", check=False)(logits.requires_grad_(), labels, quality).backward()
        work.append(counted.total)
    assert (work[1] - work[0]) / 16_000 < 3000  # a number for each pair of positives would be 16,000


def on_pretended_gpu(loss, logits: Tensor, labels: Tensor, quality: Tensor) -> tuple[Tensor, list[str]]:
    """The gradient, and what the host waits for."""
    with CountGPUWork() as first:  # copies what depends on the distance alone to the device
        loss(on_gpu(logits), on_gpu(labels), on_gpu(quality))
    with CountGPUWork() as work:
        leaf = on_gpu(logits).requires_grad_()
        loss(leaf, on_gpu(labels), on_gpu(quality)).backward()
    assert first.launches
    return on_host(leaf.grad), sorted(cause for _, cause in work.syncs)


@pytest.mark.parametrize("name", LOSSES)
def test_the_torch_engine_waits_twice_for_a_gpu(name):
    """For the number of positives, and for the range of their logits, which says how large the table is."""
    samples = scene(*STAGES["middle"])
    gradient, syncs = on_pretended_gpu(LOSSES[name](method="torch"), *samples)
    assert syncs == ["nonzero", "tolist"]
    expected = run(LOSSES[name], "dense", samples[0].double(), *samples[1:])[1]
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("distance", [Step(), Sigmoid(3.0), SigmoidCrossEntropy(cut=4.0)])
def test_the_torch_engine_cuts_pairs_on_a_gpu(distance):
    def make(method: str) -> PairwiseError:
        return PairwiseError(distance, ValidNegatives(), method=method)

    samples = scene(*STAGES["middle"])
    gradient, _ = on_pretended_gpu(make("torch"), *samples)
    expected = run(make, "dense", samples[0].double(), *samples[1:])[1]
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-9)


# torch.compile


# Those that `tests/losses/test_losses_all.py` compiles take the engine that is chosen for them.
@pytest.mark.parametrize("loss", [APELoss(method="torch"), PELoss(cut=4.0)])
def test_a_compiled_step_has_no_graph_break(loss):
    logits, labels, quality = scene(*STAGES["middle"], rows=120)

    def step(x: Tensor) -> Tensor:
        return 3 * loss(2 * x, labels, quality)

    leaf = logits.requires_grad_()
    expected = step(leaf)
    value = torch.compile(step, backend="aot_eager", fullgraph=True)(leaf)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, leaf), torch.autograd.grad(expected, leaf))


@pytest.mark.parametrize(
    "make",
    [lambda: APELoss(lam=7.25, max_negatives=90), lambda: RankSortLoss(delta=0.375), lambda: ALRPLoss(delta=0.75)],
)
def test_a_loss_may_be_made_inside_of_a_compiled_step(make):
    """Settings that no other test has: nothing remembers the loss."""
    logits, labels, quality = scene(*STAGES["middle"], rows=120)
    leaf = logits.requires_grad_()
    value = torch.compile(lambda x: make()(x, labels, quality), backend="aot_eager", fullgraph=True)(leaf)
    gradient = torch.autograd.grad(value, leaf)
    expected = make()(leaf, labels, quality)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, leaf))


def test_a_compiled_step_raises_on_bad_values():
    logits, labels, quality = scene(*STAGES["middle"], rows=120)
    loss = APELoss()
    step = torch.compile(lambda x: loss(x, labels, quality), backend="aot_eager", fullgraph=True)
    row = int((labels == 3).nonzero()[0])
    logits[row, 1] = torch.nan
    with pytest.raises(ValueError, match=rf"logits.*\[{row}, 1\]"):
        step(logits)


@pytest.mark.parametrize("method", [*ENGINES, "dense"])
@pytest.mark.parametrize("family", ["pairwise", "alrp"])
def test_the_operators_are_registered_as_torch_wants_them(method, family):
    logits, labels, quality = scene(*STAGES["middle"], rows=120)
    spec = RankingSpec(family, Step(), adaptive=family == "pairwise")
    arguments = logits.requires_grad_(), labels, quality, None, spec.key, method, True
    torch.library.opcheck(torch.ops.rankwise.ranking_loss.default, arguments)


@pytest.fixture
def _unset_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_unset_memory_is_nan")
@pytest.mark.parametrize("distance", [Step(), SigmoidCrossEntropy()], ids=["step", "sigmoid"])
@pytest.mark.parametrize("method", ["numba", "torch", "dense"])
def test_what_the_operator_returns_is_all_computed(method, distance):
    logits, labels, quality = scene(*STAGES["middle"], rows=120)
    spec = RankingSpec("pairwise", distance, adaptive=True)
    found = torch.ops.rankwise.ranking_loss(logits, labels, quality, None, spec.key, method, True)
    assert all(bool(value.isfinite().all()) for value in found)


@pytest.mark.parametrize(
    "loss", [APELoss(method="torch"), PairwiseError(Sigmoid(8.0), ValidNegatives(0.25), method="torch")]
)
def test_the_torch_engine_keeps_nothing_after_a_call(loss):
    logits = torch.randn(1000, 5, requires_grad=True)
    gc.disable()  # it would hide a cycle of references, which keeps a copy of the logits per call
    try:
        loss(logits, torch.arange(1000) % 8 % 6, torch.rand(1000)).backward()
        assert not [one for one in gc.get_objects() if type(one).__name__ == "SigmoidSums"]
    finally:
        gc.enable()
