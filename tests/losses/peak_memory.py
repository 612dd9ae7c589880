"""Prints the peak memory of losses beyond their inputs, with 20,000 positives, as a multiple of the logits.

python peak_memory.py LIMIT: a loss below the limit is not measured again.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import torch

from rankwise.losses import APELoss, PairwiseError, RankDetLoss, RankSortLoss, Step, ValidNegatives

LOSSES = {
    "APELoss, numba": APELoss(method="numba"),
    "APELoss, torch": APELoss(method="torch"),
    "RankSortLoss, numba": RankSortLoss(method="numba"),
    "RankSortLoss, torch": RankSortLoss(method="torch"),
    "Step": PairwiseError(Step()),
    "RankDetLoss": RankDetLoss(),
    "ValidNegatives": PairwiseError(balance=ValidNegatives()),
}


def memory(field: str) -> int:
    """This process's memory now ("VmRSS") or at most since it was last forgotten ("VmHWM"), in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main(limit: float) -> None:
    """Measures each loss up to six times: memory that others left in pieces can only add to its peak."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50_000, 80, generator=generator).requires_grad_()
    labels = torch.full((50_000,), 80)
    labels[torch.randperm(50_000, generator=generator)[:20_000]] = 0
    quality = torch.rand(50_000, generator=generator)
    found = {}
    for name, loss in LOSSES.items():
        loss(logits[:100].detach().requires_grad_(), labels[:100], quality[:100]).backward()  # code is compiled
        peaks = []
        for _ in range(6):
            logits.grad = None
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
            before = memory("VmRSS")
            loss(logits, labels, quality).backward()
            peaks.append((memory("VmHWM") - before) / logits.nbytes)
            if peaks[-1] < limit:
                break
        found[name] = min(peaks)
    print(json.dumps(found))


if __name__ == "__main__":
    main(float(sys.argv[1]))
