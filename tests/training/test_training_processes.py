"""Several processes train like one: the same weights and metrics, no deadlock, one message."""

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from live_runs import STILL, TINY, checkpoint, differences, finish, last_step, lines, live, ranks, wait_all, wait_for
from small_coco import write_coco

import rankwise.__main__
from rankwise.config.datasets import open_split
from rankwise.config.settings import DataSettings
from rankwise.data.loader import epoch_order
from rankwise.data.transforms import EvalTransform
from rankwise.evaluation.inference import detect
from rankwise.models import Detector, DetectorSettings

#: Plain SGD: what divides by the size of a gradient would make much of the last digit of a tiny one.
SAME = [*TINY, *STILL, "--optimizer.name=SGD", "--optimizer.lr=0.01"]


def in_float64():
    """Trains in float64, so that the order of summation changes the weights by 1e-15 only, on every CPU."""
    from lightning_fabric.plugins.precision import DoublePrecision

    from rankwise.training import processes

    processes.PRECISIONS["32"] = "64-true"
    DoublePrecision.convert_output = lambda self, data: data  # it would round the predictions to float32


def assert_close(run, other, atol=1e-12):
    one, two = checkpoint(run)["detector"], checkpoint(other)["detector"]
    for name in one:
        torch.testing.assert_close(
            one[name], two[name], atol=atol, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(
    ("machines", "loss"), [(1, ["--loss=APELoss", "--loss.scope=world"]), (2, ["--loss=FocalLoss"])]
)
def test_two_processes_give_the_weights_of_one(tmp_path, machines, loss):
    # 17 images: the last step of an epoch has one, and a process without. The two take their share in parts.
    flags = [*SAME, *loss, "--data.shapes.train_images=17", "--optimizer.clip_norm=1"]
    finish(*flags, "--run", tmp_path / "one", log=tmp_path / "log", before=in_float64)
    flags += ["--train.accumulate=2", "--run", tmp_path / "two"]
    said = wait_all(ranks(2, *flags, folder=tmp_path / "logs", machines=machines, before=in_float64))
    assert checkpoint(tmp_path / "two")["progress"]["step"] == 10
    assert_close(tmp_path / "one", tmp_path / "two")
    # Rank 0 alone speaks and writes, and for all: counts add up, losses are means.
    assert "epoch 2: AP" in said[0]
    assert "epoch" not in said[1]
    for mine, theirs in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        assert (mine["kind"], mine["step"]) == (theirs["kind"], theirs["step"])
        if mine["kind"] == "train":
            assert mine["positives"] == theirs["positives"]
            assert [mine[name] for name in ("box", "ranking", "iou")] == pytest.approx(
                [theirs[name] for name in ("box", "ranking", "iou")], abs=1e-5
            )


@pytest.mark.parametrize("loss", [["--loss=FocalLoss"], ["--loss=APELoss", "--loss.scope=world"]])
def test_a_process_without_objects_does_not_block_the_others(tmp_path, loss):
    data = write_coco(tmp_path / "data", empty=range(0, 12, 2))
    order = epoch_order(12, 0, 0, shuffle=True)
    assert any(one % 2 != other % 2 for one, other in zip(order[::2], order[1::2], strict=True))
    flags = ["shapes", *SAME, *loss, "--data", data, "--batch_size=2", "--epochs=1"]
    finish(*flags, "--run", tmp_path / "one", log=tmp_path / "log", before=in_float64)
    wait_all(ranks(2, *flags, "--run", tmp_path / "two", folder=tmp_path / "logs", before=in_float64))
    assert_close(tmp_path / "one", tmp_path / "two")


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    """A run on images of different sizes, stopped just before it is evaluated."""
    folder = tmp_path_factory.mktemp("waiting")
    data = write_coco(folder / "data", train=12, val=11, sizes=((64, 48), (40, 64), (64, 64), (32, 60)))
    flags = ["shapes", *TINY, *STILL, "--data", data, "--batch_size=6", "--epochs=4", "--train.evaluate_every=4"]
    flags += ["--train.evaluate_batch=2", "--lr=0.01"]
    run = live(*flags, "--run", folder / "run", log=folder / "log", before=stop_before_evaluation)
    assert run.wait() == 0, run.said
    return folder / "run"


def stop_before_evaluation():
    from rankwise.training import loop

    def evaluate(self, stop):
        self.tracker.close()
        os._exit(0)

    loop.Run.evaluate = evaluate


def test_evaluation_by_any_number_of_processes_gives_the_same_numbers(tmp_path, waiting):
    numbers = []
    for processes in (1, 2, 3):
        run = tmp_path / str(processes)
        shutil.copytree(waiting, run)
        wait_all(ranks(processes, "--resume", run, folder=tmp_path / f"logs{processes}"))
        (line,) = [line for line in lines(run) if line["kind"] == "eval"]
        numbers.append([line[name] for name in ("ap", "ap50", "ap75")])
    assert numbers[0][1] > 1  # it has learnt something that could differ
    assert numbers[0] == numbers[1] == numbers[2]


def test_evaluation_shares_contain_every_image_once_with_the_same_detections(waiting):
    state, data = checkpoint(waiting), waiting.parent / "data"
    settings = DetectorSettings.from_dict(yaml.safe_load((waiting / "recipe.yaml").read_text())["model"])
    detector = Detector(settings, ["red", "blue"])
    detector.load_state_dict(state["ema"] or state["detector"])
    val = open_split(DataSettings(path=str(data)), "val").with_transform(EvalTransform(settings.input))
    alone = detect(detector, val, 2).detections
    for world in (2, 7):
        shares = [detect(detector, val, 2, rank=rank, world_size=world).detections for rank in range(world)]
        assert sorted(image for share in shares for image in share) == sorted(alone)
        for image, found in ((image, found) for share in shares for image, found in share.items()):
            assert all(torch.equal(found[name], alone[image][name]) for name in found)


def nan_on_rank_one(at):
    from rankwise.training import loop

    forward, steps = loop.PlainForward.forward, []

    def broken(self, images):
        output = forward(self, images)
        steps.append(1)
        if len(steps) == at and os.environ["RANK"] == "1":
            output["logits"] = output["logits"] * torch.nan
        return output

    loop.PlainForward.forward = broken


def test_a_bad_step_in_one_process_is_skipped_by_all(tmp_path):
    flags = [*TINY, "--loss=APELoss", "--loss.scope=world", "--run", tmp_path / "run"]
    before = functools.partial(nan_on_rank_one, 3)
    said = wait_all(ranks(2, *flags, folder=tmp_path / "logs", before=before))
    (line,) = [line for line in lines(tmp_path / "run") if line["kind"] == "skipped"]
    assert line["step"] == 3
    assert "logits" in line["why"]
    assert len(line["images"]) == 2  # those of rank 1
    assert said[0].count("step 3 skipped") == 1
    assert "skipped" not in said[1]
    state = checkpoint(tmp_path / "run")
    assert state["progress"]["skipped"] == 1
    assert all(bool(torch.isfinite(value).all()) for value in state["detector"].values())


def test_an_unreadable_image_in_one_process_stops_all_with_one_message(tmp_path):
    data = write_coco(tmp_path / "data")
    # The second image of the third step: rank 1's.
    name = f"train{epoch_order(12, 0, 0, shuffle=True)[5]:02}.jpg"
    (data / "train" / name).write_bytes((data / "train" / name).read_bytes()[:300])
    flags = ["shapes", *TINY, "--data", data, "--batch_size=2", "--run", tmp_path / "run"]
    said = wait_all(ranks(2, *flags, folder=tmp_path / "logs"), code=2)
    assert name in said[1]
    assert "Traceback" not in said[0] + said[1]
    assert name not in said[0]
    assert checkpoint(tmp_path / "run")["progress"]["step"] == 2  # nothing is lost


def test_a_signal_to_one_process_stops_and_saves_all(tmp_path):
    run = tmp_path / "run"
    pair = ranks(2, *TINY, "--epochs=30", "--run", run, folder=tmp_path / "logs")
    wait_for(lambda: last_step(run) >= 2)
    pair[1].kill(signal.SIGTERM)
    said = wait_all(pair, code=143)
    assert said[0].count("stopped and saved") == 1
    assert "stopped and saved" not in said[1]
    assert checkpoint(run)["progress"]["step"] >= 2


def disk_full_on_rank_zero():
    import resource

    if os.environ["RANK"] == "0":
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))


