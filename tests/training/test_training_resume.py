"""A run that was stopped at any point resumes and ends with the weights of an uninterrupted one."""

import functools
import os
import random
import re
import shutil
import signal
import threading
import time

import pytest
import torch
import yaml
from live_runs import STILL, TINY, checkpoint, differences, finish, last_step, lines, live, ranks, wait_all, wait_for
from safetensors.torch import load_file

from rankwise.config.recipe import parse_recipe
from rankwise.models import Detector

#: Every kind of state: statistics of batch norm, moments of Muon and AdamW, averaged weights, a loss with memory.
STATEFUL = [
    *(*TINY, "--loss=GHMLoss", "--train.ema=0.9", "--train.checkpoint_steps=3", "--optimizer.clip_norm=5"),
    "--optimizer.name=Muon",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    finish(*STATEFUL, "--run", folder / "run", log=folder / "log")
    return folder / "run"


def assert_same_end(run, whole):
    assert differences(checkpoint(run), checkpoint(whole)) == []
    assert differences(*(load_file(folder / "best.safetensors") for folder in (run, whole))) == []
    assert [path.name for path in run.iterdir() if path.name.endswith(".part")] == []
    # Every step and evaluation is in the log once, with the same losses.
    logged = [line for line in lines(run) if line["kind"] != "changed"]
    kept = [{key: line.get(key) for key in ("kind", "step", "epoch", "ranking", "box", "ap")} for line in logged]
    assert kept == [{key: line.get(key) for key in kept[0]} for line in lines(whole)]


def die(after_steps, share):
    """Kills the process some steps after its start, at some share of the time that follows; before any step for -1."""
    from rankwise.training import loop

    def kill(seconds):
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    def start(seconds):
        threading.Thread(target=kill, args=(seconds,)).start()

    if after_steps < 0:
        start(share * 0.5)
        return
    done, step = [], loop.Run.train_step

    def counted(*args):
        if len(done) == after_steps:
            start(2 * share * (done[-1] if done else 0.1))
        began = time.monotonic()
        result = step(*args)
        done.append(time.monotonic() - began)
        return result

    loop.Run.train_step = counted


def test_ten_kills_at_random_moments_change_nothing(tmp_path):
    long = [*STATEFUL, "--train.epochs=8", "--train.evaluate_every=2"]
    finish(*long, "--run", tmp_path / "whole", log=tmp_path / "log")
    run, dice = tmp_path / "run", random.Random(0)
    words = [*long, "--run", run]
    for after_steps in (0, 3, -1, 1, 4, 2, 0, 2, 3, 1):
        before = functools.partial(die, after_steps, dice.random())
        assert live(*words, log=tmp_path / "log", before=before).wait() == -signal.SIGKILL
        words = ["--resume", run]
    finish(*words, log=tmp_path / "log")
    assert_same_end(run, tmp_path / "whole")


def die_in_third_checkpoint():
    calls, save = [], torch.save

    def half(state, file):
        calls.append(1)
        if len(calls) == 3:
            file.write(b"PK\x03\x04 half of a checkpoint")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        save(state, file)

    torch.save = half


def test_a_kill_while_writing_a_checkpoint_keeps_the_previous_one(tmp_path, whole):
    process = live(*STATEFUL, "--run", tmp_path / "run", log=tmp_path / "log", before=die_in_third_checkpoint)
    assert process.wait() == -signal.SIGKILL
    assert len(list((tmp_path / "run").glob(".*.part"))) == 1
    assert checkpoint(tmp_path / "run")["progress"]["step"] == 5  # the third is that of step 6
    finish("--resume", tmp_path / "run", log=tmp_path / "log")
    assert_same_end(tmp_path / "run", whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_saves_the_run_and_prints_the_resume_command(tmp_path, whole, number, code):
    run = tmp_path / "run"
    process = live(*STATEFUL, "--train.checkpoint_steps=0", "--run", run, log=tmp_path / "log")
    wait_for(lambda: last_step(run) >= 2)
    process.kill(number)
    assert process.wait() == code
    assert f"resume with: rankwise train --resume {run}" in process.said
    assert "Traceback" not in process.said
    assert checkpoint(run)["progress"]["step"] >= 2
    said = finish("--resume", run, "--train.checkpoint_steps=3", log=tmp_path / "log2")
    assert "resuming after step" in said
    assert_same_end(run, whole)


def stop_in_evaluation():
    from rankwise.evaluation import inference

    build = inference.build_loader

    def slow(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return build(*args, **kwargs)

    inference.build_loader = slow


def test_a_signal_during_the_evaluation_does_not_wait_for_its_end(tmp_path, whole):
    run = tmp_path / "run"
    process = live(*STATEFUL, "--run", run, log=tmp_path / "log", before=stop_in_evaluation)
    assert process.wait() == 143
    assert [line for line in lines(run) if line["kind"] == "eval"] == []
    finish("--resume", run, log=tmp_path / "log")
    assert_same_end(run, whole)


def die_at_start():
    from rankwise.training import loop

    loop.Run.fit = lambda self: os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path, whole):
    process = live(*STATEFUL, "--run", tmp_path / "run", log=tmp_path / "log", before=die_at_start)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "run" / "last.ckpt").exists()
    said = finish("--resume", tmp_path / "run", log=tmp_path / "log")
    assert "no checkpoint yet: starting from the beginning" in said
    assert_same_end(tmp_path / "run", whole)


def test_initial_weights_are_read_only_at_the_start(tmp_path):
    recipe = parse_recipe(["--config", "shapes", *TINY])
    torch.manual_seed(5)
    file = tmp_path / "backbone.pt"
    torch.save(Detector(recipe.model, ["a"]).backbone.net.state_dict(), file)
    flags = [*STATEFUL, f"--model.backbone.pretrained={file}"]
    finish(*flags, "--run", tmp_path / "whole", log=tmp_path / "log")
    process = live(*flags, "--run", tmp_path / "run", log=tmp_path / "log", before=die_at_start)
    assert process.wait() == -signal.SIGKILL
    before = functools.partial(die, 4, 0.5)
    assert live("--resume", tmp_path / "run", log=tmp_path / "log", before=before).wait() == -signal.SIGKILL
    file.unlink()
    finish("--resume", tmp_path / "run", log=tmp_path / "log")
    assert_same_end(tmp_path / "run", tmp_path / "whole")


def test_a_run_whose_checkpoint_was_removed_does_not_restart(tmp_path, whole):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "last.ckpt").unlink()
    said = finish("--resume", tmp_path / "run", log=tmp_path / "log", code=2)
    assert "no such checkpoint" in said
    assert (tmp_path / "run" / "best.safetensors").exists()


