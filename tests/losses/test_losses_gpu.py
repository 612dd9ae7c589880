"""The kernel of the samplewise losses compiles ahead of time for several GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rankwise.losses import FocalLoss, MALoss, VarifocalLoss

HERE = Path(__file__).parent


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_the_kernel_compiles_ahead_of_time(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.syspath_prepend(HERE.parent / "pairsums")
    from triton_compilation import TOOLS, recorded_launches, usage

    if not target.startswith("gfx") and not (TOOLS / "ptxas").exists():
        pytest.skip(f"Triton's ptxas is not installed: the kernel for {target} was not compiled")
    with recorded_launches() as launches, FakeTensorMode():
        logits, quality = torch.empty(100, 80, device="cuda"), torch.empty(100, device="cuda")
        labels = torch.empty(100, dtype=torch.int64, device="cuda")
        for loss in (FocalLoss(), VarifocalLoss(), MALoss()):
            loss(logits, labels, quality)
    assert len(launches) == 3
    assert not any(usage(launch, target).spills for launch in launches)
