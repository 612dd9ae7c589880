"""Every command with a read-only folder, a full disk, a closed pipe, and a run of another user."""

import json
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
from live_runs import TINY, Live

from rankwise.evaluation.results import set_damaged_aside

NOBODY = 65534


def commands(made, out):
    """Each verb, writing into a folder."""
    run, image, truth = made / "run", made / "data/train/picture000.jpg", made / "data/annotations/instances_train.json"
    return {
        "train": ["train", "shapes", *TINY, "--train.epochs=1", "--run", out / "train"],
        "eval": ["eval", run, "--out", out / "eval", "--workers=0"],
        "predict": ["predict", run, image, "--out", out / "predictions"],
        "report": ["report", run, "--out", out / "report.html"],
        "export": ["export", run, "--out", out / "model.onnx"],
        "data shapes": ["data", "shapes", out / "shapes", "--shapes.train_images=2", "--shapes.val_images=2"],
        "data show": ["data", "show", made / "data", "shapes", "--images=2", "--out", out / "training.jpg"],
        "calibrate": ["calibrate", made / "results.json", "--truth", truth, "--out", out / "calibration"],
        "reproduce": ["reproduce", "distance", "--data", made / "data", "--recipe=shapes", "--out", out / "rows"],
        "reproduce table": ["reproduce", "distance", "--train=false", "--out", out / "rows"],
        "reproduce summary": ["reproduce", "summary", "--page", out / "results.md"],
        "data check": ["data", "check", made / "data"],
    }


VERBS = [*commands(Path("made"), Path("out"))][:-1]


def without_privileges():
    """Root may write anywhere by its capabilities: without them, permissions hold for the process as for others."""
    if os.getuid() == 0:
        import ctypes

        header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the version of three words in two halves, this process
        if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()):
            raise OSError(ctypes.get_errno(), "capset")


def little_disk():
    """No file may grow beyond this, which is how a full disk looks from here; a signal would end the process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))


def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    os.close(writer)


def run(words, log, before):
    live = Live(words, log, before=before, full=True)
    code = live.wait()
    assert "Traceback" not in live.said, live.said
    return code, live.said


@pytest.mark.parametrize("verb", VERBS)
def test_a_read_only_folder_gives_a_message(made, tmp_path, verb):
    out = tmp_path / "closed"
    out.mkdir(mode=0o555)
    code, said = run(commands(made, out)[verb], tmp_path / "log", without_privileges)
    assert code == 2, said
    assert "Permission denied" in said
    assert "Free some disk space" not in said
    assert list(out.iterdir()) == []


# The summary of no table fits on the disk.
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("export", "reproduce summary")])
def test_a_full_disk_gives_a_message(made, tmp_path, verb):
    out = tmp_path / "out"
    out.mkdir()
    code, said = run(commands(made, out)[verb], tmp_path / "log", little_disk)
    assert code == 2
    assert "Permission" not in said
    assert not [path for path in out.rglob("*") if path.name.endswith(".part")]


@pytest.mark.parametrize("verb", [*VERBS, "data check"])
def test_a_closed_pipe_ends_quietly(made, tmp_path, verb):
    if verb in ("export", "train", "reproduce"):
        pytest.skip("takes long; the output of a training is tested beside its processes")
    out = tmp_path / "out"
    out.mkdir()
    code, said = run(commands(made, out)[verb], tmp_path / "log", closed_pipe)
    assert code == 0, said
    assert said == ""
    assert verb == "data check" or list(out.iterdir())


def test_a_damaged_result_is_set_aside_and_written_again(made, tmp_path, capsys):
    from rankwise.cli import main

    folder = tmp_path / "run"
    shutil.copytree(made / "run", folder)
    if os.getuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
    threshold = '{"thresholds": {"overall": {"score": %s}, "per_class": {}}}'
    for content in (*((threshold % score).encode() for score in ("NaN", "Infinity", "5")), b"\xff", b"", b"[" * 9999):
        (folder / "eval.json").write_bytes(content)
        (folder / "detections.json").write_bytes(content)
        assert len(set_damaged_aside(folder)) == 2
        assert (folder / "eval.json.aside").read_bytes() == content
        assert not (folder / "eval.json").exists()
    (folder / "eval.json").write_bytes(b'{"thr')
    main(["eval", str(folder), "--workers=0"])
    assert json.loads((folder / "eval.json").read_text())["images"] == 6
    assert "eval.json is damaged" in capsys.readouterr().out


BROKEN = {"not UTF-8": b"\xff\xfe", "not YAML": b"data: [", "a list": b"- 1", "cut off": b"data: {path: shapes}\n"}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_recipe_is_named_by_every_command_that_reads_it(made, tmp_path, capsys, kind):
    from rankwise.cli import main

    folder = tmp_path / "run"
    shutil.copytree(made / "run", folder)
    (folder / "recipe.yaml").write_bytes(BROKEN[kind])
    (folder / "metrics.jsonl").write_bytes(b"\xff\n{\n" + (folder / "metrics.jsonl").read_bytes())
    for words in (["eval", folder], ["report", folder], ["train", "--resume", folder]):
        if kind == "cut off" and words[0] in ("report", "train"):
            continue  # what is left says enough
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        assert stop.value.code == 2
        assert "recipe.yaml" in capsys.readouterr().err
