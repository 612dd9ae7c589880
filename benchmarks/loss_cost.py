"""What each loss costs, forward and backward, against focal loss on the same logits.

    python benchmarks/loss_cost.py                    # the tables of README and results: run nothing beside it
    python benchmarks/loss_cost.py --sizes 100000     # measure some sizes only, keep the rest of the results
    python benchmarks/loss_cost.py --quick            # a million samples in the middle of training, write nothing

There are two bases: torchvision's ``sigmoid_focal_loss`` fused by ``torch.compile``, and as it is. Contestants take
turns. The table has the ratio of the best turns, since other programs only ever make a turn slower; best and median of
each are in the JSON. The target that focal loss needs is made outside of the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bucketed import bucketed
from torchvision.ops import sigmoid_focal_loss

import rankwise.losses as losses

CLASSES = 80
SIZES = {100_000: 200, 1_000_000: 500, 4_000_000: 500, 16_000_000: 1000}  # samples: positives
#: Mean and deviation of negatives' and positives' logits: a fresh head, in the middle, and at the end of training.
STAGES = {"beginning": ((-4.6, 0.1), (-4.6, 0.1)), "middle": ((-6, 1.2), (-2, 1.5)), "end": ((-8, 1.5), (0, 1.5))}
RANKING = ["APELoss", "PELoss", "APLoss", "RankSortLoss", "ALRPLoss", "RankDetLoss"]
#: Also measured by the torch engine, as where there is no numba.
PLAIN = ["APELoss", "APLoss", "RankSortLoss", "ALRPLoss"]
OTHERS = ["DRLoss", "FocalLoss", "GHMLoss", "QualityFocalLoss", "VarifocalLoss"]
OTHERS += ["MALoss", "IABCELoss", "PositionSupervisedLoss", "CorrelationLoss", "SmoothAPLoss"]
#: Given a target per entry: by `dense`, and by labels that are made from the targets first.
BY_TARGETS = ["APELoss", "FocalLoss"]
#: Also measured in the bucketed approximation, with the error of its gradient.
BUCKETED = ["APLoss", "RankSortLoss"]
#: Contestants slower than this, in milliseconds, take three turns.
SLOW = 300
RESULTS = Path(__file__).parent / "results"


def scene(samples: int, positives: int, stage: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, labels, quality and torchvision's target for a batch."""
    generator = torch.Generator().manual_seed(samples)
    rows = samples // CLASSES
    (low, low_spread), (high, high_spread) = STAGES[stage]
    chosen = torch.randperm(rows, generator=generator)[:positives]
    labels = torch.full((rows,), CLASSES)
    labels[chosen] = torch.randint(CLASSES, (positives,), generator=generator)
    logits = torch.randn(rows, CLASSES, generator=generator).mul_(low_spread).add_(low)
    logits[chosen, labels[chosen]] = torch.randn(positives, generator=generator) * high_spread + high
    target = torch.zeros(rows, CLASSES)
    target[chosen, labels[chosen]] = 1
    return logits, labels, torch.rand(rows, generator=generator), target


def seconds(call: Callable[[torch.Tensor], torch.Tensor], logits: torch.Tensor) -> float:
    """The time of one forward and backward pass."""
    leaf = logits.detach().requires_grad_()
    start = time.perf_counter()
    call(leaf).backward()
    return time.perf_counter() - start


def fused(leaf: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Focal loss for ``torch.compile``."""
    return sigmoid_focal_loss(leaf, target, reduction="sum")


def by_labels(loss: losses.Loss, leaf: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The call with labels, if targets are what is given."""
    quality, classes = targets.max(1)
    return loss(leaf, classes.masked_fill_(quality <= 0, targets.shape[1]), quality)


def measure(samples: int, stage: str, turns: int) -> dict[str, Any]:
    """Best and median time of each contestant in milliseconds."""
    logits, labels, quality, target = scene(samples, SIZES[samples], stage)
    compiled = torch.compile(fused, dynamic=False)
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "fused focal loss": lambda leaf: compiled(leaf, target),
        "eager focal loss": lambda leaf: fused(leaf, target),
    }
    contestants = {name: getattr(losses, name)() for name in RANKING + OTHERS}
    contestants |= {f"{name}, torch": getattr(losses, name)(method="torch") for name in PLAIN}
    for name, loss in contestants.items():
        calls[name] = lambda leaf, loss=loss: loss(leaf, labels, quality)
    targets = target * quality[:, None]
    for name in BY_TARGETS:
        calls[f"{name}.dense"] = lambda leaf, loss=contestants[name]: loss.dense(leaf, targets)
        calls[f"{name}, made labels"] = lambda leaf, loss=contestants[name]: by_labels(loss, leaf, targets)
    for name in BUCKETED:
        calls[f"{name}, bucketed"] = lambda leaf, loss=contestants[name]: bucketed(loss, leaf, labels, quality)
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 2):  # the first turns compile and warm up
        for name, call in calls.items():
            if len(taken[name]) > 2 and min(taken[name]) > SLOW:
                continue
            found = seconds(call, logits)
            if turn > 1:
                taken[name].append(1000 * found)
    times = {name: {"best": min(found), "median": statistics.median(found)} for name, found in taken.items()}
    errors = {name: gradient_error(calls[f"{name}, bucketed"], calls[name], logits) for name in BUCKETED}
    return {"samples": samples, "positives": SIZES[samples], "stage": stage, "ms": times, "gradient_error": errors}


