"""Checkpoints have a checksum: a flipped bit is detected, and the previous checkpoint is offered."""

import random
import stat

import pytest
import torch

from rankwise.files.writing import write_whole
from rankwise.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint


def flipped(content, bit):
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def state(step):
    return {"progress": {"step": step}, "detector": {"weight": torch.arange(300.0)}, "fixed": {"classes": ["a"]}}


def test_every_flipped_bit_of_a_checkpoint_is_detected_and_the_previous_one_offered(tmp_path):
    path = tmp_path / "last.ckpt"
    save_checkpoint(path, state(1))
    save_checkpoint(path, state(2))
    whole = path.read_bytes()
    dice = random.Random(0)
    bits = [dice.randrange(8 * len(whole)) for _ in range(60)]
    bits += [8 * (len(whole) - byte) for byte in (1, 30, 64, 65, 70, 80)]  # of the checksum and what marks it
    for bit in bits:
        path.write_bytes(flipped(whole, bit))
        with pytest.raises(CheckpointError, match=r"last\.ckpt: .*damaged.*after step 1, is intact; .*previous\.ckpt"):
            load_checkpoint(path)
    path.write_bytes(whole)
    assert load_checkpoint(path)["progress"]["step"] == 2
    assert load_checkpoint(tmp_path / "previous.ckpt")["progress"]["step"] == 1


@pytest.mark.parametrize("cut", [1, 90, 2000])
def test_a_truncated_checkpoint_is_refused(tmp_path, cut):
    path = tmp_path / "last.ckpt"
    save_checkpoint(path, state(1))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(CheckpointError, match=r"damaged.*Start the run again"):
        load_checkpoint(path)


def test_a_checkpoint_of_an_earlier_version_still_loads(tmp_path):
    torch.save(state(3), tmp_path / "last.ckpt")
    assert load_checkpoint(tmp_path / "last.ckpt")["progress"]["step"] == 3


def test_a_file_has_the_permissions_of_the_umask(tmp_path):
    def private(part):
        part.write_bytes(b"x")
        part.chmod(0o600)

    (tmp_path / "plain").touch()
    write_whole(tmp_path / "weights", private)
    assert stat.S_IMODE((tmp_path / "weights").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    (tmp_path / "null").symlink_to("/dev/null")
    write_whole(tmp_path / "null", lambda part: part.write_bytes(b"x"))
    assert (tmp_path / "null").is_symlink()
    assert (tmp_path / "null").is_char_device()
