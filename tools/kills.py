"""Kills trainings at random moments, resumes them, and flips bits in what they saved: part of `make soak`.

A run that was killed any number of times must end with the checkpoint of one that was not, bit by bit. Of the files
that it leaves, every one with a flipped bit must be refused. Exit code 1 if not. Run it with tests/training on
PYTHONPATH, as `make soak` does: the trainings are started as the tests start theirs.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from live_runs import TINY, Live, checkpoint, differences, finish, last_step, live

from rankwise.errors import ModelError
from rankwise.models import Detector
from rankwise.training.checkpoint import CheckpointError, load_checkpoint

FLAGS = [*TINY, "--train.epochs=12", "--train.evaluate_every=4", "--train.checkpoint_steps=4"]
#: Runs in turn: a plain one, and one with all that has a state of its own beside the weights.
SETUPS = [[], ["--loss=ALRPLoss", "--box.weight=1", "--train.ema=0.99", "--train.accumulate=2", "--data.workers=1"]]


def kill_and_resume(folder: Path, kills: int, seed: int) -> tuple[int, int]:
    """Kills so many times, over as many runs as that takes; gives the kills, and the runs that ended differently."""
    dice, done, runs, different = random.Random(seed), 0, 0, 0
    whole = []
    for number, more in enumerate(SETUPS):
        finish(
            "shapes", *FLAGS, *more, "--run", folder / f"whole{number}", log=folder / f"whole{number}.log", seconds=600
        )
        whole.append(checkpoint(folder / f"whole{number}"))
    while done < kills:
        run, log = folder / f"run{runs}", folder / f"run{runs}.log"
        words = ["shapes", *FLAGS, *SETUPS[runs % len(SETUPS)], "--run", run]
        while True:
            process = live(*words, log=log)
            if done < kills:
                _wait(process, run, dice)
                if process.process.exitcode is None:
                    process.kill()
                    process.wait()
                    done += 1
                    words = ["--resume", run] if (run / "recipe.yaml").is_file() else words
                    continue
            assert process.wait(600) == 0, process.said
            break
        wrong = differences(whole[runs % len(SETUPS)], checkpoint(run))
        runs += 1
        if wrong:
            different += 1
            print(f"run {runs} differs: {wrong[:5]}")
        print(f"{done} kills over {runs} runs, {different} ended differently", flush=True)
        shutil.rmtree(run)
    return done, different


def _wait(process: Live, run: Path, dice: random.Random) -> None:
    """Waits for a random moment: one in five is before the first step, the others are within the next eight.

    Most of a process's time goes into its start, so few steps between kills leave more kills per run.
    """
    if dice.random() < 0.2:
        process.process.join(dice.uniform(0, 3))
        return
    begun, steps = last_step(run), dice.randint(1, 8)
    while last_step(run) < begun + steps and process.process.exitcode is None:
        time.sleep(0.02)
    process.process.join(dice.uniform(0, 0.5))  # in the middle of a step, of an evaluation or of a write


def flip_bits(folder: Path, flips: int, seed: int) -> dict[str, int]:
    """How many of so many files with one flipped bit are refused."""
    dice, refused = random.Random(seed), {}
    for name, load in (("last.ckpt", load_checkpoint), ("best.safetensors", Detector.load)):
        path = folder / "whole0" / name
        content = path.read_bytes()
        refused[name] = 0
        for _ in range(flips):
            damaged, bit = bytearray(content), dice.randrange(8 * len(content))
            damaged[bit // 8] ^= 1 << bit % 8
            (folder / name).write_bytes(damaged)
            try:
                load(folder / name)
                print(f"{name}: bit {bit} was accepted")
            except (CheckpointError, ModelError):
                refused[name] += 1
    return refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--flips", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kills, different = kill_and_resume(folder, options.kills, options.seed)
        print(f"{kills} kills, {different} runs that ended differently, {time.monotonic() - start:.0f} s", flush=True)
        refused = flip_bits(folder, options.flips, options.seed)
    for file, number in refused.items():
        print(f"{file}: {number} of {options.flips} flipped bits refused")
    sys.exit(1 if different or min(refused.values()) < options.flips else 0)


if __name__ == "__main__":
    main()
