"""Datasets from which something else would be learned without a word."""

import json
import shutil
import sys

import pytest
from data_folders import CLASSES, write_coco_folder, write_voc_folder, write_yolo_folder

from rankwise.data import check
from rankwise.data.formats import open_dataset
from rankwise.errors import DataError
from rankwise.files.names import escaped
from rankwise.files.parsing import ParseError, parse_json, parse_yaml

HEAD = "train: images/train\nval: images/val\n"


@pytest.fixture
def yolo(tmp_path):
    return write_yolo_folder(tmp_path / "yolo", train=3, val=2)


@pytest.fixture
def coco(tmp_path):
    return write_coco_folder(tmp_path / "coco", train=3, val=2)


def change(root, edit):
    path = root / "annotations/instances_train.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def faults(root):
    return "\n".join(map(str, check(root).faults))


def counted(function, *arguments):
    """What a function returns, and how many calls it takes: a measure of its cost that no other process changes."""
    calls = 0

    def profile(frame, event, _):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        result = function(*arguments)
    finally:
        sys.setprofile(None)
    return result, calls


@pytest.mark.parametrize(
    "text", ["a: 1\na: 2", "x:\n- b: {a: 1, c: 2, 'a': 3}", "train: {epochs: 1}\nval: 2\ntrain: {epochs: 2}"]
)
@pytest.mark.parametrize("as_text", [False, True])
def test_a_key_that_is_twice_in_yaml_is_refused(text, as_text):
    with pytest.raises(ParseError, match=r"it has '(a|train)' twice, the second time in line"):
        parse_yaml(text, as_text)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"x": {"a": 1, "b": 2, "a": 1}}]'])
def test_a_key_that_is_twice_in_json_is_refused(text):
    with pytest.raises(ParseError, match="it has 'a' twice: keep one of them"):
        parse_json(text)


def test_annotations_that_are_twice_in_a_coco_file_are_a_fault(coco):
    path = coco / "annotations/instances_train.json"
    path.write_text(path.read_text()[:-1] + ', "annotations": []}')
    assert "instances_train.json: it has 'annotations' twice" in faults(coco)
    with pytest.raises(DataError, match="twice"):
        open_dataset(coco)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("{0: bolt, 00: gear, 1: nut}", "'names' has a number twice"),
        ("['', gear, nut]", "'names' has ''"),
        ("[' ', gear, nut]", "'names' has ' '"),
        ("[[a], b, c]", "'names' has ['a']"),
        ("[a, {b: c}, d]", "'names' has {'b': 'c'}"),
    ],
)
def test_class_names_of_yolo_are_unique_numbers_and_texts(yolo, names, said):
    (yolo / "data.yaml").write_text(f"{HEAD}names: {names}\n")
    assert said in faults(yolo)


def test_an_image_in_place_of_a_list_of_images_is_named(yolo):
    (yolo / "data.yaml").write_text(f"train: images/train/picture000.jpg\nval: images/val\nnames: {CLASSES}\n")
    assert "images/train/picture000.jpg: is not text; name a folder of images" in faults(yolo)


def test_a_name_of_thousands_of_folders_in_a_list_of_images_is_a_fault_at_a_cost_that_grows_with_its_length(yolo):
    (yolo / "data.yaml").write_text(f"train: train.txt\nval: images/val\nnames: {CLASSES}\n")
    calls = []
    for folders in (1000, 2000):
        (yolo / "train.txt").write_text("/x" * folders + ".jpg\n")
        said, count = counted(faults, yolo)
        assert "train.txt: " in said
        calls.append(count)
    assert calls[1] < 2.5 * calls[0]  # four times as many, if it were looked for from each folder on


def test_labels_with_another_spelling_of_txt_are_not_silently_left_out(yolo):
    label = yolo / "labels/train/picture000.txt"
    label.rename(label.with_suffix(".TXT"))
    assert "labels/train/picture000.TXT: is not read: label files end in .txt; rename it" in faults(yolo)
    with pytest.raises(DataError, match="is not read"):
        open_dataset(yolo)


def test_labels_of_an_image_in_an_unknown_format_are_a_fault(yolo):
    image = yolo / "images/train/picture000.jpg"
    image.rename(image.with_suffix(".heic"))
    assert (
        "labels/train/picture000.txt: there is no image with this name; add it to the image folder (.bmp, "
        in faults(yolo)
    )


def test_two_images_with_one_label_file_are_a_fault(yolo):
    shutil.copy(yolo / "images/train/picture001.jpg", yolo / "images/train/picture000.png")
    assert "picture000.jpg and picture000.png have the same label file, labels/train/picture000.txt" in faults(yolo)


def test_a_split_without_a_box_or_an_image_is_a_fault(yolo, coco):
    shutil.rmtree(yolo / "labels")
    assert "train split: has 3 images but no boxes" in faults(yolo)
    assert "val split: has 2 images but no boxes" in faults(yolo)
    change(coco, lambda content: content.update(images=[], annotations=[]))
    assert "train split: has no usable images" in faults(coco)


def test_boxes_as_fractions_of_the_image_are_a_fault(coco):
    def scale(content):
        for box in content["annotations"]:
            box["bbox"] = [value / 200 for value in box["bbox"]]

    change(coco, scale)
    assert "all within the first pixel: their corners look like fractions; give them in pixels" in faults(coco)


def test_an_image_that_is_listed_twice_is_reported(coco):
    change(coco, lambda content: content["images"].append(content["images"][0] | {"id": 999}))
    said = "train: 1 image listed more than once, such as train/picture000.jpg: every entry is used"
    assert said in check(coco).notes
    assert said in open_dataset(coco).notes


def test_a_list_of_voc_that_is_not_text_names_files_that_are_missing(tmp_path):
    root = write_voc_folder(tmp_path / "voc", train=2, val=1)
    path = root / "ImageSets/Main/train.txt"
    text = path.read_text()
    path.write_text(text, encoding="utf-16")
    assert "its name has a null byte" in faults(root)
    path.write_text(text, encoding="utf-8-sig")
    assert faults(root) == ""


def test_invisible_characters_are_shown():
    assert escaped("a\ufeffb\u200bc\u2060") == r"a\ufeffb\u200bc\u2060"
