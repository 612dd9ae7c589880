"""The Triton engine without a GPU: what it launches, that it never waits for the device, and that it compiles."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gpu_counting import CountGPUWork, on_gpu
from ranking_specs import SPECS, make_samples
from torch._subclasses.fake_tensor import FakeTensorMode

from rankwise import losses
from rankwise.losses import PositiveBoxes
from rankwise.pairsums.ranking import ranking_loss

pytest.importorskip("triton")
HERE = Path(__file__).parent
LIMITS = {"APE": 12, "PE": 12, "sigmoid": 12, "interpolated sigmoid": 16, "narrow step": 16, "AP": 16}


@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_the_numbers_are_right_in_the_interpreter():
    """The interpreter must be chosen before triton is imported, so these files run in one process of their own."""
    files = sorted(HERE.parent.glob("*/test_*_interpreted.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, files)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE.parent.parent)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    assert "skipped" not in result.stdout


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("scope", ["batch", "image"])
def test_forward_and_backward_launch_few_kernels_and_never_wait(name, scope):
    samples, spec = make_samples("middle"), replace(SPECS[name], scope=scope)
    with CountGPUWork() as work:
        logits = on_gpu(samples.logits).requires_grad_()
        others = (on_gpu(t) for t in samples[1:])
        ranking_loss(logits, *others, spec, method="fast").loss.backward()
    assert not work.syncs, work.report()
    assert work.launches <= LIMITS.get(name, 30), work.report()
    assert any("triton" in line for line in work.lines), work.report()


@pytest.mark.parametrize("name", ["APELoss", "PELoss", "APLoss", "RankSortLoss", "ALRPLoss"])
def test_a_loss_with_its_box_loss_never_waits(name):
    logits, labels, quality, _ = make_samples("middle")
    rows = ((labels >= 0) & (labels < logits.shape[1])).nonzero().squeeze(1)
    loss = getattr(losses, name)()
    with CountGPUWork():
        loss.to("cuda:0")
    with CountGPUWork() as work:
        logits = on_gpu(logits).requires_grad_()
        outcome = loss.outcome(logits, on_gpu(labels), on_gpu(quality))
        outcome.loss.backward()
        limit = {"APELoss": 12, "PELoss": 12, "APLoss": 16}.get(name, 30)
        assert work.launches <= limit, work.report()
        errors = on_gpu(torch.rand(len(rows))).requires_grad_()
        loss.box_loss(PositiveBoxes(errors, on_gpu(torch.ones(len(rows))), rows=on_gpu(rows)), outcome).backward()
    assert not work.syncs, work.report()


def test_a_sync_is_reported_with_its_line():
    samples = make_samples("middle")
    with CountGPUWork() as work:
        given = [on_gpu(t) for t in samples]
        ranking_loss(*given, SPECS["APE"], method="fast", check=False)
        assert not work.syncs
        with suppress(ValueError):  # the kernels have not run, so the loss may be NaN or not
            ranking_loss(*given, SPECS["APE"], method="fast", check=True)
    assert any(line.startswith("rankwise/pairsums/ranking.py:") for line, _ in work.syncs), work.report()


def test_a_cpu_without_the_interpreter_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="CUDA or ROCm device, got cpu"):
        ranking_loss(*make_samples("middle"), SPECS["APE"], method="triton")


@pytest.mark.parametrize("name", ["APE", "aLRP"])
def test_the_operators_take_fake_tensors(name):
    """As torch.compile does when it traces: any operation that needs a value on the host would raise."""
    with FakeTensorMode():
        logits = torch.empty(1000, 80, device="cuda", dtype=torch.bfloat16)
        labels = torch.empty(1000, device="cuda", dtype=torch.int64)
        quality = torch.empty(1000, device="cuda")
        given, key = (logits, labels, quality, None), SPECS[name].key
        loss, _, boxes, *saved = torch.ops.rankwise.ranking_loss(*given, key, "triton", False)
        gradient = torch.ops.rankwise.ranking_loss_backward(loss, *given, saved, key, "triton")
        assert boxes.numel() == (1000 if name == "aLRP" else 0)
        assert gradient.shape == logits.shape
        assert gradient.dtype == torch.bfloat16
        assert gradient.device.type == "cuda"


def _each_kernel_once(*first: tuple[str, str]) -> dict:
    """Each kernel as one of the losses launches it, in the scopes that come first if it is launched there."""
    from triton_compilation import launches_of

    launches: dict = {}
    others = (("AP", "batch"), ("aLRP", "batch"), ("RankSort", "batch"), ("APE", "batch"), ("APE", "world"))
    for name, scope in (*first, *others):
        for launch in launches_of(replace(SPECS[name], scope=scope)):
            launches.setdefault(launch.name, launch)
    return launches


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("target", "first"),
    [
        ("sm_80", ()),
        ("sm_90", (("APE", "image"), ("RankSort", "image"))),
        ("gfx942", (("aLRP", "image"), ("APE", "image"))),
    ],
)
def test_every_kernel_compiles_ahead_of_time_without_spills(target, first):
    from triton_compilation import TOOLS, usage

    if not target.startswith("gfx") and not (TOOLS / "ptxas").exists():
        pytest.skip(f"Triton's ptxas is not installed: kernels for {target} were not compiled")
    launches = _each_kernel_once(*first)
    assert len(launches) == 21
    found = {name: usage(launch, target) for name, launch in launches.items()}
    assert not {name: used for name, used in found.items() if used.spills}, found
    atomics = frozenset().union(*(used.atomics for used in found.values()))
    assert any("add" in kind for kind in atomics)
    # Sums of floats would depend on the order of the programs.
    assert not {kind for kind in atomics if re.search(r"f16|f32|f64", kind)}
