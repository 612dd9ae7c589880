"""What the ranking losses cost on a GPU: run it on one and send us what it prints.

    python benchmarks/gpu.py              # everything: a few minutes
    python benchmarks/gpu.py --quick      # one size, in the middle of training
    python benchmarks/gpu.py --compile    # without a GPU: registers and spills of every kernel, compiled ahead of time

On a GPU: for each size, stage of training and dtype the time of forward and backward (eager, ``torch.compile``, CUDA
graph) beside torchvision's focal loss (eager and fused by ``torch.compile``), time per kernel, atomics and bytes per
second, peak memory, the error against the definition, whether ten runs give equal bits, and whether the host waits.

Without a GPU: launches and host syncs, counted, and an estimate of the time by a model of the hardware.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from loss_cost import SIZES, STAGES, scene
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from rankwise.pairsums.distances import SigmoidCrossEntropy, Step
from rankwise.pairsums.ranking import ranking_loss
from rankwise.pairsums.spec import RankingSpec

TESTS = Path(__file__).parent.parent / "tests"
LOSSES = {
    "APELoss": RankingSpec("pairwise", SigmoidCrossEntropy(8.0), adaptive=True),
    "PELoss": RankingSpec("pairwise", SigmoidCrossEntropy(8.0)),
    "APLoss": RankingSpec("pairwise", Step(0.5), own=1.0, interpolated=True),
    "RankSortLoss": RankingSpec("ranksort", Step(0.5)),
    "ALRPLoss": RankingSpec("alrp", Step(1.0), own=1.0),
}
Call = Callable[[Tensor], Tensor]


# The model: microseconds, bytes per microsecond, atomics per microsecond (good, expected, bad) of published figures.
GPUS = {
    "A100": {"memory": 1.3e6, "cache": 2.5e6, "cache size": 40e6, "atomics": (50e3, 25e3, 10e3)},
    "RTX 4090": {"memory": 0.92e6, "cache": 2.5e6, "cache size": 72e6, "atomics": (60e3, 30e3, 12e3)},
}
LAUNCH = 5.0  # a kernel takes at least this long
FOCAL_LAUNCHES, FOCAL_BYTES = 36, 350  # of torchvision's focal loss, forward and backward; bytes per sample


def estimate(gpu: str, samples: int, launches: int, atomics: int) -> tuple[float, float, float]:
    """Estimated microseconds of forward and backward: good, expected and bad rates of atomics."""
    model = GPUS[gpu]
    rate = model["cache"] if 8 * samples < model["cache size"] else model["memory"]
    backward = max(LAUNCH, 8.1 * samples / rate)
    forward = [max(LAUNCH, 4.1 * samples / rate, atomics * samples / a) for a in model["atomics"]]
    good, expected, bad = ((launches - 2) * LAUNCH + f + backward for f in forward)
    return good, expected, bad


def without_gpu(compile_too: bool) -> None:
    """Counts, and an estimate."""
    sys.path[:0] = [str(TESTS), str(TESTS / "pairsums")]
    from gpu_counting import CountGPUWork, on_gpu

    print("No GPU here. Launches and host syncs are counted; times are an ESTIMATE by a model, not a measurement.\n")
    print(f"{'loss':14} launches syncs   estimated us at 1e5, 1e6, 4e6 and 1.6e7 samples (good to bad atomics)")
    given = [torch.randn(100, 80), torch.full((100,), 80), torch.rand(100)]
    given[1][:9] = 3
    for gpu, model in GPUS.items():
        times = [FOCAL_LAUNCHES * max(LAUNCH, FOCAL_BYTES * n / FOCAL_LAUNCHES / _rate(model, 12 * n)) for n in SIZES]
        print(f"{gpu}\n  {'focal, eager':14} {FOCAL_LAUNCHES:6} {0:6}   " + "  ".join(f"{t:.0f}" for t in times))
        times = [LAUNCH + sum(max(LAUNCH, b * n / _rate(model, 12 * n)) for b in (8, 12)) for n in SIZES]
        print(f"  {'focal, fused':14} {3:6} {0:6}   " + "  ".join(f"{t:.0f}" for t in times))
        for name, spec in LOSSES.items():
            with CountGPUWork() as work:
                logits, labels, quality = map(on_gpu, given)
                ranking_loss(logits.requires_grad_(), labels, quality, None, spec, "triton").loss.backward()
            atomics = 2 if isinstance(spec.distance, Step) else 1
            times = [estimate(gpu, n, work.launches, atomics) for n in SIZES]
            shown = "  ".join(f"{t[1]:.0f} ({t[0]:.0f}-{t[2]:.0f})" for t in times)
            print(f"  {name:14} {work.launches:6} {work.syncs.total():6}   {shown}")
    if compile_too:
        compile_kernels()


def _rate(model: dict, size: float) -> float:
    return model["cache"] if size < model["cache size"] else model["memory"]


def compile_kernels() -> None:
    """Registers, spills and shared memory of every kernel in every version that the losses launch."""
    from dataclasses import replace

    from triton_compilation import TARGETS, launches_of, signature, usage

    seen = set()
    for scope in ("batch", "image"):
        for dtype in (torch.float32, torch.bfloat16):
            for name, spec in LOSSES.items():
                for launch in launches_of(replace(spec, scope=scope), dtype):
                    if signature(launch) in seen:
                        continue
                    seen.add(signature(launch))
                    found = {target: usage(launch, target) for target in TARGETS}
                    shown = "  ".join(f"{t} {u.registers} regs {u.spills} spilled" for t, u in found.items())
                    print(f"{name:13} {scope:6} {str(dtype)[6:]:9} {launch.name:32} {shown}", flush=True)


def milliseconds(call: Callable[[], object], turns: int = 30) -> tuple[float, float]:
    """Best and median time of a call, after warming up."""
    for _ in range(5):
        call()
    times = []
    for _ in range(turns):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return min(times), median(times)


def both_passes(call: Call, logits: Tensor) -> Callable[[], Tensor]:
    """A call that runs forward and backward and returns the gradient."""
    leaf = logits.detach().requires_grad_()
    return lambda: torch.autograd.grad(call(leaf), leaf)[0]


def as_graph(run: Callable[[], Tensor]) -> Callable[[], None]:
    """The same captured in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def peak_megabytes(run: Callable[[], Tensor]) -> float:
    """Memory that a call takes at most, beyond what is allocated before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def kernel_times(run: Callable[[], Tensor], turns: int = 10) -> dict[str, float]:
    """Microseconds per call of each kernel, most first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(turns):
            run()
        torch.cuda.synchronize()
    times = {event.key: event.self_device_time_total / turns for event in found.key_averages()}
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def measure(samples: int, stage: str, dtype: torch.dtype) -> None:
    """Prints everything about one batch."""
    on_host = scene(samples, SIZES[samples], stage)
    logits, labels, quality, target = (tensor.cuda() for tensor in on_host)
    logits, target = logits.to(dtype), target.to(dtype)
    print(f"\n== {samples:,} samples, {SIZES[samples]} positives, {stage} of training, {str(dtype)[6:]}")

    def focal(leaf: Tensor) -> Tensor:
        return sigmoid_focal_loss(leaf, target, reduction="sum")

    eager, fused = (milliseconds(both_passes(call, logits)) for call in (focal, torch.compile(focal)))
    print(f"focal loss: eager {eager[1]:.3f} ms (best {eager[0]:.3f}), fused {fused[1]:.3f} (best {fused[0]:.3f})")
    for name, spec in LOSSES.items():

        def loss(leaf: Tensor, spec: RankingSpec = spec) -> Tensor:
            return ranking_loss(leaf, labels, quality, None, spec, "triton").loss

        run = both_passes(loss, logits)
        first = run()
        equal = all(torch.equal(run(), first) for _ in range(10))
        torch.cuda.set_sync_debug_mode("error")
        try:
            run()
            waits = "never waits"
        except RuntimeError as error:
            waits = f"WAITS: {error}"
        finally:
            torch.cuda.set_sync_debug_mode("default")
        times = {
            "eager": milliseconds(run),
            "compiled": milliseconds(both_passes(torch.compile(loss, fullgraph=True), logits)),
            "graph": milliseconds(as_graph(run)),
        }
        shown = ", ".join(f"{kind} {t[1]:.3f} ms (best {t[0]:.3f})" for kind, t in times.items())
        ratios = f"eager {times['eager'][1] / eager[1]:.2f} x focal, {times['eager'][1] / fused[1]:.2f} x fused focal"
        bits = "equal" if equal else "DIFFER"
        print(f"{name}: {shown}; {ratios}; peak {peak_megabytes(run):.1f} MB; ten runs {bits}; {waits}")
        if samples <= 100_000:
            print(
                f"  largest error of a gradient, of the largest gradient: {error_of(spec, logits, labels, quality):.1e}"
            )
        kernels = kernel_times(run)
        for kernel, time in kernels.items():
            rate = ""
            if kernel.startswith("scatter"):
                rate = f"{samples / time / 1e3:.1f} samples (atomics) per ns"
            elif kernel.startswith("gradient_of"):
                rate = f"{2 * logits.element_size() * samples / time / 1e3:.0f} GB/s"
            print(f"  {time:9.1f} us {kernel[:60]} {rate}")


