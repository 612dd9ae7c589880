"""The files of the tutorial, made by its own commands at a smaller size."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
from doc_blocks import ROOT, fenced
from doc_commands import check, commands
from PIL import Image

from rankwise.cli import main

#: What makes each verb quick; a user's commands are otherwise as they stand.
SMALL = {
    "data": [],
    "data shapes": ["--shapes.train_images", "8", "--shapes.val_images", "3", "--shapes.size", "64"],
    "train": [
        *("--epochs", "1", "--batch_size", "4", "--model.input.short_side", "64", "--model.input.max_side", "64"),
        *("--model.backbone.args", '{"channels": [8, 8, 16, 16], "stem_width": 8}', "--model.neck.channels", "8"),
        *("--model.neck.extra_levels", "0", "--model.head.channels", "8", "--model.head.depth", "1"),
        *("--train.accelerator", "cpu"),
    ],
}
#: Begins with weights from a hub: only parsed.
NOT_RUN = ("runs/photos",)


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every command of the tutorial was run, with what the other pages name beside it."""
    folder = tmp_path_factory.mktemp("workshop")
    before = Path.cwd()
    os.chdir(folder)
    try:
        for block in fenced((ROOT / "docs" / "tutorial.md").read_text(), "docs/tutorial.md"):
            for command in commands(block.text) if block.language == "bash" else ():
                words = shlex.split(command, comments=True)
                if words[0] != "rankwise" or any(name in words for name in NOT_RUN):
                    check(command)
                else:
                    main([*words[1:], *SMALL.get(" ".join(words[1:3]), SMALL.get(words[1], []))])
    finally:
        os.chdir(before)
    (folder / "runs" / "default").symlink_to("first")
    shutil.copy(folder / "runs" / "first" / "model.onnx", folder / "detector.onnx")
    Image.open(folder / "my_data" / "val" / "000001.png").save(folder / "photo.jpg")
    return folder
