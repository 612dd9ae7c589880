"""Runs that somebody else has changed: nothing outside is touched, nothing is taken for something else."""

import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys

import pytest
from data_folders import write_coco_folder
from live_runs import finish

from rankwise import __version__
from rankwise.cli import main
from rankwise.data.formats import open_dataset
from rankwise.data.loader import build_loader
from rankwise.errors import DataError, ModelError, SettingsError
from rankwise.files.writing import WriteError, make_folder
from rankwise.models import Detector
from rankwise.models.weights import read
from rankwise.report.numbers import training_curves
from rankwise.report.runs import read_metrics
from rankwise.reproduce.plans import ReproduceError, call
from rankwise.reproduce.run import read_run
from rankwise.training.checkpoint import load_checkpoint, save_checkpoint
from rankwise.training.lock import lock_run
from rankwise.training.signals import stop_signals


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made / "run", tmp_path / "run")


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").symlink_to(victim)
    with pytest.raises(SettingsError, match=r"\.lock: not a lock of rankwise"), lock_run(tmp_path / "run"):
        pass
    assert victim.read_text() == "precious"


def test_a_lock_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(SettingsError, match=r"\.lock: not a lock of rankwise"), lock_run(tmp_path):
        pass


def test_every_flipped_bit_is_refused_where_a_checkpoint_stands_for_weights(run):
    path, dice = run / "last.ckpt", random.Random(0)
    whole = path.read_bytes()
    assert read(path).classes
    for _ in range(40):
        damaged, bit = bytearray(whole), dice.randrange(8 * len(whole))
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match="damaged"):
            read(path)


FORGED = {
    "no fixed settings": lambda state: state.pop("fixed"),
    "text as step": lambda state: state["progress"].update(step="x"),
    "an unknown name": lambda state: state["progress"].update(__class__=3),
    "beyond the epoch": lambda state: state["progress"].update(batch=10**6),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_checkpoint_is_refused(run, tmp_path, kind):
    state = load_checkpoint(run / "last.ckpt")
    FORGED[kind](state)
    save_checkpoint(run / "last.ckpt", state)
    said = finish("--resume", run, "--train.epochs=2", log=tmp_path / "log", code=2)
    assert "the checkpoint" in said
    assert "Traceback" not in said


def test_a_log_that_is_a_pipe_ends_a_resumed_run_with_its_name(run, tmp_path):
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    said = finish("--resume", run, "--train.epochs=2", log=tmp_path / "log", code=2)
    assert "metrics.jsonl: it is a pipe" in said


STRANGE = [
    "[]",
    '{"kind": "train"}',
    '{"kind": "train", "step": 1e999, "ranking": 1}',
    '{"kind": "train", "step": NaN, "ranking": 1}',
    '{"kind": "train", "step": {}, "ranking": 1}',
    '{"kind": "train", "step": 2, "ranking": %s, "box": "x"}' % ("9" * 400),
]


def test_lines_of_the_log_that_are_not_ours_are_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(STRANGE) + '\n{"kind": "train", "step": 3, "ranking": 0.5}\n')
    assert training_curves(read_metrics(path)) == {"ranking": {"x": [3.0], "y": [0.5]}}


def test_rows_are_not_trained_by_a_module_of_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "rankwise.py").write_text("print('not ours')")
    monkeypatch.chdir(tmp_path)
    call(["--version"], tmp_path / "log")
    assert (tmp_path / "log").read_text().splitlines()[-1] == f"rankwise {__version__}"


def test_the_message_of_a_failed_row_is_shown_and_in_the_log(tmp_path, monkeypatch):
    log = tmp_path / "log"
    with pytest.raises(ReproduceError, match=r"^rankwise trian failed with exit code 2: there is no .* \(see "):
        call(["trian", "shapes"], log)
    assert "rankwise trian: there is no command" in log.read_text()
    (tmp_path / "fails").write_text("#!/bin/sh\necho 'Traceback:\n  line\nKeyError: 3' >&2\nexit 1\n")
    (tmp_path / "fails").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "fails"))
    with pytest.raises(ReproduceError, match=r"^rankwise train failed with exit code 1: KeyError: 3 \(see "):
        call(["train"], log)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("eval.json", lambda values: values.update(ap="x")),
        ("eval.json", lambda values: values.update(reliability=[1])),
        ("metrics.jsonl", lambda line: line.update(seconds=5)),
    ],
)
def test_a_table_names_the_damaged_file_of_a_row(run, name, change):
    assert math.isfinite(read_run(run)["minutes"])
    path = run / name
    values = json.loads(path.read_text()) if name == "eval.json" else {"kind": "train", "step": 9}
    change(values)
    path.write_text(json.dumps(values) if name == "eval.json" else path.read_text() + json.dumps(values) + "\n")
    with pytest.raises(ReproduceError, match=rf"{name}: damaged"):
        read_run(run)


def test_a_summary_names_a_page_that_is_not_text(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results.md").write_bytes(b"\xff\xfe")
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "summary"])
    assert stop.value.code == 2
    assert "results.md" in capsys.readouterr().err


