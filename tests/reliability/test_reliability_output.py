"""Lost output does not stop a training; a second training in the same folder is refused."""

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


def test_a_stream_without_a_reader_discards_its_output(closed_pipe):
    lasting = LastingStream(closed_pipe)
    for _ in range(3):
        assert lasting.write("text\n") == 5
        lasting.flush()
    assert isinstance(lasting.lost, BrokenPipeError)


def test_characters_outside_the_encoding_are_escaped(tmp_path):
    with (tmp_path / "out").open("w", encoding="ascii") as file:
        LastingStream(file).write("caf\xe9 \udcff\n")
    assert (tmp_path / "out").read_text() == "caf\\xe9 \\udcff\n"


def test_output_to_a_full_disk_gives_a_message_and_an_exit_code(monkeypatch, capfd):
    before = os.dup(1)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)  # as in a process with this as its standard output
    try:
        with os.fdopen(1, "w", closefd=False) as output:
            monkeypatch.setattr(sys, "stdout", output)
            with pytest.raises(SystemExit) as stop, lasting_output(needed=True):
                print("a table")
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(full)
    assert stop.value.code == 2
    said = capfd.readouterr().err
    assert said == "standard output was closed (No space left on device): continuing without it\n"


def test_a_second_training_in_a_folder_is_refused_and_a_stale_lock_is_replaced(tmp_path):
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


def test_a_forked_process_does_not_hold_the_lock(tmp_path):
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
