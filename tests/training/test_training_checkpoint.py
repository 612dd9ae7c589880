"""Checkpoints are written atomically, and loading one runs no code."""

import os
import pickle

import pytest
import torch

from rankwise.files.writing import WriteError, remove_parts, write_whole
from rankwise.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint


def test_a_saved_checkpoint_loads_unchanged(tmp_path):
    state = {"progress": {"step": 3}, "weights": torch.arange(4.0)}
    save_checkpoint(tmp_path / "last.ckpt", state)
    loaded = load_checkpoint(tmp_path / "last.ckpt")
    assert loaded["progress"] == {"step": 3}
    assert torch.equal(loaded["weights"], state["weights"])
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_write_that_fails_leaves_the_previous_checkpoint_and_says_so(tmp_path):
    path = tmp_path / "last.ckpt"
    save_checkpoint(path, {"progress": {"step": 1}})

    def full_disk(part):
        part.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(WriteError, match=r"No space left on device.*previous one is intact.*Free some"):
        write_whole(path, full_disk)
    assert load_checkpoint(path)["progress"]["step"] == 1
    assert [item.name for item in tmp_path.iterdir()] == ["last.ckpt"]


def test_temporary_files_of_a_killed_write_are_removed(tmp_path):
    (tmp_path / ".last.ckpt.abc.part").write_bytes(b"half")
    (tmp_path / "metrics.jsonl").write_text("{}")
    remove_parts(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["metrics.jsonl"]


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    "dump", [lambda obj, path: torch.save(obj, path), lambda obj, path: path.write_bytes(pickle.dumps(obj))]
)
def test_a_malicious_pickle_only_raises_an_error(tmp_path, dump):
    dump({"progress": Malicious(tmp_path / "owned")}, tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match="nothing was run from it"):
        load_checkpoint(tmp_path / "last.ckpt")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 cut off"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "last.ckpt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"last\.ckpt: not a rankwise checkpoint, or damaged"):
        load_checkpoint(tmp_path / "last.ckpt")


def test_a_missing_checkpoint_gives_the_start_command(tmp_path):
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        load_checkpoint(tmp_path / "last.ckpt")
