"""The trainer of ultralytics in two processes on a CPU, started by its own launcher, which is only used for GPUs.

Its command is run by forks of this process, which need not import everything again.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import ultralytics.engine.trainer as trainers
from torch import distributed, nn
from torch.distributed import run as torchrun
from train_yolo import settings_for, slim
from ultralytics import YOLO
from ultralytics.models.yolo.detect import DetectionTrainer
from ultralytics.utils import LOCAL_RANK, RANK

from rankwise.integrations.ultralytics import RankingTerm, use_ranking
from rankwise.losses import APELoss

PROCESSES = 2


class OnCPU(nn.parallel.DistributedDataParallel):
    """Without the device, which is None on a CPU."""

    def __init__(self, module: nn.Module, device_ids: Any = None, **settings: Any) -> None:
        super().__init__(module, **settings)


class TwoProcesses(DetectionTrainer):  # type: ignore[misc]
    """What is decided by the number of GPUs, as with two of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.world_size, self.ddp = PROCESSES, LOCAL_RANK == -1

    def _setup_ddp(self) -> None:
        distributed.init_process_group("gloo", rank=RANK, world_size=PROCESSES)
        nn.parallel.DistributedDataParallel = OnCPU  # type: ignore[misc]

    def final_eval(self) -> None:
        """Nothing: with several processes, it asks CUDA for the device."""


def listen(trainer: Any) -> None:
    """Notes logits, targets and value of every call of the ranking term."""
    assert isinstance(trainer.model, OnCPU)
    trainer.calls = []
    term = trainer.model.module.criterion.bce
    assert isinstance(term, RankingTerm)
    term.register_forward_hook(lambda _, given, value: trainer.calls.append([*given, value.detach()]))


def save(trainer: Any) -> None:
    """Writes what was noted, and the weights."""
    weights = torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])
    torch.save({"calls": trainer.calls, "weights": weights}, Path(trainer.args.project) / f"process{RANK}.pt")


def run_forked(command: list[str], check: bool) -> None:
    """Runs ``python -m torch.distributed.run FLAGS SCRIPT`` in this process; those that it starts are forked."""
    assert command[1:3] == ["-m", "torch.distributed.run"]
    *flags, script = command[3:]
    torchrun.main([*flags, "--start-method=fork", "--run-path", __file__, script])


def read_ranks() -> None:
    """Sets what ultralytics reads from the environment when it is imported, which was before the fork."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("ultralytics", "two_processes"):
            for rank in {"RANK", "LOCAL_RANK"} & vars(module).keys():
                setattr(module, rank, int(os.environ[rank]))


def main(folder: Path) -> None:
    model = use_ranking(YOLO(slim(folder, "yolo11n")), APELoss(scope="world"), keep=0.0)
    model.add_callback("on_train_start", listen)
    model.add_callback("on_train_epoch_end", save)
    with mock.patch.object(trainers.subprocess, "run", run_forked):
        model.train(trainer=TwoProcesses, epochs=1, name="two", **settings_for(folder) | {"batch": 8})


if __name__ == "__main__":
    read_ranks()
    runpy.run_path(sys.argv[1], run_name="__main__")
