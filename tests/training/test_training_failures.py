"""Failures: values that are not finite, unreadable images, dead workers, full memory or disk."""

import functools
import json
import os
import re
import resource
import signal
import struct
import zlib
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from live_runs import TINY, checkpoint, differences, finish, last_step, lines, live, wait_for
from small_coco import write_coco

from rankwise.config.datasets import open_datasets
from rankwise.config.recipe import parse_recipe
from rankwise.training.loop import Run


def kinds(run, kind):
    return [line for line in lines(run) if line["kind"] == kind]


def all_finite(state):
    return all(bool(torch.isfinite(value.double()).all()) for value in state.values())


# Not finite


def break_step(number, where):
    """Makes something infinite in one step, while it lasts."""
    from rankwise import criterion
    from rankwise.training import loop

    steps = []
    if where == "predictions":
        forward = loop.PlainForward.forward

        def broken_forward(self, images):
            steps.append(1)
            return forward(self, images.float() * (torch.inf if len(steps) == number else 1) / 255)

        loop.PlainForward.forward = broken_forward
        return
    losses = criterion.Criterion.losses

    def broken_losses(self, predictions, targets, assignment):
        result = losses(self, predictions, targets, assignment)
        steps.append(1)
        if len(steps) == number:
            factor = {"loss": torch.inf, "gradient": 1.0}[where]
            result.terms["box"] = result.terms["box"] * factor
            if where == "gradient":
                result.terms["box"].register_hook(lambda gradient: gradient * torch.inf)
        return result

    criterion.Criterion.losses = broken_losses


@pytest.mark.parametrize(
    ("where", "why"), [("predictions", "logits"), ("loss", "box loss"), ("gradient", "gradient norm")]
)
def test_a_step_that_is_not_finite_is_skipped_counted_and_named(tmp_path, where, why):
    before = functools.partial(break_step, 3, where)
    said = finish(*TINY, "--train.ema=0.9", "--run", tmp_path / "run", log=tmp_path / "log", before=before)
    (line,) = kinds(tmp_path / "run", "skipped")
    assert line["step"] == 3
    assert why in line["why"]
    assert len(line["images"]) == 4
    assert f"step 3 skipped: not finite: {line['why']}; images: {', '.join(line['images'])}" in said
    assert "1 steps were skipped" in said
    state = checkpoint(tmp_path / "run")
    assert (state["progress"]["skipped"], state["progress"]["step"]) == (1, 10)
    assert all_finite(state["detector"])  # the statistics of batch norms included
    assert all_finite(state["ema"])


def test_too_many_consecutive_bad_steps_stop_the_run_with_a_diagnosis(tmp_path):
    flags = [*TINY, "--optimizer.name=SGD", "--schedule.warmup_steps=0", "--schedule.decay=none"]
    flags += ["--optimizer.clip_norm=0", "--lr=1e30", "--train.max_bad_steps=3"]
    said = finish(*flags, "--run", tmp_path / "run", log=tmp_path / "log", code=2)
    assert "3 steps in a row were not finite" in said
    assert "The learning rate is 1e+30: try a tenth of it" in said
    assert kinds(tmp_path / "run", "skipped")[-1]["images"][0] in said.splitlines()[-1]
    assert "Traceback" not in said


def overflow_in_step_three():
    from rankwise.training import loop

    step = loop.Run.train_step

    def ruinous(self, *args):
        result = step(self, *args)
        if self.progress.step == 2:
            next(self.detector.parameters()).data.fill_(torch.inf)
        return result

    loop.Run.train_step = ruinous


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    flags = [*TINY, "--train.checkpoint_steps=1", "--run", tmp_path / "run"]
    said = finish(*flags, log=tmp_path / "log", before=overflow_in_step_three, code=2)
    assert "the weights are no longer finite, first backbone" in said
    assert "The learning rate is" in said
    assert f"The last checkpoint is from before that; resume it with: rankwise train --resume {tmp_path}" in said
    state = checkpoint(tmp_path / "run")
    assert state["progress"]["step"] == 2
    assert all_finite(state["detector"])


class Scaled(MixedPrecision):
    """The scaling of 16-bit training with 32-bit numbers, which overflow later but compute quicker on a CPU."""

    def forward_context(self):
        return nullcontext()


