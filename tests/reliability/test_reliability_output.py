"""Output that is gone is no reason to stop; a second training in one folder is."""

import json
import os
import sys
import time

import pytest

from rankwise.errors import SettingsError
from rankwise.files.streams import LastingStream, lasting_output
from rankwise.training.folders import run_folder
from rankwise.training.lock import NAME, lock_run


@pytest.fixture
def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        yield stream


def test_a_stream_without_a_reader_takes_what_comes(closed_pipe):
    lasting = LastingStream(closed_pipe)
    for _ in range(3):
        assert lasting.write("text\n") == 5
        lasting.flush()
    assert isinstance(lasting.lost, BrokenPipeError)


def test_names_that_the_encoding_lacks_are_escaped(tmp_path):
    with (tmp_path / "out").open("w", encoding="ascii") as file:
        LastingStream(file).write("caf\xe9 \udcff\n")
    assert (tmp_path / "out").read_text() == "caf\\xe9 \\udcff\n"


def test_a_full_disk_under_the_output_is_said_and_ends_with_a_code(monkeypatch, capfd):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as stop, lasting_output(needed=True):
            print("a table")
    assert stop.value.code == 2


def test_a_second_training_in_a_folder_is_refused_by_name_and_a_stale_lock_taken_over(tmp_path):
    run = tmp_path / "run"
    reader, writer = os.pipe()
    holder = os.fork()
    if holder == 0:
        with lock_run(run):
            os.write(writer, b"!")
            time.sleep(30)
        os._exit(0)
    try:
        os.read(reader, 1)
        with pytest.raises(SettingsError, match=rf"run: process {holder} on .* is training here"), lock_run(run):
            pass
        (run / "recipe.yaml").write_text("{}")
        with pytest.raises(SettingsError, match="is training here"):
            run_folder(str(run), "run", overwrite=True)
        assert (run / "recipe.yaml").is_file()
    finally:
        os.kill(holder, 9)
        os.waitpid(holder, 0)
    assert json.loads((run / NAME).read_text())["pid"] == holder  # left behind
    with lock_run(run):
        assert json.loads((run / NAME).read_text())["pid"] == os.getpid()
    assert [path.name for path in run.iterdir()] == ["recipe.yaml"]


def test_a_fork_does_not_keep_the_lock_of_its_parent(tmp_path):
    with lock_run(tmp_path / "run"):
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
    try:
        with lock_run(tmp_path / "run"):
            pass
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert not (tmp_path / "run").exists()


def test_overwrite_does_not_delete_through_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "recipe.yaml").write_text("{}")
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(SettingsError, match=r"is a link to .*real: --overwrite does not follow links"):
        run_folder(str(tmp_path / "link"), "run", overwrite=True)
    assert (tmp_path / "real" / "recipe.yaml").is_file()
