"""Runs of the command in forked processes that have everything imported, so that each starts quickly."""

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from contextlib import closing
from pathlib import Path
from unittest import mock

import torch

#: A run of a second or two, with a step in every state that a checkpoint must hold.
TINY = [
    "--model.input.short_side=64",
    "--model.input.max_side=64",
    "--model.backbone.args={'channels': [8, 16, 24, 32]}",
    "--model.neck.channels=16",
    "--model.head.channels=16",
    "--model.head.depth=1",
    "--data.shapes.size=64",
    "--data.shapes.train_images=20",
    "--data.shapes.val_images=6",
    "--train.batch_size=4",
    "--train.epochs=2",
    "--train.log_every=1",
    "--train.threads=1",
    "--schedule.warmup_steps=2",
    "--loss=FocalLoss",
]

#: Nothing that depends on how many images are normalised together, so that any number of processes does the same.
STILL = ["--model.backbone.frozen_norm=true", "--model.neck.norm=gn", "--model.head.norm=gn"]

#: What a run imports sooner or later; hotcoco and scipy by its evaluation.
_IMPORTS = ["rankwise.training.loop", "rankwise.cli", "tensorboard", "torch.utils.tensorboard.writer", "pytest"]
_IMPORTS += ["rankwise.config.trust", "scipy.stats", "hotcoco", "numba", "tests.training.warm_kernels"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(_IMPORTS)


class Live:
    """One process that runs the command.

    Args:
        words: The command line, after ``rankwise``.
        log: File for what it prints.
        env: More of its environment.
        before: Called in the process first, a function of a module: to prepare a bad day.
        full: Whether to evaluate and draw at the end as well.
    """

    def __init__(self, words, log, env=None, before=None, full=False):
        self.log = Path(log)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}):
            arguments = ([str(word) for word in words], str(self.log), env or {}, before, full)
            self.process = _context.Process(target=_run, args=arguments)
            self.process.start()

    @property
    def pid(self):
        return self.process.pid

    @property
    def said(self):
        return self.log.read_text() if self.log.exists() else ""

    def kill(self, number=signal.SIGKILL):
        os.kill(self.process.pid, number)

    def wait(self, seconds=240):
        """Its exit code; a signal's number counts negative."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"still running after {seconds} s; it said:\n{self.said}")
        return self.process.exitcode


def live(*words, log, **options):
    """Starts a training; its words follow ``rankwise train``."""
    return Live(["train", *words], log, **options)


def finish(*words, log, code=0, seconds=240, **options):
    """A training from start to end; returns what it said."""
    run = live(*words, log=log, **options)
    got = run.wait(seconds)
    assert got == code, f"exit code {got}, it said:\n{run.said}"
    return run.said


def ranks(number, *words, folder, before=None, full=False, machines=1, **env):
    """Starts a training on several processes, with the environment that torchrun gives them on one or more machines."""
    local = number // machines
    port = free_port()
    runs = []
    for rank in range(number):
        mine = {
            "RANK": rank,
            "LOCAL_RANK": rank % local,
            "WORLD_SIZE": number,
            "LOCAL_WORLD_SIZE": local,
            "GROUP_RANK": rank // local,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": "test",
            **env,
        }
        log = Path(folder) / f"rank{rank}.log"
        runs.append(live(*words, log=log, env={k: str(v) for k, v in mine.items()}, before=before, full=full))
    return runs


def wait_all(runs, code=0, seconds=240):
    """Waits for all of them, which must end with the same code; returns what each said."""
    end = time.monotonic() + seconds
    codes = [run.wait(max(1, end - time.monotonic())) for run in runs]
    said = [run.said for run in runs]
    assert codes == [code] * len(runs), f"exit codes {codes}, they said:\n" + "\n----\n".join(said)
    return said


def free_port():
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def wait_for(condition, seconds=60, every=0.005):
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(every)


def lines(run):
    """The lines of a run's metrics.jsonl that are complete."""
    path = Path(run) / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def last_step(run):
    """The last step in a run's log."""
    return max((line["step"] for line in lines(run)), default=0)


def checkpoint(run):
    return torch.load(Path(run) / "last.ckpt", weights_only=True)


def differences(one, other, where=""):
    """Where two states of plain values and tensors differ in any bit."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [where]
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{where} keys"]
        return [d for key in one for d in differences(one[key], other[key], f"{where}.{key}")]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [f"{where} length"]
        return [d for i, (a, b) in enumerate(zip(one, other, strict=True)) for d in differences(a, b, f"{where}.{i}")]
    return [] if one == other else [f"{where}: {one} {other}"]


def _run(words, log, env, before, full):
    # Whoever runs the tests in the background may have them ignore these, which is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with Path(log).open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.update(env)
    from rankwise import cli
    from rankwise.training import loop

    if not full:
        loop.evaluate_run = lambda *_, **__: None
    if before:
        before()
    try:
        cli.main(words)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