def scaled_run(folder, scale):
    recipe = parse_recipe(["--config", "shapes", *TINY])
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[Scaled("16-mixed", "cpu", scaler)])
    return Run(recipe, folder, fabric, *open_datasets(recipe.data, recipe.model.input)), scaler


def test_overflowing_scaled_gradients_lower_the_scale_and_do_not_count_as_bad_steps(tmp_path):
    run, scaler = scaled_run(tmp_path / "run", 2.0**127)
    run.fit()
    assert 0 < run.progress.skipped < 10
    assert run.progress.bad_in_a_row == 0
    assert scaler.get_scale() == 2.0 ** (127 - run.progress.skipped)
    saved = checkpoint(tmp_path / "run")
    assert saved["precision"]["scale"] == scaler.get_scale()
    again, other = scaled_run(tmp_path / "run", 2.0**16)
    again.state.load_state_dict(saved)
    assert other.state_dict() == scaler.state_dict()


# Images


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_image_is_named_and_skipped_with_skip_bad(tmp_path, workers):
    data = write_coco(tmp_path / "data")
    for path in (data / "train" / "train07.jpg", data / "val" / "val03.jpg"):
        truncate(path)
    flags = ["shapes", *TINY, "--data", data, "--data.skip_bad=true", f"--data.workers={workers}"]
    said = finish(*flags, "--run", tmp_path / "run", log=tmp_path / "log", full=True, seconds=200)
    faults = kinds(tmp_path / "run", "fault")
    assert [line["epoch"] for line in faults] == [0, 1]
    assert all("train07.jpg" in line["image"] and "train07.jpg" in line["why"] for line in faults)
    assert said.count("train07.jpg: cannot be read") == 1  # named once, counted each time
    assert "unreadable images were skipped 2 times" in said
    assert "val03.jpg: cannot be read" in said
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["images"] == 4  # of 5
    assert all(line["faults"] == 1 for line in kinds(tmp_path / "run", "eval"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_image_is_an_error_without_skip_bad_and_the_run_can_resume(tmp_path, workers):
    data = write_coco(tmp_path / "data")
    truncate(data / "train" / "train07.jpg")
    flags = ["shapes", *TINY, "--data", data, f"--data.workers={workers}", "--batch_size=1"]
    said = finish(*flags, "--run", tmp_path / "run", log=tmp_path / "log", code=2)
    assert "train07.jpg: cannot be read as an image" in said
    assert f"rankwise train --resume {tmp_path / 'run'} --data.skip_bad true\n" in said
    assert "Traceback" not in said
    write_coco(tmp_path / "good")
    (data / "train" / "train07.jpg").write_bytes((tmp_path / "good" / "train" / "train07.jpg").read_bytes())
    finish("--resume", tmp_path / "run", log=tmp_path / "log")
    finish(*flags, "--run", tmp_path / "whole", log=tmp_path / "log")
    assert differences(*(checkpoint(tmp_path / name) for name in ("run", "whole"))) == []


def huge_png(path):
    """50,000 × 50,000 pixels in a few bytes: the header says so, and no more than that needs to be true."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)))


def change(data, **changes):
    path = data / "annotations" / "instances_train.json"
    content = json.loads(path.read_text())
    for name, value in changes.get("image", {}).items():
        content["images"][3][name] = value
    for name, value in changes.get("annotation", {}).items():
        content["annotations"][3][name] = value
    path.write_text(json.dumps(content))


def with_huge_image(data):
    huge_png(data / "train" / "train03.jpg")
    change(data, image={"width": 50_000, "height": 50_000})


BAD_DATA = {
    "huge image": (with_huge_image, "train03.jpg.*50,000 × 50,000"),
    "path that leads out": (
        lambda data: change(data, image={"file_name": "../../etc/passwd"}),
        r"\.\./\.\./etc/passwd",
    ),
    "absolute path": (lambda data: change(data, image={"file_name": "/etc/passwd"}), "/etc/passwd"),
    "NaN box": (lambda data: change(data, annotation={"bbox": [1, 2, float("nan"), 4]}), "(?i)nan"),
    "truncated JSON": (lambda data: truncate(data / "annotations" / "instances_train.json"), "instances_train.json"),
}


@pytest.mark.parametrize("fault", BAD_DATA)
def test_invalid_data_gives_a_clear_message(tmp_path, fault):
    data = write_coco(tmp_path / "data")
    make, message = BAD_DATA[fault]
    make(data)
    said = finish("shapes", *TINY, "--data", data, "--run", tmp_path / "run", log=tmp_path / "log", code=2)
    assert re.search(message, said), said
    assert "Traceback" not in said
    assert "root:" not in said  # nobody's password file


def test_unmatched_objects_are_counted_in_the_log(tmp_path):
    data = write_coco(tmp_path / "data")
    path = data / "annotations" / "instances_train.json"
    content = json.loads(path.read_text())
    once = content["annotations"]
    content["annotations"] = [{**one, "id": 100 * one["id"] + copy} for one in once for copy in range(50)]
    path.write_text(json.dumps(content))
    flags = ["shapes", *TINY, "--data", data, "--assign=PAA", "--epochs=1", "--batch_size=12"]
    said = finish(*flags, "--run", tmp_path / "run", log=tmp_path / "log")
    (line,) = kinds(tmp_path / "run", "train")
    # Of fifty boxes in one place few find an anchor that no other wants.
    assert 49 * len(once) * 0.9 < line["unmatched"] <= 49 * len(once)
    assert f"unmatched {line['unmatched']:.1f}" in said


# The machine


def workers_of(pid):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the workers by /proc")
def test_a_dead_worker_gives_a_clear_message_and_the_run_is_saved(tmp_path):
    # Without checkpoints by time: the only one is that of the failure.
    flags = ["--data.workers=2", "--epochs=200", "--train.checkpoint_minutes=0", "--train.evaluate_every=200"]
    run = live(*TINY, *flags, "--run", tmp_path / "run", log=tmp_path / "log")
    wait_for(lambda: last_step(tmp_path / "run") >= 2)
    os.kill(workers_of(run.pid)[0], signal.SIGKILL)
    assert run.wait() == 2
    assert "a loader worker died" in run.said
    assert "use fewer --data.workers" in run.said
    assert "Traceback" not in run.said
    step = last_step(tmp_path / "run")
    assert checkpoint(tmp_path / "run")["progress"]["step"] == step
    said = finish("--resume", tmp_path / "run", f"--epochs={step // 5 + 1}", log=tmp_path / "log2")
    assert f"resuming after step {step}" in said


def little_memory():
    from rankwise.training import loop

    fit = loop.Run.fit

    def limited(self):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 40_000_000,) * 2)
        return fit(self)

    loop.Run.fit = limited


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads what is in use from /proc")
def test_running_out_of_memory_gives_advice(tmp_path):
    flags = [*TINY, "--batch_size=16", "--model.input.short_side=512", "--model.input.max_side=512"]
    said = finish(*flags, "--run", tmp_path / "run", log=tmp_path / "log", before=little_memory, code=2)
    assert "memory ran out" in said
    assert f"rankwise train --resume {tmp_path / 'run'} --train.accumulate 2" in said
    assert "Traceback" not in said


def little_disk(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def disk_full_from_third_checkpoint():
    from rankwise.training import loop

    save, calls = loop.save_checkpoint, []

    def limited(path, state):
        calls.append(1)
        if len(calls) == 3:
            little_disk(path.stat().st_size // 2)
        save(path, state)

    loop.save_checkpoint = limited


def test_a_full_disk_stops_with_a_message_and_the_previous_checkpoint_intact(tmp_path):
    flags = [*TINY, "--train.checkpoint_steps=2"]
    finish(*flags, "--run", tmp_path / "whole", log=tmp_path / "log")
    run, before = tmp_path / "run", disk_full_from_third_checkpoint
    said = finish(*flags, "--run", run, log=tmp_path / "log2", before=before, code=2)
    assert "last.ckpt: could not be written (File too large). The previous one is intact. Free some" in said
    assert f"rankwise train --resume {run}" in said
    assert "Traceback" not in said
    assert checkpoint(run)["progress"]["step"] == 4
    assert not list(run.glob(".*.part"))
    finish("--resume", run, log=tmp_path / "log3")
    assert differences(checkpoint(run), checkpoint(tmp_path / "whole")) == []


def test_a_log_on_a_full_disk_gives_the_same_message(tmp_path):
    before = functools.partial(little_disk, 2500)
    said = finish(*TINY, "--run", tmp_path / "run", log=tmp_path / "log", before=before, code=2)
    assert "File too large" in said
    assert f"rankwise train --resume {tmp_path / 'run'}" in said
