"""Processes do not wait forever for a missing one and name it; a broken pipe ends no training."""

import os
import signal
import subprocess
import sys
import time

import pytest
from data_folders import write_coco_folder
from live_runs import TINY, checkpoint, finish, free_port, last_step, live, wait_for

from rankwise.training.rendezvous import watch


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rendezvous_timeout_names_the_missing_process(tmp_path, rank):
    environment = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": 2,
        "LOCAL_WORLD_SIZE": 2,
        "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
        "TORCHELASTIC_RUN_ID": "test",
        "RANKWISE_RENDEZVOUS_SECONDS": 2,
    }
    env = {name: str(value) for name, value in environment.items()}
    run = live(*TINY, "--run", tmp_path / "run", log=tmp_path / "log", env=env)
    assert run.wait(60) == 2
    assert f"rank {rank} waited 2 s at 127.0.0.1:" in run.said
    assert f"for rank {1 - rank}" in run.said
    assert "Traceback" not in run.said


@pytest.mark.parametrize(("number", "said"), [(signal.SIGKILL, "was killed by SIGKILL"), (None, "exit code 3")])
def test_a_dead_child_process_ends_the_command_with_a_message(tmp_path, number, said):
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.dup2(writer, 2)
        sys.stderr = os.fdopen(2, "w")
        code = "import time; time.sleep(60)" if number else "raise SystemExit(3)"
        child = subprocess.Popen([sys.executable, "-c", code])
        watch([child], every=0.05, grace=0.2)
        if number:
            child.send_signal(number)
        time.sleep(30)
        os._exit(0)
    _, status = os.waitpid(parent, 0)
    os.close(writer)
    with os.fdopen(reader) as messages:
        text = messages.read()
    assert os.waitstatus_to_exitcode(status) == 2
    assert "rank 1 (process" in text
    assert said in text


def close_output():
    """Standard output becomes a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    os.close(writer)


def test_training_continues_and_is_saved_when_its_output_is_closed(tmp_path):
    run = live(*TINY, "--run", tmp_path / "run", log=tmp_path / "log", before=close_output)
    assert run.wait() == 0
    assert checkpoint(tmp_path / "run")["progress"]["epoch"] == 2
    assert "Traceback" not in run.said


def test_a_hangup_without_output_saves_and_ends(tmp_path):
    flags = [*TINY, "--train.epochs=200"]
    run = live(*flags, "--run", tmp_path / "run", log=tmp_path / "log", before=close_output)
    wait_for(lambda: last_step(tmp_path / "run") >= 3)
    run.kill(signal.SIGHUP)
    assert run.wait() == 128 + signal.SIGHUP
    assert checkpoint(tmp_path / "run")["progress"]["step"] >= 3


def test_resume_reports_changed_data_and_a_damaged_checkpoint_offers_the_previous_one(tmp_path):
    data, run = write_coco_folder(tmp_path / "coco", train=6, val=2), tmp_path / "run"
    flags = [flag for flag in TINY if "shapes" not in flag]
    finish("shapes", *flags, "--data", data, "--data.workers=0", "--run", run, log=tmp_path / "log")
    said = finish("--resume", run, "--train.epochs=3", "--data.workers=0", log=tmp_path / "log2")
    assert "WARNING" not in said
    path = next((data / "train").iterdir())
    path.write_bytes(path.read_bytes() + b"\0")
    damaged = bytearray((run / "last.ckpt").read_bytes())
    damaged[len(damaged) // 2] ^= 4
    (run / "last.ckpt").write_bytes(damaged)
    said = finish("--resume", run, "--train.epochs=4", log=tmp_path / "log3", code=2)
    assert f"resume with: rankwise train --resume {run}/previous.ckpt" in said
    said = finish("--resume", run / "previous.ckpt", "--train.epochs=4", "--data.workers=0", log=tmp_path / "log4")
    assert "WARNING: the training images or their annotations have changed" in said
    assert checkpoint(run)["progress"]["epoch"] == 4
    assert (run / "last.ckpt.aside").read_bytes() == damaged
