"""Fixtures for runs in separate processes."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "training"))


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A run that was evaluated, a dataset, and results of another detector on it."""
    from data_folders import write_coco_folder
    from live_runs import TINY, finish

    folder = tmp_path_factory.mktemp("made")
    finish("shapes", *TINY, "--train.epochs=1", "--run", folder / "run", log=folder / "log", full=True, seconds=280)
    write_coco_folder(folder / "data", train=2, val=2)
    truth = json.loads((folder / "data/annotations/instances_train.json").read_text())
    keys = ("image_id", "category_id", "bbox")
    found = [{key: entry[key] for key in keys} | {"score": 0.7} for entry in truth["annotations"]]
    (folder / "results.json").write_text(json.dumps(found))
    return folder