def gradient_error(call: Callable, exact: Callable, logits: torch.Tensor) -> float:
    """The norm of the error of a gradient relative to that of the exact one."""
    leaf = logits.detach().requires_grad_()
    found, expected = (torch.autograd.grad(one(leaf), leaf)[0].double() for one in (call, exact))
    return float((found - expected).norm() / expected.norm())


def ratio(row: dict[str, Any], name: str, base: str) -> float:
    """How many times the base's best time a loss takes."""
    return row["ms"][name]["best"] / row["ms"][f"{base} focal loss"]["best"]


def short_table(rows: list[dict[str, Any]]) -> str:
    """What the README shows: the worst of the three stages of training at each size."""
    columns = [*RANKING, "APELoss, torch"]
    lines = ["| samples | against | " + " | ".join(columns) + " |", "|---:|---|" + "---:|" * len(columns)]
    for samples in sorted({row["samples"] for row in rows}):
        same = [row for row in rows if row["samples"] == samples]
        for base in ("fused", "eager"):
            worst = " | ".join(f"{max(ratio(row, name, base) for row in same):.2f}" for name in columns)
            lines.append(f"| {samples:,} | {base} | {worst} |")
    return "\n".join(lines) + "\n"


def long_table(rows: list[dict[str, Any]]) -> str:
    """All losses and stages."""
    columns = [*RANKING, *OTHERS, *(f"{name}, torch" for name in PLAIN), *(f"{name}, bucketed" for name in BUCKETED)]
    columns += [f"{name}{how}" for name in BY_TARGETS for how in (".dense", ", made labels")]
    lines = [
        "# Cost of the losses",
        "",
        "`python benchmarks/loss_cost.py`: forward and backward as multiples of torchvision's `sigmoid_focal_loss`, "
        "fused by `torch.compile` and eager; best of several turns.",
        f"{torch.get_num_threads()} CPU threads, float32, {CLASSES} classes, torch {torch.__version__}. "
        "Best and median of each in milliseconds: loss_cost.json.",
        "",
        "| samples | positives | training | against | " + " | ".join(columns) + " | focal loss, best ms | median |",
        "|---:|---:|---|---|" + "---:|" * (len(columns) + 2),
    ]
    for row in rows:
        for base in ("fused", "eager"):
            numbers = " | ".join(f"{ratio(row, name, base):.2f}" if name in row["ms"] else "–" for name in columns)
            own = row["ms"][f"{base} focal loss"]
            start = f"| {row['samples']:,} | {row['positives']:,} | {row['stage']} | {base} | {numbers}"
            lines.append(f"{start} | {own['best']:.1f} | {own['median']:.1f} |")
    lines += ["", "Error of the bucketed gradients, relative to the norm of the exact ones:", ""]
    lines += ["| samples | training | " + " | ".join(BUCKETED) + " |", "|---:|---|" + "---:|" * len(BUCKETED)]
    for row in rows:
        if "gradient_error" in row:
            errors = " | ".join(f"{row['gradient_error'][name]:.1%}" for name in BUCKETED)
            lines.append(f"| {row['samples']:,} | {row['stage']} | {errors} |")
    return "\n".join(lines) + "\n"


def write(rows: list[dict[str, Any]]) -> None:
    """Writes the results, and the short table into the README."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "loss_cost.md").write_text(long_table(rows), encoding="utf-8")
    (RESULTS / "loss_cost.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    path = RESULTS.parents[1] / "README.md"
    before, begin, rest = path.read_text(encoding="utf-8").partition("<!-- loss_cost.py writes this -->\n")
    _, end, after = rest.partition("<!-- end -->")
    path.write_text(before + begin + short_table(rows) + end + after, encoding="utf-8")


def main() -> None:
    """Measures, prints and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only a million samples, in the middle of training")
    parser.add_argument("--sizes", type=int, nargs="+", choices=list(SIZES), default=list(SIZES), help="samples")
    parser.add_argument("--turns", type=int, default=14, help="with four million samples; more with fewer")
    words = parser.parse_args()
    path, rows = RESULTS / "loss_cost.json", []
    if path.exists() and not words.quick:
        rows = [row for row in json.loads(path.read_text(encoding="utf-8")) if row["samples"] not in words.sizes]
    for samples in [1_000_000] if words.quick else words.sizes:
        turns = max(3, words.turns * 4_000_000 // max(samples, 1_000_000))  # the shorter a turn, the more a pause harms
        for stage in ["middle"] if words.quick else STAGES:
            rows.append(measure(samples, stage, turns))
            print(samples, stage, flush=True)
            for name, ms in rows[-1]["ms"].items():
                against = " ".join(f"{ratio(rows[-1], name, base):6.2f} x {base}" for base in ("fused", "eager"))
                print(f"  {name:22} best {ms['best']:8.2f} ms  median {ms['median']:8.2f} ms  {against}", flush=True)
            for name, error in rows[-1]["gradient_error"].items():
                print(f"  {name}, bucketed: error of the gradient {error:.1%}", flush=True)
            for name in BY_TARGETS:
                ms = {call: rows[-1]["ms"][f"{name}{call}"]["best"] for call in ("", ".dense", ", made labels")}
                against = f"{ms['.dense'] / ms['']:.2f} times the call with given labels"
                print(f"  {name}.dense: {against}, {ms['.dense'] / ms[', made labels']:.2f} with made ones", flush=True)
        if not words.quick:
            write(sorted(rows, key=lambda row: (row["samples"], list(STAGES).index(row["stage"]))))


if __name__ == "__main__":
    main()