def error_of(spec: RankingSpec, logits: Tensor, labels: Tensor, quality: Tensor) -> float:
    """The largest error of a gradient against the definition in float64, relative to the largest gradient."""
    gradients = []
    for leaf, method in ((logits.float(), "triton"), (logits.double(), "dense")):
        leaf = leaf.detach().requires_grad_()
        loss = ranking_loss(leaf, labels, quality, None, spec, method).loss
        gradients.append(torch.autograd.grad(loss, leaf)[0].double())
    return float((gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max().clamp(min=1e-300))


def main() -> None:
    """Measures on a GPU, counts without one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only a million samples, in the middle of training")
    parser.add_argument("--compile", action="store_true", help="without a GPU: compile every kernel, and print its use")
    words = parser.parse_args()
    if not torch.cuda.is_available():
        without_gpu(words.compile)
        return
    import triton

    device, version = torch.cuda.get_device_properties(0), torch.version
    print(f"{device.name}, {device.total_memory / 2**30:.0f} GB, {device.multi_processor_count} processors")
    print(f"torch {torch.__version__}, CUDA {version.cuda}, ROCm {version.hip}, triton {triton.__version__}")
    for samples in [1_000_000] if words.quick else SIZES:
        for stage in ["middle"] if words.quick else STAGES:
            for dtype in (torch.float32, torch.bfloat16):
                measure(samples, stage, dtype)


if __name__ == "__main__":
    main()