TRUTHS = {
    "text as category": lambda truth: truth["categories"][0].update(id="x"),
    "text as image": lambda truth: truth["images"][0].update(id="1"),
    "half an image": lambda truth: truth["images"][0].update(id=1.5),
    "a category twice": lambda truth: truth["categories"].append(truth["categories"][0]),
    "no annotations": lambda truth: truth.pop("annotations"),
    "a box of NaN": lambda truth: truth["annotations"][0].update(bbox=[float("nan")] * 4),
    "a negative side": lambda truth: truth["annotations"][0].update(bbox=[5, 5, -3, 4]),
    "text as image of a box": lambda truth: truth["annotations"][0].update(image_id="1"),
}


@pytest.mark.parametrize("kind", TRUTHS)
def test_annotations_that_would_match_nothing_are_no_truth_to_calibrate_with(made, tmp_path, capsys, kind):
    truth = json.loads((made / "data/annotations/instances_train.json").read_text())
    TRUTHS[kind](truth)
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    words = ["calibrate", made / "results.json", "--truth", tmp_path / "truth.json", "--out", tmp_path / "out"]
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert stop.value.code == 2
    assert "truth.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found.clear(), "none of its 0 detections overlaps an object"),
        (lambda found: [one.update(bbox=[v / 200 for v in one["bbox"]]) for one in found], "in pixels"),
        (lambda found: found[0].update(score=True), "entry 0 is not a detection"),
        (lambda found: found[0].update(bbox=[True] * 4), "entry 0 is not a detection"),
        (lambda found: found[0].update(image_id=True), "entry 0 is not a detection"),
    ],
)
def test_results_from_which_nothing_can_be_calibrated_are_refused(made, tmp_path, capsys, change, said):
    found = json.loads((made / "results.json").read_text())
    change(found)
    (tmp_path / "found.json").write_text(json.dumps(found))
    truth = made / "data/annotations/instances_train.json"
    with pytest.raises(SystemExit) as stop:
        main(["calibrate", str(tmp_path / "found.json"), "--truth", str(truth), "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_more_seeds_than_anybody_trains_are_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "distance", "--seeds=1000000000", "--train=false"])
    assert stop.value.code == 2
    assert "--seeds must be from 1 to 1000" in capsys.readouterr().err


def test_a_folder_with_a_null_byte_is_named(tmp_path):
    with pytest.raises(WriteError, match=r"a\\x00b: could not be created"):
        make_folder(tmp_path / "a\0b")


def test_fewer_workers_than_none_are_refused(tmp_path):
    dataset = open_dataset(write_coco_folder(tmp_path / "data", train=2, val=1), "train")
    with pytest.raises(DataError, match="workers is -1: it must be at least 0"):
        build_loader(dataset, 1, shuffle=False, workers=-1)


def test_a_loader_worker_that_waits_forever_ends_when_its_parent_asks_twice():
    """As one does that waits for the lock of a queue that another was killed with."""
    context = multiprocessing.get_context("fork")
    lock, running = context.Lock(), context.Event()
    lock.acquire()

    def wait() -> None:
        running.set()
        lock.acquire()

    with stop_signals():
        child = context.Process(target=wait, daemon=True)
        child.start()
        assert running.wait(60)  # a signal that arrives during the fork is lost
        child.terminate()  # perhaps it was for all processes of the run, which then finish their step
        child.join(1)
        assert child.exitcode is None
        child.terminate()
        child.join(60)
        assert child.exitcode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--loss=APELoss", "--loss.lam=1e308"], "must be within [1e-09, 1e+09]"),
        (["--loss=APLoss", "--loss.delta=1e-300"], "must be within [1e-09, 1e+09]"),
        (["--train.threads=100000"], "--train.threads is 100000: it must be at most 1024"),
    ],
)
def test_numbers_that_would_end_in_a_crash_are_refused(capsys, tmp_path, monkeypatch, flags, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["train", "shapes", *flags])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


def test_class_names_with_line_breaks_are_drawn_and_stay_in_their_folder(made, tmp_path, capsys):
    detector = Detector.load(made / "run/best.safetensors")
    detector.thresholds = detector.calibration = None
    detector.classes = ["../../out", "/out", "a\nb\x1b[31m", "..", ".", "x" * 300, "a/b", "con"]
    detector.save(tmp_path / "a.safetensors")
    words = ["predict", tmp_path / "a.safetensors", made / "data/train/picture000.jpg", "--out", tmp_path / "deep/er"]
    main([str(word) for word in [*words, "--crop=true", "--format=yolo", "--threshold=0"]])
    assert "100 objects" in capsys.readouterr().out
    assert list((tmp_path / "deep").iterdir()) == [tmp_path / "deep/er"]
    assert sum(path.suffix == ".png" for path in (tmp_path / "deep/er/crops").rglob("*")) == 100


def test_results_with_impossible_scores_are_set_aside(run, capsys):
    path = run / "detections.json"
    entries = json.loads(path.read_text())
    entries[3]["score"] = 5
    path.write_text(json.dumps(entries))
    main(["report", str(run)])
    assert "detections.json is damaged (entry 3 has the score 5, which is not from 0 to 1)" in capsys.readouterr().out
    assert max(entry["score"] for entry in json.loads(path.read_text())) <= 1


def test_an_image_that_is_a_pipe_is_not_called_missing(made, tmp_path, capsys):
    os.mkfifo(tmp_path / "a.jpg")
    with pytest.raises(SystemExit):
        main(["predict", str(made / "run"), str(tmp_path / "a.jpg")])
    assert "a.jpg: it is a pipe or a device, not a regular file" in capsys.readouterr().err
