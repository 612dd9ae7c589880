"""Rendezvous and supervision of processes, with time limits and messages that name the missing process."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from subprocess import Popen
from typing import Any

from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from lightning_fabric.strategies.launchers import subprocess_script
from torch import distributed

from rankwise.errors import RendezvousError

#: Seconds that processes wait for each other at the start; the environment variable is for slow clusters.
TIMEOUT = 120.0
VARIABLE = "RANKWISE_RENDEZVOUS_SECONDS"
#: Its name in earlier versions.
_OLD_VARIABLE = "RANKWISE_MEETING_SECONDS"

#: Seconds for this process to end with its own, more detailed error after another process has died.
GRACE = 10.0


def rendezvous(fabric: Fabric) -> None:
    """Connects the processes started by a launcher such as torchrun and names missing ones. Call it before launching.

    Each restart uses its own store prefix: torchrun's agent keeps the store with the addresses of the first attempt,
    and a restarted process might otherwise contact a dead one. On several machines the restart counts differ and cannot
    be a prefix. There, the agents must be told not to share the store; see the documentation.
    """
    environment = fabric.strategy.cluster_environment  # type: ignore[attr-defined]
    rank, world = environment.global_rank(), environment.world_size()
    address, port = environment.main_address, environment.main_port
    limit = timedelta(seconds=float(os.environ.get(VARIABLE) or os.environ.get(_OLD_VARIABLE) or TIMEOUT))
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    alone = os.environ.get("WORLD_SIZE") == os.environ.get("LOCAL_WORLD_SIZE")
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if shared and alone else "0"
    where = f"rank {rank} waited {limit.total_seconds():g} s at {address}:{port} for"
    todo = f"Is it running, with the same address and port, and not blocked by a firewall? ({VARIABLE} sets the limit)"
    host = rank == 0 and not shared
    if not host and not _answers(address, port, limit.total_seconds()):  # torch would print a C++ stack trace
        raise RendezvousError(f"{where} rank 0. {todo}")
    try:
        store: Any = distributed.TCPStore(address, port, world, host, limit, wait_for_workers=False)
    except RuntimeError as error:
        raise RendezvousError(f"{where} rank 0 ({str(error).splitlines()[0][:200]}). {todo}") from error
    store = distributed.PrefixStore(f"restart {restarts}", store)
    store.set(f"rank {rank}", "here")
    keys = [f"rank {other}" for other in range(world)]
    try:
        store.wait(keys, limit)
    except RuntimeError as error:
        raise RendezvousError(f"{where} {_missing(store, keys)}. {todo}") from error
    backend = "nccl" if fabric.device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=world)


def _answers(address: str, port: int, seconds: float) -> bool:
    """Whether the address accepts connections before the time limit."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            socket.create_connection((address, port), timeout=left).close()
            return True
        except OSError:
            time.sleep(min(0.2, left))
    return False


def _missing(store: Any, keys: Sequence[str]) -> str:
    try:
        return ", ".join(key for key in keys if not store.check([key])) or "the others"
    except RuntimeError:  # the store died with rank 0
        return keys[0]


class Strategy(DDPStrategy):
    """DDP that supervises the processes it starts: if one dies, the others end with a message."""

    def _configure_launcher(self) -> None:
        super()._configure_launcher()
        if type(self._launcher) is subprocess_script._SubprocessScriptLauncher:
            self._launcher = _Launcher(self._launcher)


class _Launcher(subprocess_script._SubprocessScriptLauncher):
    """Fabric's launcher with our own supervision, because Fabric kills all processes without a message."""

    def __init__(self, plain: subprocess_script._SubprocessScriptLauncher) -> None:
        super().__init__(plain.cluster_environment, plain.num_processes, plain.num_nodes)

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Starts and supervises the other processes, then calls the function."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            self._call_children_scripts()
            watch(self.procs)
        subprocess_script._set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)


def watch(children: Sequence[Popen[bytes]], every: float = 0.5, grace: float = GRACE) -> None:
    """Ends this process and the others once a child, of rank 1 and above, has died, and reports which one.

    ``grace`` are seconds for this process to end by itself: in the middle of a step it notices, and its error has more
    details.
    """

    def look() -> None:
        while True:
            codes = [child.poll() for child in children]
            for rank, (dead, code) in enumerate(zip(children, codes, strict=True), start=1):
                if not code:
                    continue
                if code < 0:  # it could not report this itself
                    _print_end(rank, dead.pid, f"was killed by {_name(-code)}; usually because memory ran out")
                time.sleep(grace)
                if code > 0:
                    _print_end(rank, dead.pid, f"ended with exit code {code}")
                for child in children:
                    child.kill()
                os._exit(2)
            if all(code == 0 for code in codes):
                return
            time.sleep(every)

    threading.Thread(target=look, name="watch-children", daemon=True).start()


def _print_end(rank: int, pid: int, what: str) -> None:
    print(
        f"rankwise train: rank {rank} (process {pid}) {what}. The others are stopped; resume from the last "
        f"checkpoint with --resume",
        file=sys.stderr,
        flush=True,
    )


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end_with_parent() -> None:
    """Ends this process once its parent is gone; otherwise it would wait forever and hold its GPU."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(2.0)
        os._exit(1)

    threading.Thread(target=look, name="end-with-parent", daemon=True).start()
