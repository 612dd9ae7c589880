"""Kernels outside the pairwise engines compile ahead of time for several GPUs, without spilling registers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
sys.path.append(str(Path(__file__).parents[1] / "pairsums"))

from torch._subclasses.fake_tensor import FakeTensorMode
from triton_compilation import POINTERS, Launch, recorded_launches, usage

from rankwise.assign import gmm_triton
from rankwise.boxes import kernels as boxes_triton
from rankwise.models import nms_triton


def launches() -> list[Launch]:
    """What is launched for a batch, on fake tensors."""
    with recorded_launches() as found, FakeTensorMode():
        boxes = torch.empty(1800, 4, device="cuda")
        boxes_triton.iou(boxes, boxes)
        boxes_triton.iou(boxes.double(), boxes.double())
        boxes_triton.GIoULoss.apply(boxes, boxes, 1e-7)
        values = torch.empty(40, 45, dtype=torch.float64, device="cuda")
        gmm_triton.fit(values, values > 0, 1e-3, 1e-6, 100)
        index = torch.empty(1800, dtype=torch.int64, device="cuda")
        nms_triton.vote(boxes, boxes[:, 0], index, index[:400], index[:400], index[:400], 0.025)
    return found


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_kernels_compile_ahead_of_time(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POINTERS, torch.bool, "*i1")
    found = launches()
    assert [launch.kernel.fn.__name__ for launch in found] == ["paired_iou"] * 2 + ["giou", "fit_set", "vote_for_box"]
    for launch in found:
        names = launch.kernel.arg_names
        plain = launch._replace(constants={k: v for k, v in launch.constants.items() if k in names})
        assert usage(plain, target).spills == 0, launch.name
