"""Devices and processes: one, several on a machine, or several machines."""

from __future__ import annotations

import os

import torch
from lightning_fabric import Fabric

from rankwise.training.settings import TrainSettings


class SettingsError(ValueError):
    """Settings that do not go together, or not with this machine."""


PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def build_fabric(settings: TrainSettings) -> Fabric:
    """Fabric by the settings; under ``torchrun`` its number of processes and machines counts."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    accelerator = settings.accelerator
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise SettingsError("--train.accelerator cuda: torch sees no GPU here; use cpu or auto")
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available())
    if settings.precision == "16" and on_cpu:
        raise SettingsError("--train.precision 16 needs a GPU; on the CPU take bf16 or 32")
    local = int(os.environ.get("LOCAL_WORLD_SIZE", settings.devices))
    nodes = int(os.environ.get("WORLD_SIZE", local)) // local if "LOCAL_WORLD_SIZE" in os.environ else 1
    if not on_cpu and torch.cuda.is_available() and local > torch.cuda.device_count():
        raise SettingsError(f"--devices {local}: this machine has {torch.cuda.device_count()} GPUs")
    return Fabric(
        accelerator=accelerator,
        devices=local,
        num_nodes=nodes,
        strategy="ddp" if local * nodes > 1 else "auto",
        precision=PRECISIONS[settings.precision],  # type: ignore[arg-type]
    )


def share_of_batch(batch_size: int, world_size: int) -> int:
    """Images of a batch for each process."""
    if batch_size < 1 or batch_size % world_size:
        raise SettingsError(
            f"a batch of {batch_size} images does not divide among {world_size} processes: "
            f"set --train.batch_size to a multiple of {world_size}"
        )
    return batch_size // world_size
