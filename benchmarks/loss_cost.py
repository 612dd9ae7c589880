"""What each loss costs, forward and backward, against torchvision's ``sigmoid_focal_loss`` on the same logits.

    python benchmarks/loss_cost.py            # the table of the README: run nothing beside it
    python benchmarks/loss_cost.py --quick    # one size, in seconds

Contestants take turns and the best of several turns counts, since other programs only ever make a turn slower. The
target that torchvision's loss needs is made outside of the time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torchvision.ops import sigmoid_focal_loss

import rankwise.losses as losses
from rankwise.pairsums import passes

CLASSES = 80
SIZES = {100_000: 200, 1_000_000: 500, 4_000_000: 500, 16_000_000: 1000}  # samples: positives
#: Mean and deviation of negatives' and positives' logits: a fresh head, in the middle, and at the end of training.
STAGES = {"beginning": ((-4.6, 0.1), (-4.6, 0.1)), "middle": ((-6, 1.2), (-2, 1.5)), "end": ((-8, 1.5), (0, 1.5))}
RANKING = ["APELoss", "PELoss", "APLoss", "RankSortLoss", "ALRPLoss", "RankDetLoss"]
#: Also measured without compiled code, as on a GPU or where there is no numba.
PLAIN = ["APELoss", "APLoss"]
OTHERS = ["DRLoss", "FocalLoss", "GHMLoss", "QualityFocalLoss", "VarifocalLoss"]
OTHERS += ["MALoss", "IABCELoss", "PositionSupervisedLoss", "CorrelationLoss"]
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


def ratios(names: list[str], samples: int, stage: str, turns: int) -> dict[str, float]:
    """Each loss's time as a multiple of focal loss's, and focal loss's own in milliseconds."""
    logits, labels, quality, target = scene(samples, SIZES[samples], stage)
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "focal": lambda leaf: sigmoid_focal_loss(leaf, target, reduction="sum")
    }
    for name in names:
        loss = getattr(losses, name)()
        calls[name] = lambda leaf, loss=loss: loss(leaf, labels, quality)
    best = {name: float("inf") for name in calls}
    for turn in range(turns + 1):  # the first turn compiles and warms up
        for name, call in calls.items():
            taken = seconds(call, logits)
            if turn:
                best[name] = min(best[name], taken)
    found = {name: best[name] / best["focal"] for name in names}
    return found | {"focal ms": 1000 * best["focal"]}


def short_table(rows: list[dict[str, Any]]) -> str:
    """What the README shows: the worst of the three stages of training at each size."""
    columns = [*RANKING, "APELoss, plain torch"]
    lines = ["| samples | " + " | ".join(columns) + " |", "|---:|" + "---:|" * len(columns)]
    for samples in SIZES:
        same = [row for row in rows if row["samples"] == samples]
        worst = " | ".join(f"{max(row[name] for row in same):.2f}" for name in columns)
        lines.append(f"| {samples:,} | {worst} |")
    return "\n".join(lines) + "\n"


def write_readme(rows: list[dict[str, Any]]) -> None:
    """Puts the short table into the README."""
    path = RESULTS.parents[1] / "README.md"
    before, begin, rest = path.read_text(encoding="utf-8").partition("<!-- loss_cost.py writes this -->\n")
    _, end, after = rest.partition("<!-- end -->")
    path.write_text(before + begin + short_table(rows) + end + after, encoding="utf-8")


def main() -> None:
    """Measures, prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only a million samples, in the middle of training")
    parser.add_argument("--turns", type=int, default=14, help="with four million samples; more with fewer")
    parser.add_argument("--last", action="store_true", help="measure nothing: write the README's table anew")
    words = parser.parse_args()
    if words.last:
        write_readme(json.loads((RESULTS / "loss_cost.json").read_text(encoding="utf-8")))
        return
    sizes, stages = ([1_000_000], ["middle"]) if words.quick else (list(SIZES), list(STAGES))
    rows = []
    for samples in sizes:
        turns = max(3, words.turns * 4_000_000 // max(samples, 1_000_000))  # the shorter a turn, the more a pause harms
        for stage in stages:
            row: dict[str, Any] = {"samples": samples, "positives": SIZES[samples], "stage": stage}
            row |= ratios(RANKING + OTHERS, samples, stage, turns)
            passes.use_compiled = False
            plain = ratios(PLAIN, samples, stage, turns)
            row |= {f"{name}, plain torch": plain[name] for name in PLAIN}
            passes.use_compiled = True
            rows.append(row)
            print(" ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{v}" for k, v in row.items()), flush=True)
    columns = [*RANKING, *OTHERS, *(f"{name}, plain torch" for name in PLAIN)]
    lines = [
        "# Cost of the losses",
        "",
        f"`python benchmarks/loss_cost.py`: forward and backward as multiples of torchvision's `sigmoid_focal_loss`; "
        f"{torch.get_num_threads()} CPU threads, float32, {CLASSES} classes, best of several turns.",
        "",
        "| samples | positives | training | " + " | ".join(columns) + " | focal loss, ms |",
        "|---:|---:|---|" + "---:|" * (len(columns) + 1),
    ]
    for row in rows:
        numbers = " | ".join(f"{row[name]:.2f}" for name in columns)
        lines.append(
            f"| {row['samples']:,} | {row['positives']:,} | {row['stage']} | {numbers} | {row['focal ms']:.1f} |"
        )
    if not words.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "loss_cost.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (RESULTS / "loss_cost.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        write_readme(rows)
    print("\n".join(lines[2:]))


if __name__ == "__main__":
    main()
