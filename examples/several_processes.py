"""A batch ranked over several processes: plain DDP, Lightning Fabric or accelerate, with the loss of a single one.

Run: torchrun --nproc-per-node 2 examples/several_processes.py [--by ddp | fabric | accelerate] [--bf16]
     python examples/several_processes.py                       # the same batches in one process: the same losses

Each process takes its share of every batch. ``scope="world"`` ranks the samples of all processes against each other, so
the averaged gradient is that of one process with the whole batch. On GPUs only the device and backend differ.
"""

import argparse
import os
from functools import partial

import torch
from torch import Tensor, nn

from rankwise.losses import APELoss

BATCH, CELLS, CLASSES, STEPS = 8, 100, 4, 5


def batch(step: int, rank: int, world: int) -> tuple[Tensor, Tensor, Tensor]:
    """This process's share of a batch: features, labels and qualities of the cells of its images."""
    generator = torch.Generator().manual_seed(step)
    features = torch.randn(BATCH, CELLS, 16, generator=generator)
    labels = torch.where(features[..., 0] > 1.5, features[..., 1:5].argmax(-1), CLASSES)
    quality = features[..., 5].sigmoid()
    mine = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    return features[mine], labels[mine], quality[mine]


def main(by: str, bf16: bool) -> list[float]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    autocast, backward = partial(torch.autocast, "cpu", torch.bfloat16, enabled=bf16), Tensor.backward
    if by == "fabric":
        from lightning_fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=world, precision="bf16-mixed" if bf16 else "32-true")
        fabric.launch()
        model, optimizer = fabric.setup(model, optimizer)
        autocast, backward = fabric.autocast, fabric.backward
    elif by == "accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True, mixed_precision="bf16" if bf16 else "no")
        model, optimizer = accelerator.prepare(model, optimizer)
        autocast, backward = accelerator.autocast, accelerator.backward
    elif world > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)

    loss, values = APELoss(scope="world"), []
    for step in range(STEPS):
        features, labels, quality = batch(step, rank, world)
        with autocast():
            logits = model(features)
        value = loss(logits, labels, quality)  # [B, A, C] logits; every process calls it in every step
        optimizer.zero_grad()
        backward(value)
        optimizer.step()
        values.append(value.item())
        if rank == 0:
            print(f"step {step}: loss {value.item():.8f}", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return values


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", choices=["ddp", "fabric", "accelerate"], default="ddp")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 in the model; the loss is computed in float32")
    main(**vars(parser.parse_args()))