def test_a_full_disk_on_rank_zero_stops_all(tmp_path):
    flags = [*TINY, "--train.checkpoint_steps=1", "--run", tmp_path / "run"]
    said = wait_all(ranks(2, *flags, folder=tmp_path / "logs", before=disk_full_on_rank_zero), code=2)
    assert "last.ckpt: could not be written (File too large)" in said[0]
    assert said[1].strip() == ""


def test_the_command_starts_its_processes_by_itself(tmp_path):
    command = [str(Path(sys.executable).parent / "rankwise")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    words = ["train", *SAME, "--devices=2", "--run", str(tmp_path / "run"), "--epochs=1"]
    done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("epoch 1: AP") == 1
    assert done.stdout.count("\nreport ") == 1
    finish(*SAME, "--epochs=1", "--run", tmp_path / "one", log=tmp_path / "log")
    assert_close(tmp_path / "one", tmp_path / "run", atol=1e-5)  # in float32, by 5 steps


def children(pid):
    """The processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[1]) == pid:
            found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the processes by /proc")
@pytest.mark.slow
def test_torchrun_restarts_after_a_kill_with_the_same_result(tmp_path):
    flags = [*SAME, "--train.evaluate_every=2", "--train.checkpoint_steps=2"]
    wait_all(ranks(2, *flags, "--run", tmp_path / "whole", folder=tmp_path / "logs"))
    # torchrun forks the processes, so that five of them need not import everything.
    code = "import rankwise.cli, rankwise.training.loop, torch.distributed.run as torchrun; torchrun.main()"
    command = "--standalone --nproc-per-node=2 --max-restarts=1 --monitor-interval=0.2 --run-path --start-method=fork"
    words = [sys.executable, "-c", code, *command.split(), rankwise.__main__.__file__, "train", *flags]
    words += ["--folder", tmp_path / "run"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    with (tmp_path / "out").open("w") as out:
        agent = subprocess.Popen(list(map(str, words)), env=environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            wait_for(lambda: last_step(tmp_path / "run") >= 3, seconds=300)
            os.kill(max(children(agent.pid)), signal.SIGKILL)
            assert agent.wait(300) == 0, (tmp_path / "out").read_text()
        finally:
            agent.kill()
            agent.wait()
    assert "resuming after step" in (tmp_path / "out").read_text()
    assert differences(*(checkpoint(tmp_path / name) for name in ("whole", "run"))) == []
    steps = [line["step"] for line in lines(tmp_path / "run") if line["kind"] == "train"]
    assert steps == list(range(1, 11))


def test_torchrun_restarts_need_a_fixed_run_folder(tmp_path):
    run = live(*TINY, log=tmp_path / "log", env={"TORCHELASTIC_MAX_RESTARTS": "3"})
    assert run.wait() == 2
    assert "--max-restarts needs --folder" in run.said


def started_as(words):
    """Lets the process look as if it were started by ``python -m rankwise WORDS``, which is how it starts others."""
    sys.argv = ["rankwise", *words]
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("rankwise.__main__")


def test_child_processes_end_with_their_parent(tmp_path):
    words = [*TINY, "--devices=2", "--run", str(tmp_path / "run"), "--epochs=500"]
    first = live(*words, log=tmp_path / "out", before=functools.partial(started_as, ["train", *words]))
    wait_for(lambda: last_step(tmp_path / "run") >= 1, seconds=300)
    others = children(first.pid)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    assert len(others) == 1
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in others) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in others)
