"""Every command with a read-only folder, a full disk, a closed pipe, and a run of another user."""

import json
import os
import resource
import shutil
import signal
import sys
import traceback
from functools import partial
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


def run_each(verbs, folder):
    """Runs commands one after the other in this process, without privileges, each with its own log and exit code."""
    from rankwise.cli import main

    without_privileges()
    for verb, words in verbs.items():
        with (folder / f"{verb}.log").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        (folder / f"{verb}.code").write_text(str(code))


def outcomes(verbs, folder):
    """Exit code and output of each command, run by one process without privileges."""
    live = Live(["--version"], folder / "log", before=partial(run_each, verbs, folder), full=True)
    assert live.wait(280) == 0, live.said
    return {verb: (int((folder / f"{verb}.code").read_text()), (folder / f"{verb}.log").read_text()) for verb in verbs}


def assert_denied(code, said):
    assert "Traceback" not in said, said
    assert code == 2, said
    assert "Permission denied" in said
    assert "Free some disk space" not in said


@pytest.fixture(scope="module")
def read_only(made, tmp_path_factory):
    """What each verb does that writes into a read-only folder."""
    folder = tmp_path_factory.mktemp("read_only")
    (folder / "closed").mkdir(mode=0o555)
    found = outcomes({verb: commands(made, folder / "closed")[verb] for verb in VERBS}, folder)
    return found, list((folder / "closed").iterdir())


@pytest.mark.parametrize("verb", VERBS)
def test_a_read_only_folder_gives_a_message(read_only, verb):
    found, written = read_only
    assert_denied(*found[verb])
    assert written == []


def given_away(made, folder, mode):
    """A copy of the run and the dataset that belongs to nobody, with a folder to write to."""
    if os.getuid() != 0:
        pytest.skip("only root can give files to another user")
    shutil.copytree(made, folder)
    (folder / "out").mkdir()
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    folder.chmod(mode)
    return folder


def state(folder):
    """All files of a folder, and when they were written."""
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def of_nobody(made, tmp_path_factory):
    """What each verb does with a run and a dataset that belong to nobody, and write there or into the run."""
    folder = tmp_path_factory.mktemp("of_nobody")
    foreign = given_away(made, folder / "foreign", 0o755)
    before = state(foreign)
    verbs = commands(foreign, foreign / "out")
    verbs |= {f"{verb} in the run": verbs[verb][:2] for verb in ("eval", "report", "export")}
    verbs["predict in the run"] = [*verbs["predict"][:-1], foreign / "run" / "predictions"]
    verbs["train in the run"] = ["train", "--resume", foreign / "run", "--train.epochs=2"]
    found = outcomes(verbs, folder)
    assert state(foreign) == before
    return found


WRITING = [*VERBS, *(f"{verb} in the run" for verb in ("train", "eval", "predict", "report", "export"))]


@pytest.mark.parametrize("verb", [*WRITING, "data check"])
def test_a_folder_owned_by_nobody_is_read_and_not_written(of_nobody, verb):
    code, said = of_nobody[verb]
    if verb == "data check":  # reads alone
        assert code == 0, said
        assert "No faults" in said
    else:
        assert_denied(code, said)


@pytest.fixture(scope="module")
def hidden(made, tmp_path_factory):
    """What each verb does that reads from a folder of nobody's that no other may open."""
    folder = tmp_path_factory.mktemp("hidden")
    foreign, out = given_away(made, folder / "foreign", 0o700), folder / "out"
    out.mkdir()
    verbs = commands(foreign, out)
    verbs["train"] = [*verbs["train"], "--data", foreign / "data"]
    verbs["train in the run"] = ["train", "--resume", foreign / "run"]
    return outcomes(verbs, folder)


@pytest.mark.parametrize(
    "verb",
    [
        *("train", "train in the run", "eval", "predict", "report", "export", "data show", "data check", "calibrate"),
        "reproduce",
    ],
)
def test_a_folder_that_cannot_be_opened_is_named(hidden, verb):
    assert_denied(*hidden[verb])
    assert "foreign" in hidden[verb][1]


# The summary of no table fits on the disk.
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("export", "reproduce summary")])
def test_a_full_disk_gives_a_message(made, tmp_path, verb):
    out = tmp_path / "out"
    out.mkdir()
    code, said = run(commands(made, out)[verb], tmp_path / "log", little_disk)
    assert code == 2
    # A row of a table is trained by another process; its message is too long for the log of this one.
    assert ("exit code 2: /" if verb == "reproduce" else "File too large") in said
    assert "Permission" not in said
    assert not [path for path in out.rglob("*") if path.name.endswith(".part")]


# The others take long; the output of a training is tested beside its processes.
@pytest.mark.parametrize(
    "verb", [*(verb for verb in VERBS if verb not in ("export", "train", "reproduce")), "data check"]
)
def test_a_closed_pipe_ends_quietly(made, tmp_path, verb):
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
