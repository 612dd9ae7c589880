"""Images that are in both training and validation always cause a warning."""

import json

import pytest
import yaml
from data_folders import write_coco_folder, write_yolo_folder

from rankwise.config.datasets import open_datasets
from rankwise.config.settings import DataSettings
from rankwise.data import check
from rankwise.errors import DataError
from rankwise.images.settings import InputSettings


def open_both(folder, **settings):
    return open_datasets(DataSettings(str(folder), **settings), InputSettings())


def test_a_coco_folder_without_training_annotations_is_refused(tmp_path):
    folder = write_coco_folder(tmp_path / "coco", train=3, val=3)
    (folder / "annotations/instances_train.json").unlink()
    with pytest.raises(DataError, match=r"has no train split, only val; add its annotations"):
        open_both(folder)
    faults = check(folder).faults
    assert [fault.kind for fault in faults] == ["missing split"]
    assert "there is no training split, only val" in str(faults[0])


@pytest.mark.parametrize("empty", [None, "", []])
def test_an_empty_training_entry_of_yolo_is_refused(tmp_path, empty):
    folder = write_yolo_folder(tmp_path / "yolo", train=3, val=3)
    content = yaml.safe_load((folder / "data.yaml").read_text())
    (folder / "data.yaml").write_text(yaml.safe_dump(content | {"train": empty}))
    with pytest.raises(DataError, match="has no train split, only val"):
        open_both(folder)


def test_a_single_split_of_any_name_is_trained_on_with_a_part_held_out(tmp_path):
    folder = write_coco_folder(tmp_path / "coco", train=10, val=0)
    (folder / "annotations/instances_train.json").rename(folder / "annotations/instances_factory.json")
    (folder / "train").rename(folder / "factory")
    train, val = open_both(folder)
    assert (len(train), len(val)) == (9, 1)
    assert not any("WARNING" in note for note in train.notes)


def test_images_in_both_training_and_validation_give_a_warning(tmp_path):
    folder = write_coco_folder(tmp_path / "coco", train=4, val=3)
    train, _ = open_both(folder, train="val")
    assert any("WARNING: 3 of the 3 validation images are also training images" in note for note in train.notes)
    assert not any("WARNING" in note for note in open_both(folder)[0].notes)


def test_an_image_in_two_splits_is_a_fault_also_through_a_link(tmp_path):
    folder = write_coco_folder(tmp_path / "coco", train=4, val=3)
    content = json.loads((folder / "annotations/instances_train.json").read_text())
    (folder / "annotations/instances_val.json").write_text(json.dumps(content))
    for path in (folder / "val").iterdir():
        path.unlink()
    (folder / "val").rmdir()
    (folder / "val").symlink_to("train")
    (fault,) = check(folder).faults
    assert fault.kind == "shared image"
    assert "4 of its 4 images are also training images" in fault.what
