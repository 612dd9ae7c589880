"""How time and memory of APE loss grow with the samples and with the positives.

    python benchmarks/loss_scaling.py    # run nothing beside it; 6 GB of memory

Prints the exponents of the time, fitted over the larger half of the sizes where constant costs no longer show, and
the peak of memory above the inputs as a multiple of the logits' own size; the gradient is 1 of it. Each size runs in a
process of its own, whose peak the system reports.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import resource
import time
from pathlib import Path

import torch

from rankwise.losses import APELoss

CLASSES = 80
SAMPLES = [100_000, 400_000, 1_600_000, 6_400_000, 16_000_000, 64_000_000]
POSITIVES = [10, 100, 1_000, 5_000, 20_000]
RESULTS = Path(__file__).parent / "results"


def peak() -> int:
    """Most memory this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(samples: int, positives: int, method: str, turns: int, queue: multiprocessing.Queue) -> None:
    """Best time of forward and backward, and the peak of memory above the inputs over the logits' size."""
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(samples)
    rows = max(samples // CLASSES, positives)
    loss = APELoss(method=method)
    small = torch.randn(1000, CLASSES).requires_grad_()
    some = torch.randint(CLASSES + 1, (1000,))
    loss(small, some, torch.rand(1000)).backward()  # compiles, so that the compiler's memory is not counted
    logits = torch.randn(rows, CLASSES, generator=generator).mul_(1.2).sub_(6)
    labels = torch.full((rows,), CLASSES)
    chosen = torch.randperm(rows, generator=generator)[:positives]
    labels[chosen] = torch.randint(CLASSES, (positives,), generator=generator)
    logits[chosen, labels[chosen]] += 4
    quality = torch.rand(rows, generator=generator)
    before, best = peak(), math.inf
    for _ in range(turns):
        leaf = logits.detach().requires_grad_()
        start = time.perf_counter()
        loss(leaf, labels, quality).backward()
        best = min(best, time.perf_counter() - start)
        del leaf
    queue.put((best, (peak() - before) / (logits.numel() * 4)))


def run(samples: int, positives: int, method: str = "numba") -> dict[str, float]:
    """One size in a process of its own."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    turns = 5 if samples < 10_000_000 else 3
    process = context.Process(target=measure, args=(samples, positives, method, turns, queue))
    process.start()
    seconds, memory = queue.get()
    process.join()
    row = {"samples": samples, "positives": positives, "ms": 1000 * seconds, "memory": memory}
    print(
        f"{samples:>11,} samples {positives:>6,} positives: {row['ms']:9.1f} ms, {memory:5.2f} times the logits",
        flush=True,
    )
    return row


def exponent(rows: list[dict[str, float]], key: str) -> float:
    """The slope of log time over log size, over the larger half of the sizes."""
    half = rows[len(rows) // 2 :]
    x = torch.tensor([math.log(row[key]) for row in half], dtype=torch.float64)
    y = torch.tensor([math.log(row["ms"]) for row in half], dtype=torch.float64)
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def main() -> None:
    """Measures, prints and writes the table."""
    by_samples = [run(samples, 500) for samples in SAMPLES]
    by_positives = [run(4_000_000, positives) for positives in POSITIVES]
    plain = [run(4_000_000, positives, method="torch") for positives in POSITIVES]
    summary = {
        "exponent in samples": round(exponent(by_samples, "samples"), 3),
        "exponent in positives": round(exponent(by_positives, "positives"), 3),
        "most memory, times the logits": round(max(row["memory"] for row in by_samples + by_positives), 2),
        "the same by the torch engine": round(max(row["memory"] for row in plain), 2),
    }
    lines = ["# How APE loss scales", "", "`python benchmarks/loss_scaling.py`, 2 CPU threads, float32.", ""]
    lines += [
        "| samples | positives | engine | forward and backward, ms | peak memory, times the logits |",
        "|---:|---:|---|---:|---:|",
    ]
    for engine, rows in (("numba", by_samples + by_positives), ("torch", plain)):
        for row in rows:
            size = f"{row['samples']:,} | {row['positives']:,}"
            lines.append(f"| {size} | {engine} | {row['ms']:.1f} | {row['memory']:.2f} |")
    lines += ["", *(f"- {name}: {value}" for name, value in summary.items())]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "loss_scaling.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    content = {"samples": by_samples, "positives": by_positives, "torch": plain, **summary}
    (RESULTS / "loss_scaling.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print("\n".join(f"{name}: {value}" for name, value in summary.items()))


if __name__ == "__main__":
    main()