def test_a_finished_run_says_so_and_continues_with_more_epochs(tmp_path, whole):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    assert "all epochs are done" in finish("--resume", run, log=tmp_path / "log1")
    assert_same_end(run, whole)
    finish("--resume", run, "--epochs=3", "--lr=0.5", log=tmp_path / "log2")
    assert checkpoint(run)["progress"]["epoch"] == 3
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    assert (recipe["train"]["epochs"], recipe["optimizer"]["lr"]) == (3, 0.5)
    rates = [line["lr"] for line in lines(run) if line["kind"] == "train"]
    assert max(rates[-5:]) > 0.01 > max(rates[:10])  # what the command line says of the optimiser counts
    assert [line["step"] for line in lines(run) if line["kind"] == "train"] == list(range(1, 16))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch_size=2"], "keep --batch_size 4, but it is now 2.*--train.accumulate 2"),
        (["--seed=1"], "keep --seed 0"),
        (["--data.balance=0.5"], r"keep --data.balance None, but it is now 0\.5"),
        (["--optimizer.name=SGD"], "keep --optimizer.name Muon"),
        (["--data.shapes.train_images=24"], "had 20 training images, now it has 24"),
        (["--model.head.channels=8"], "does not match the checkpoint of the run"),
        (["--loss=APELoss"], "does not match the checkpoint of the run"),
    ],
)
def test_fixed_settings_cannot_change_on_resume(tmp_path, whole, flags, message):
    shutil.copytree(whole, tmp_path / "run")
    said = finish("--resume", tmp_path / "run", *flags, log=tmp_path / "log", code=2)
    assert re.search(message, said)
    assert "Traceback" not in said
    assert (tmp_path / "run" / "recipe.yaml").read_text() == (whole / "recipe.yaml").read_text()


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_loader_workers_gives_the_same_weights(tmp_path, whole, workers):
    finish(*STATEFUL, f"--data.workers={workers}", "--run", tmp_path / "run", log=tmp_path / "log")
    assert_same_end(tmp_path / "run", whole)


def stop_after_step(run, processes, step):
    wait_for(lambda: last_step(run) >= step)
    for process in processes:
        process.kill(signal.SIGTERM)


def test_the_number_of_processes_may_change_between_stop_and_resume(tmp_path):
    flags = [*TINY, *STILL, "--optimizer.name=SGD", "--epochs=3"]
    finish(*flags, "--run", tmp_path / "whole", log=tmp_path / "log")
    run = tmp_path / "run"
    alone = live(*flags, "--run", run, log=tmp_path / "log1")
    stop_after_step(run, [alone], 3)
    assert alone.wait() == 143
    pair = ranks(2, "--resume", run, folder=tmp_path / "pair")
    stop_after_step(run, pair, 8)
    wait_all(pair, code=143)
    finish("--resume", run, log=tmp_path / "log2")
    one, other = checkpoint(run)["detector"], checkpoint(tmp_path / "whole")["detector"]
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=1e-5, rtol=0, msg=name)
