"""Runs the example of several processes in every way, and prints its losses as JSON: a process of its own.

Each run is forked from this process, which has everything imported, with the environment that torchrun gives.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import re
import runpy
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import accelerate  # noqa: F401  imported once for all runs
import lightning_fabric  # noqa: F401
import torch

from rankwise.losses import APELoss

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "several_processes.py")
WAYS = ["--by ddp", "--by fabric", "--by accelerate"]
context = multiprocessing.get_context("fork")


def run(words: list[str], environment: dict[str, str], printed: Connection) -> None:
    """The example as it is started, up to what it prints."""
    os.environ |= environment
    sys.argv = [EXAMPLE, *words]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(EXAMPLE, run_name="__main__")
    printed.send(output.getvalue())


def losses(words: list[str], world: int) -> list[float]:
    """The losses that the first of so many processes prints; the others print none."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    shared = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = []
    for rank in range(world):
        own = {"RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "test", **shared} if world > 1 else {}
        receiver, sender = context.Pipe(duplex=False)
        arguments = (words, {name: str(value) for name, value in own.items()}, sender)
        started.append((context.Process(target=run, args=arguments), receiver))
        started[-1][0].start()
        sender.close()  # so that the end of the process ends the wait for it
    first, *others = [receiver.recv() for _, receiver in started]
    for process, _ in started:
        process.join()
    assert not any("loss" in text for text in others), others
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", first)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    APELoss()(torch.rand(9, 2, requires_grad=True), torch.arange(9) % 3, torch.rand(9)).backward()  # loads the kernels
    found = {}
    for precision in ([], ["--bf16"]):
        for way in ("alone", *WAYS):
            words = [*([] if way == "alone" else way.split()), *precision]
            found[" ".join([way, *precision])] = losses(words, 1 if way == "alone" else 2)
    print("RESULT", json.dumps(found))
