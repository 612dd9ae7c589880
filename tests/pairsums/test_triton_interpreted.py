"""The Triton engine's numbers, in Triton's interpreter: run with TRITON_INTERPRET=1, as `test_triton.py` does."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ranking_specs import SCENES, SPECS, component_error, make_samples
from torch.distributed import destroy_process_group, init_process_group
from torch.multiprocessing.spawn import start_processes

from rankwise.pairsums import choose, engines
from rankwise.pairsums.spec import Forward, RankingSpec, Samples

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, on values that a mask leaves out


def run(method: str, samples: Samples, spec: RankingSpec) -> tuple[Forward, torch.Tensor]:
    samples = samples._replace(image=samples.image if spec.scope == "image" else None)
    engine = choose(method, spec, samples)
    forward = engine.forward(samples, spec)
    upstream = torch.tensor(3.0, dtype=forward.loss.dtype)
    return forward, engine.backward(upstream, samples, forward.saved, spec)


def compare(samples: Samples, spec: RankingSpec) -> None:
    """Triton against the definition in float64."""
    got, gradient = run("triton", samples, spec)
    wanted, expected = run("dense", samples._replace(logits=samples.logits.double()), spec)
    torch.testing.assert_close(got.loss.double(), wanted.loss, rtol=1e-6, atol=1e-20)
    torch.testing.assert_close(got.log, wanted.log, rtol=1e-6, atol=1e-12)
    dtype = samples.logits.dtype
    if dtype == torch.float32:
        assert component_error(gradient, expected) <= 1
    else:
        torch.testing.assert_close(gradient, expected.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-7)
    if got.box_weights is not None:
        torch.testing.assert_close(got.box_weights.double(), wanted.box_weights, rtol=1e-6, atol=1e-9)


#: Formulas differ in what they make of the sums, so these two see all scenes and the others a few.
ALL_SCENES = ("APE", "RankSort")
FEW_SCENES = ("middle", "end", "all equal", "no positives")


@pytest.mark.parametrize(
    ("name", "scene"), [(n, s) for n in SPECS for s in (SCENES if n in ALL_SCENES else FEW_SCENES)]
)
def test_loss_and_every_gradient_are_those_of_the_pairs(name, scene):
    compare(make_samples(scene), SPECS[name])


@pytest.mark.parametrize("name", SPECS)
def test_images_are_ranked_by_themselves_whatever_their_numbers(name, monkeypatch):
    from rankwise.pairsums.engines.triton import engine

    spec, samples = replace(SPECS[name], scope="image"), make_samples("middle")
    monkeypatch.setattr(engine, "MAX_IMAGES", 4)
    compare(samples, spec)
    some_have_no_table = samples._replace(image=samples.image * 1_000_000_007 - 5)
    compare(some_have_no_table, spec)


@pytest.mark.parametrize("name", ["APE", "AP", "RankSort"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_loses_only_the_digits_of_the_result(name, dtype):
    samples = make_samples("middle")
    samples = samples._replace(logits=samples.logits.to(dtype))
    compare(samples, SPECS[name])


@pytest.mark.parametrize("name", ["APE", "sigmoid", "AP", "RankSort"])
@pytest.mark.parametrize(("spread", "shift"), [(1e5, 0), (1e10, 1e8), (1.0, 1e6), (0.0, 3e38), (1e38, -1e38)])
def test_any_finite_logits_give_the_right_value(name, spread, shift):
    samples = make_samples("start")
    logits = samples.logits + 4.6
    logits = logits / logits.abs().max() * spread + shift
    assert logits.isfinite().all()
    compare(samples._replace(logits=logits), SPECS[name])


@pytest.mark.parametrize("name", ["APE", "aLRP"])
@pytest.mark.parametrize("scope", ["batch", "image"])
def test_no_rows_and_one_row(name, scope):
    for rows in (0, 1):
        compare(make_samples("only positives", rows=rows, classes=2), replace(SPECS[name], scope=scope))


@pytest.mark.parametrize("name", ["APE", "RankSort"])
def test_many_positives_fill_more_than_one_block(name):
    compare(make_samples("middle", rows=300, classes=3, positives=200), SPECS[name])


@pytest.mark.parametrize(("name", "scope"), [("APE", "batch"), ("APE", "image"), ("RankSort", "batch")])
def test_any_order_of_programs_gives_equal_bits(name, scope, monkeypatch):
    from triton.runtime import interpreter

    from rankwise.pairsums.engines.triton import engine
    from rankwise.pairsums.engines.triton.arguments import Blocks

    monkeypatch.setattr(
        engine, "BLOCKS", Blocks(samples=256, scatter_programs=5, rows=4, columns=1024, pair_programs=3)
    )
    monkeypatch.setattr(engine, "MAX_IMAGES", 4)
    samples, spec = make_samples("middle", rows=30, positives=9), replace(SPECS[name], scope=scope)
    samples.logits[3, 5] = 100.0  # beyond the histogram
    results = [run("triton", samples, spec)]
    for seed in range(3):
        shuffle = random.Random(seed)
        monkeypatch.setattr(
            interpreter, "range", lambda n, shuffle=shuffle: shuffle.sample(list(range(n)), n), raising=False
        )
        results.append(run("triton", samples, spec))
    (first, gradient), *others = results
    for forward, other in others:
        assert torch.equal(forward.loss, first.loss)
        assert torch.equal(forward.log, first.log)
        assert torch.equal(other, gradient)


BAD = {
    "NaN": ("logits", float("nan")),
    "infinity": ("logits", float("-inf")),
    "label": ("labels", 41),
    "quality": ("quality", 1.01),
    "NaN quality": ("quality", float("nan")),
}


@pytest.mark.parametrize("name", ["APE", "RankSort"])
def test_bad_values_make_the_loss_nan_and_are_counted(name):
    good = make_samples("middle")
    row = int(((good.labels >= 0) & (good.labels < 40)).nonzero()[0])
    for field, value in BAD.values():
        tensor = getattr(good, field).clone()
        tensor[row] = value
        forward, gradient = run("triton", good._replace(**{field: tensor}), SPECS[name])
        assert forward.log[1] == (40 if field == "logits" else 1)
        assert forward.loss.isnan()
        assert gradient[good.labels >= 0].isnan().all()
    background = good.quality.clone()
    background[good.labels == 40] = float("nan")
    background[row] = 1.00005  # rounding
    ignored = good.logits.clone()
    ignored[good.labels < 0] = float("nan")
    forward, gradient = run("triton", good._replace(logits=ignored, quality=background), SPECS[name])
    assert forward.loss.isfinite()
    assert forward.log[1] == 0
    assert gradient.isfinite().all()


def test_it_is_in_the_list_and_says_what_it_cannot():
    assert [engine.missing for engine in engines() if engine.name == "triton"] == [None]
    samples, spec = make_samples("middle"), SPECS["APE"]
    assert choose("triton", spec, samples).name == "triton"
    assert choose("fast", spec, samples).name != "triton"  # the interpreter is for tests
    for other, reason in (
        (replace(spec, margin=0.25), "floor"),
        (replace(spec, max_negatives=10), "max_negatives"),
    ):
        with pytest.raises(ValueError, match=reason):
            choose("triton", other, samples)
    with pytest.raises(ValueError, match="float64"):
        choose("triton", spec, samples._replace(logits=samples.logits.double()))


def test_a_function_with_the_loss_compiles_without_a_graph_break():
    samples, key = make_samples("middle"), SPECS["RankSort"].key

    def step(logits):
        given = (logits * 1.5, samples.labels, samples.quality, None)
        return 2 * torch.ops.rankwise.ranking_loss(*given, key, "triton", False)[0] + logits.square().mean()

    results = []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        logits = samples.logits.clone().requires_grad_()
        loss = function(logits)
        loss.backward()
        results.append((loss.detach(), logits.grad))
    torch.testing.assert_close(results[0], results[1])


def _process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    results = {}
    for name in ("APE", "AP", "aLRP"):
        for scene in ("middle", "no positives") if name == "APE" else ("middle",):
            samples = make_samples(scene)
            part = slice(0, 25) if rank == 0 else slice(25, None)
            mine = Samples(*(None if tensor is None else tensor[part] for tensor in samples))
            if name == "AP":  # all positives in one process
                mine = mine._replace(labels=mine.labels.where(torch.tensor(rank == 0), 40))
            forward, gradient = run("triton", mine, replace(SPECS[name], scope="world"))
            results[name, scene] = forward.loss, forward.log, forward.box_weights, gradient
    torch.save(results, Path(folder) / f"{rank}.pt")
    destroy_process_group()


def test_two_processes_equal_one_with_the_whole_batch(tmp_path):
    start_processes(_process, (str(tmp_path),), nprocs=2, start_method="fork")  # which needs no imports
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name, scene in parts[0]:
        samples = make_samples(scene)
        if name == "AP":
            samples.labels[25:] = 40
        wanted, expected = run("dense", samples._replace(logits=samples.logits.double()), SPECS[name])
        gradient = torch.cat([part[name, scene][3] for part in parts]) / 2
        assert component_error(gradient, expected) <= 1
        for part in parts:
            torch.testing.assert_close(part[name, scene][0].double(), wanted.loss, rtol=1e-6, atol=0)
            torch.testing.assert_close(part[name, scene][1], wanted.log, rtol=1e-6, atol=1e-12)
        if wanted.box_weights is not None:
            boxes = torch.cat([part[name, scene][2] for part in parts]).double() / 2
            torch.testing.assert_close(boxes, wanted.box_weights, rtol=1e-6, atol=1e-9)
