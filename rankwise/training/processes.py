"""Devices and processes, on one or several machines, and their common decisions."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import LightningEnvironment
from torch.nn.parallel import DistributedDataParallel

from rankwise.bf16 import Bf16Error, enable_bf16
from rankwise.config.settings import TrainSettings
from rankwise.errors import SettingsError
from rankwise.training.memory import keep_freed_memory
from rankwise.training.rendezvous import Strategy, end_with_parent, rendezvous

# Running statistics are those of rank 0, as usual in DDP, but they are broadcast when they are read and not in every
# forward pass. A process that fails before its forward pass then does not block the others. Newer versions of torch
# call it so:
_NEW_NAME = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
_DDP = {"forward_sync_buffers" if _NEW_NAME else "broadcast_buffers": False}


class Decision(NamedTuple):
    """What all processes decide in the middle of a step; a field is true if it is true for any process.

    Attributes:
        stop: A signal was received: stop after this step.
        failed: There is no batch: stop before this step.
        bad: Predictions are not finite: skip this step.
        faults: Images of the batch could not be read.
        save: A checkpoint is due after this step.
    """

    stop: bool = False
    failed: bool = False
    bad: bool = False
    faults: bool = False
    save: bool = False


PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def launch(settings: TrainSettings) -> Fabric:
    """Starts the processes of the settings. Under ``torchrun``, its processes are used instead."""
    fabric = build_fabric(settings)
    environment = getattr(fabric.strategy, "cluster_environment", None)
    if isinstance(environment, LightningEnvironment) and environment.local_rank() > 0:
        end_with_parent()
    try:
        if not isinstance(environment, LightningEnvironment) and fabric.world_size > 1:
            rendezvous(fabric)
        fabric.launch()
    except RuntimeError as error:
        if fabric.world_size == 1:
            raise
        raise SettingsError(
            f"the processes could not reach each other ({' '.join(str(error).split())[:300]}): check that all of "
            f"them are started with the same address and port, and that no firewall blocks them"
        ) from error
    if fabric.device.type == "cpu":
        keep_freed_memory()
    if settings.threads:  # after launching, which divides the cores among the processes
        torch.set_num_threads(settings.threads)
    return fabric


def build_fabric(settings: TrainSettings) -> Fabric:
    """Creates Fabric from the settings, without starting its processes."""
    accelerator = settings.accelerator
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise SettingsError("--train.accelerator cuda: torch finds no GPU; use cpu or auto")
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available())
    if settings.precision == "16" and on_cpu:
        raise SettingsError("--train.precision 16 needs a GPU; on the CPU use bf16 or 32")
    if settings.precision == "bf16" and on_cpu:
        _enable_bf16()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", settings.devices))
    if local < 1:
        raise SettingsError(f"--devices {local}: there must be at least one")
    nodes = int(os.environ.get("WORLD_SIZE", local)) // local if "LOCAL_WORLD_SIZE" in os.environ else 1
    if not on_cpu and torch.cuda.is_available() and local > torch.cuda.device_count():
        raise SettingsError(f"--devices {local}: this machine has {torch.cuda.device_count()} GPUs")
    _check_divisible(settings.images_per_step, local * nodes)
    strategy = Strategy(**_DDP) if local * nodes > 1 else "auto"  # type: ignore[arg-type]
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # otherwise every process prints its rank
    return Fabric(
        accelerator=accelerator,
        devices=local,
        num_nodes=nodes,
        strategy=strategy,
        precision=PRECISIONS[settings.precision],  # type: ignore[arg-type]
    )


def _enable_bf16() -> None:
    """Call before the processes start: those started by Fabric inherit the environment."""
    try:
        changed = enable_bf16()
    except Bf16Error as error:
        raise SettingsError(str(error)) from error
    if changed:
        print(changed, file=sys.stderr)


def _check_divisible(batch_size: int, world_size: int) -> None:
    """Refuses a batch that cannot be divided among the processes."""
    if batch_size < 1 or batch_size % world_size:
        raise SettingsError(
            f"a batch of {batch_size} images cannot be divided among {world_size} processes: "
            f"set --train.batch_size to a multiple of {world_size}, or the number of processes to a divisor of "
            f"{batch_size}"
        )
