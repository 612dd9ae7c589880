"""Datasets of every format are detected and opened with the boxes that were written."""

import io
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from data_folders import (
    CLASSES,
    coco_content,
    pictures,
    save,
    voc_xml,
    write_coco_folder,
    write_two_years,
    write_voc_folder,
    write_yolo_folder,
    yolo_lines,
)
from rich.console import Console

from rankwise.config.datasets import open_datasets, open_split
from rankwise.config.settings import DataSettings
from rankwise.data import DataError, ShapesDataset, check, open_dataset, print_report, write_coco
from rankwise.data.folder import Folder
from rankwise.data.formats import find_source
from rankwise.images.settings import InputSettings

WRITERS = {"COCO": write_coco_folder, "Pascal VOC": write_voc_folder, "YOLO": write_yolo_folder}


def assert_shows(dataset, made) -> None:
    """The dataset holds these pictures with these boxes."""
    by_stem = {Path(record.name).stem: record for record in dataset.records}
    assert set(by_stem) == {picture.stem for picture in made}
    for picture in made:
        record = by_stem[picture.stem]
        assert (record.width, record.height) == picture.size
        assert np.allclose(record.boxes, np.array(picture.boxes).reshape(-1, 4), atol=1e-3)
        assert record.labels.tolist() == picture.labels
        assert record.iscrowd.tolist() == picture.crowd


@pytest.mark.parametrize("kind", WRITERS)
def test_the_format_is_detected_and_boxes_are_read(tmp_path, kind):
    root = WRITERS[kind](tmp_path / "data")
    assert find_source(root).name == kind
    train, val = open_dataset(root, "train"), open_dataset(root, "val")
    if kind == "Pascal VOC":
        made = pictures(20)
        assert_shows(train, made[4:])
        assert_shows(val, made[:4])
    else:
        assert_shows(train, pictures(16, 0))
        assert_shows(val, pictures(4, 1))
    assert train.classes == val.classes == CLASSES
    assert train.notes == val.notes == []
    image, target = train[0]
    x0, y0, x1, y1 = target["boxes"][-1].long().tolist()  # the last one was drawn over the others
    colour = image[:, y0:y1, x0:x1].float().mean((1, 2))
    assert int(colour.argmax()) == [0, 1, 2][target["labels"][-1]]
    assert len({record.image_id for record in train.records}) == 16


@pytest.mark.parametrize("kind", WRITERS)
def test_a_folder_without_validation_is_split_90_to_10_reproducibly_with_a_note(tmp_path, kind):
    root = WRITERS[kind](tmp_path / "data", train=30, val=0)
    train, val = open_dataset(root, "train"), open_dataset(root, "val")
    assert (len(train), len(val)) == (27, 3)
    names = [record.name for record in val.records]
    assert not set(names) & {record.name for record in train.records}
    assert [record.name for record in open_dataset(root, "val").records] == names
    assert train.notes == val.notes
    assert "has no validation split: 3 of its 30 images are held out for validation" in train.notes[0]
    # Elsewhere and in another order of images it is the same ones.
    moved = tmp_path / "elsewhere"
    shutil.move(root, moved)
    assert {record.name for record in open_dataset(moved, "val").records} == set(names)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_folder_opens_by_relative_absolute_and_linked_paths(tmp_path, monkeypatch, kind):
    root = WRITERS[kind](tmp_path / "data" / "inside")
    names = [record.name for record in open_dataset(root).records]
    (tmp_path / "link").symlink_to(root)
    for here, name in {root: ".", root / "sub": "..", tmp_path: "data/inside", root.parent: "../data/inside"}.items():
        here.mkdir(exist_ok=True)
        monkeypatch.chdir(here)
        dataset = open_dataset(name)
        assert [record.name for record in dataset.records] == names
        assert dataset.records[0].path.is_relative_to(name)
        assert dataset[0][0].shape[0] == 3
        assert check(name).faults == []
    monkeypatch.chdir(tmp_path)
    assert [record.name for record in open_dataset("link").records] == names


@pytest.mark.parametrize("name", [".", "..", "/", "sub", "../data"])
def test_names_that_lead_out_are_detected_for_any_form_of_the_folder_path(tmp_path, monkeypatch, name):
    here = tmp_path / "data"
    (here / "sub").mkdir(parents=True)
    monkeypatch.chdir(here)
    folder = Folder(Path(name))
    assert not folder.leads_out("images/a.jpg")
    assert not folder.leads_out("../a.jpg", Path(name) / "images")
    assert folder.leads_out("../../../secret.jpg") == folder.climbs_out("../../../secret.jpg") == (name != "/")
    assert folder.leads_out("/etc/passwd")


def test_a_name_that_climbs_back_over_a_link_leads_out(tmp_path):
    (tmp_path / "elsewhere" / "sub").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere" / "sub")
    for folder in ("data", "elsewhere"):
        (tmp_path / folder / "a.jpg").touch()
    assert Folder(tmp_path / "data").leads_out("link/../a.jpg")


@pytest.mark.parametrize("linked", [False, True])
def test_yolo_with_an_absolute_path_opens_from_a_relative_one(tmp_path, monkeypatch, linked):
    root = write_yolo_folder(tmp_path / "data")
    named = root
    if linked:
        named = tmp_path / "link"
        named.symlink_to(root)
    text = (root / "data.yaml").read_text()
    (root / "data.yaml").write_text(text.replace("path: .", f"path: {named}"))
    monkeypatch.chdir(tmp_path)
    dataset = open_dataset("data")
    assert_shows(dataset, pictures(16, 0))
    assert dataset.records[0].name == "images/train/picture000.jpg"
    assert check("data").faults == []


def test_an_exact_split_name_wins_over_similar_ones(tmp_path):
    root = write_two_years(tmp_path / "data")
    data = DataSettings(path=str(root), train="train2017", val="val2014")
    train, val = open_datasets(data, InputSettings())
    assert {Path(record.name).parts[0] for record in train.records} == {"train2017"}
    assert {Path(record.name).parts[0] for record in val.records} == {"val2014"}
    assert (len(train), len(val), train.notes, val.notes) == (16, 4, [], [])
    assert len(open_dataset(root, "train2017")) == 16
    with pytest.raises(DataError, match="several train splits: train2014, train2017; choose one of them"):
        open_dataset(root, "train")


def test_images_are_held_out_from_the_given_training_split(tmp_path):
    data = DataSettings(path=str(write_two_years(tmp_path / "data", val=0)), train="train2017")
    train, val = open_datasets(data, InputSettings())
    assert (len(train), len(val)) == (14, 2)
    assert {Path(record.name).parts[0] for record in [*train.records, *val.records]} == {"train2017"}
    assert len(open_split(data, "train2014")) == 16


def test_nothing_is_held_out_if_another_validation_split_is_given(tmp_path):
    root = write_coco_folder(tmp_path / "data", train=20)
    (root / "annotations/instances_val.json").rename(root / "annotations/instances_test.json")
    (root / "val").rename(root / "test")
    for val, count in {"test": 4, "train": 20}.items():
        train_set, val_set = open_datasets(DataSettings(path=str(root), val=val), InputSettings())
        assert (len(train_set), len(val_set)) == (20, count)
        notes = [*train_set.notes, *val_set.notes]
        assert notes == [] if val == "test" else ["also training images" in note for note in notes] == [True]
    train_set, val_set = open_datasets(DataSettings(path=str(root)), InputSettings())
    assert (len(train_set), len(val_set)) == (18, 2)


def test_a_split_given_by_the_user_is_that_of_the_folder_or_else_of_the_recipe(tmp_path):
    root = write_coco_folder(tmp_path / "data")
    shutil.copytree(root / "train", root / "val2017")
    shutil.copy(root / "annotations/instances_train.json", root / "annotations/instances_val2017.json")
    data = DataSettings(path=str(root), val="val2017")
    assert len(open_split(data, "val")) == len(open_split(data, "val2017", named=True)) == 16
    assert len(open_split(data, "val", named=True)) == 4
    other = write_coco_folder(tmp_path / "other")
    assert len(open_split(DataSettings(path=str(other), val="val2017"), "val", named=True)) == 4
    years = DataSettings(path=str(write_two_years(tmp_path / "years")), val="val2017")
    assert {Path(record.name).parts[0] for record in open_split(years, "val", named=True).records} == {"val2017"}
    assert len(open_split(DataSettings(val="test"), "val", named=True)) == DataSettings().shapes.val_images


def test_file_names_that_are_not_utf8_work(tmp_path):
    root = write_yolo_folder(tmp_path / "data", val=0)
    name = os.fsdecode(b"caf\xe9")
    (root / "images/train/picture000.jpg").rename(root / f"images/train/{name}.jpg")
    (root / "labels/train/picture000.txt").rename(root / f"labels/train/{name}.txt")
    names = {record.name for split in ("train", "val") for record in open_dataset(root, split).records}
    assert "images/train/caf\\udce9.jpg" in names  # as it is printed
    assert len(names) == 16
    assert check(root).faults == []


def test_category_ids_need_not_be_contiguous(coco_folder):
    dataset = open_dataset(coco_folder)
    assert dataset.category_ids == [3, 7, 90]
    truth = dataset.ground_truth()
    original = json.loads((coco_folder / "annotations/instances_train.json").read_text())
    assert truth["categories"] == original["categories"]
    for mine, theirs in zip(truth["annotations"], original["annotations"], strict=True):
        assert mine["image_id"] == theirs["image_id"]
        assert mine["category_id"] == theirs["category_id"]
        assert mine["bbox"] == theirs["bbox"]
        assert mine["area"] == theirs["area"]


def edit_coco(root: Path, split: str = "train"):
    """The content of an annotation file, and a function that writes it back."""
    path = root / "annotations" / f"instances_{split}.json"
    content = json.loads(path.read_text())
    return content, lambda: path.write_text(json.dumps(content))


def test_categories_are_sorted_by_id(coco_folder):
    content, write = edit_coco(coco_folder)
    content["categories"].reverse()
    write()
    assert open_dataset(coco_folder).classes == CLASSES


def test_crowd_area_and_missing_fields_of_coco(coco_folder):
    content, write = edit_coco(coco_folder)
    first, second = content["annotations"][:2]
    first |= {"iscrowd": 1, "segmentation": {"counts": "abc", "size": [4, 4]}, "area": 12.5, "keypoints": [1, 2, 3]}
    del second["area"], second["iscrowd"]
    for image in content["images"]:
        del image["width"], image["height"]
    write()
    dataset = open_dataset(coco_folder)
    annotations = dataset.ground_truth()["annotations"]
    assert (annotations[0]["iscrowd"], annotations[0]["area"]) == (1, 12.5)
    assert annotations[1]["area"] == second["bbox"][2] * second["bbox"][3]
    assert dataset[0][1]["iscrowd"][0].item()
    assert_shows_sizes = [(record.width, record.height) for record in dataset.records]
    assert assert_shows_sizes == [picture.size for picture in pictures(16, 0)]


@pytest.mark.parametrize(
    ("value", "crowd"), [("0", False), ("1", True), (0.0, False), (1.0, True), (None, False), (True, True)]
)
def test_all_forms_of_coco_crowd_flags_are_read(coco_folder, value, crowd):
    content, write = edit_coco(coco_folder)
    content["annotations"][0]["iscrowd"] = value
    write()
    assert bool(open_dataset(coco_folder).records[0].iscrowd[0]) == crowd


@pytest.mark.parametrize("layout", ["train2017", "images/train2017", "images", "train2017/images"])
def test_coco_file_names_and_other_image_folders_are_found(tmp_path, layout):
    made = pictures(5)
    for picture in made:
        save(picture, tmp_path / layout)
    (tmp_path / "annotations").mkdir()
    for name in ("instances_train2017", "instances_val2017"):
        (tmp_path / "annotations" / f"{name}.json").write_text(json.dumps(coco_content(made)))
    (tmp_path / "annotations" / "captions_train2017.json").write_text("{}")
    assert find_source(tmp_path).splits == ["train2017", "val2017"]
    assert_shows(open_dataset(tmp_path, "train"), made)
    assert_shows(open_dataset(tmp_path, "train2017"), made)


@pytest.mark.parametrize("val", ["valid", "val", "validation"])
def test_the_layout_with_a_json_in_each_split_folder(tmp_path, val):
    for seed, split in enumerate(["train", val, "test"]):
        made = pictures(4, seed)
        for picture in made:
            save(picture, tmp_path / split)
        (tmp_path / split / "_annotations.coco.json").write_text(json.dumps(coco_content(made)))
    assert_shows(open_dataset(tmp_path, "train"), pictures(4, 0))
    assert_shows(open_dataset(tmp_path, "val"), pictures(4, 1))
    assert_shows(open_dataset(tmp_path, "test"), pictures(4, 2))


def test_a_single_split_of_any_name_is_the_training_split(tmp_path):
    (tmp_path / "annotations").mkdir()
    made = pictures(10)
    for picture in made:
        save(picture, tmp_path / "images")
    (tmp_path / "annotations" / "instances_default.json").write_text(json.dumps(coco_content(made)))
    assert len(open_dataset(tmp_path, "train")) == 9
    assert len(open_dataset(tmp_path, "val")) == 1


def test_difficult_objects_of_voc_are_crowd(tmp_path):
    root = write_voc_folder(tmp_path / "voc")
    picture = pictures(20)[5]
    picture.crowd[0] = True
    (root / "Annotations" / f"{picture.stem}.xml").write_text(voc_xml(picture))
    record = next(r for r in open_dataset(root).records if picture.stem in r.name)
    assert record.iscrowd.tolist() == picture.crowd


@pytest.mark.parametrize("value", ["maybe", "2", "-1", "x" * 200_000])
def test_an_unreadable_difficult_of_voc_is_a_fault_and_a_missing_one_means_no(tmp_path, value):
    root = write_voc_folder(tmp_path / "voc")
    path = root / "Annotations" / f"{pictures(20)[5].stem}.xml"
    text = path.read_text()
    path.write_text(text.replace("<difficult>0</difficult>", "", 1))
    before = open_dataset(root)
    path.write_text(text.replace("<difficult>0<", f"<difficult>{value}<", 1))
    with pytest.raises(DataError, match="1 fault") as caught:
        open_dataset(root)
    said = str(caught.value)
    assert f"object 1 has '{value[:50]}" in said
    assert "as <difficult>; give 0, or 1 for an object to ignore" in said
    assert len(said) < 2000
    skipped = open_dataset(root, skip_bad=True)
    boxes = [sum(len(record.boxes) for record in dataset.records) for dataset in (before, skipped)]
    assert boxes[0] == boxes[1] + 1


def test_long_class_names_are_shortened_in_messages_and_tables(tmp_path):
    content = coco_content(pictures(10))
    longest = "n" * 200_000
    content["categories"][0]["name"] = longest
    for picture in pictures(10):
        save(picture, tmp_path / "images")
    (tmp_path / "annotations").mkdir()
    path = tmp_path / "annotations" / "instances_default.json"
    path.write_text(json.dumps(content))
    assert longest in open_dataset(tmp_path).classes
    with pytest.raises(DataError, match=r"has the classes nnn.*\(200,000 characters\).*use the same names") as caught:
        open_dataset(tmp_path, classes=["other"])
    assert len(str(caught.value)) < 1000
    output = io.StringIO()
    print_report(check(tmp_path), Console(file=output, width=80))
    assert len(output.getvalue()) < 10_000
    content["categories"][1]["name"] = longest
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"are both called 'nnn.*characters") as caught:
        open_dataset(tmp_path)
    assert len(str(caught.value)) < 1000


def test_voc_files_beside_their_images(tmp_path):
    for seed, split in enumerate(["train", "valid"]):
        for picture in pictures(5, seed):
            save(picture, tmp_path / "splits" / split)
            (tmp_path / "splits" / split / f"{picture.stem}.xml").write_text(voc_xml(picture))
    for picture in pictures(10):
        save(picture, tmp_path / "flat")
        (tmp_path / "flat" / f"{picture.stem}.xml").write_text(voc_xml(picture))
    assert_shows(open_dataset(tmp_path / "splits", "train"), pictures(5, 0))
    assert_shows(open_dataset(tmp_path / "splits", "val"), pictures(5, 1))
    assert len(open_dataset(tmp_path / "flat", "train")) == 9


@pytest.mark.parametrize("images", ["JPEGImages", "images", "Images", ".", "beside"])
@pytest.mark.parametrize("annotations", ["Annotations", "annotations"])
@pytest.mark.parametrize("renamed", [False, True])
def test_voc_files_and_images_are_found_in_all_known_folders(tmp_path, annotations, images, renamed):
    made = pictures(10)
    for picture in made:
        save(picture, tmp_path / (annotations if images == "beside" else images))
        (tmp_path / annotations).mkdir(exist_ok=True)
        (tmp_path / annotations / f"{'sheet_' * renamed}{picture.stem}.xml").write_text(voc_xml(picture))
    source = find_source(tmp_path)
    assert (source.name, source.splits) == ("Pascal VOC", ["train"])
    assert len(open_dataset(tmp_path, "train")) == 9
    assert_shows(open_dataset(tmp_path, val="train"), made)
    assert check(tmp_path).faults == []


def test_the_voc_image_folder_is_the_one_with_most_images(tmp_path):
    root = write_voc_folder(tmp_path / "voc")
    (root / "JPEGImages").rename(root / "images")
    (root / "JPEGImages").mkdir()
    assert len(open_dataset(root)) == 16
    shutil.move(root / "images" / "picture005.jpg", tmp_path)
    [fault] = check(root).faults
    assert "Annotations/picture005.xml: there is no file 'picture005.jpg' in images/; put the image" in str(fault)


def test_json_beside_xml_files_is_coco(coco_folder):
    (coco_folder / "annotations" / "picture000.xml").write_text("<annotation/>")
    assert find_source(coco_folder).name == "COCO"


def test_voc_corners_start_at_0_if_a_0_occurs(voc_folder):
    picture = pictures(20)[6]
    before = next(r for r in open_dataset(voc_folder).records if picture.stem in r.name).boxes
    path = voc_folder / "Annotations" / f"{picture.stem}.xml"
    x0 = picture.boxes[0][0]
    path.write_text(path.read_text().replace(f"<xmin>{x0 + 1}</xmin>", "<xmin>0</xmin>", 1))
    after = next(r for r in open_dataset(voc_folder).records if picture.stem in r.name).boxes
    assert after[0, 0] == 0
    assert (after[1:, :2] == before[1:, :2] + 1).all()
    assert (after[:, 2:] == before[:, 2:]).all()


def test_voc_in_its_devkit_folder_with_class_lists_that_are_not_splits(tmp_path):
    root = write_voc_folder(tmp_path / "VOCdevkit" / "VOC2012")
    (root / "ImageSets" / "Main" / "nut_train.txt").write_text("picture004 1\npicture005 -1\n")
    assert sorted(find_source(tmp_path).splits) == ["train", "val"]
    assert len(open_dataset(tmp_path, "train")) == 16


def test_a_class_that_occurs_only_in_validation_has_the_same_label_in_both_splits(voc_folder):
    path = voc_folder / "Annotations" / "picture000.xml"
    path.write_text(path.read_text().replace("<name>", "<name>a"))
    train, val = open_dataset(voc_folder, "train"), open_dataset(voc_folder, "val")
    assert train.classes == val.classes
    assert len(train.classes) > 3


def test_yolo_names_as_a_dict_and_polygons(yolo_folder):
    text = (yolo_folder / "data.yaml").read_text().split("names:")[0]
    (yolo_folder / "data.yaml").write_text(f"{text}nc: 3\nnames:\n  0: bolt\n  1: gear\n  2: nut\n")
    label = yolo_folder / "labels" / "train" / "picture000.txt"
    label.write_text("2 0.25 0.25 0.5 0.25 0.5 0.75 0.3 0.5\n\n")
    record = open_dataset(yolo_folder).records[0]
    width, height = record.width, record.height
    assert record.labels.tolist() == [2]
    assert record.boxes[0].tolist() == pytest.approx([0.25 * width, 0.25 * height, 0.5 * width, 0.75 * height])


def test_yolo_exports_with_paths_that_seem_to_lead_out(tmp_path):
    made = pictures(6)
    for picture in made:
        save(picture, tmp_path / "train" / "images")
        (tmp_path / "train" / "labels").mkdir(exist_ok=True)
        (tmp_path / "train" / "labels" / f"{picture.stem}.txt").write_text(yolo_lines(picture))
    shutil.copytree(tmp_path / "train", tmp_path / "valid")
    (tmp_path / "data.yaml").write_text(f"train: ../train/images\nval: ../valid/images\nnc: 3\nnames: {CLASSES}\n")
    assert_shows(open_dataset(tmp_path, "train"), made)
    assert_shows(open_dataset(tmp_path, "val"), made)


def test_yolo_with_lists_of_images(yolo_folder):
    made = pictures(16, 0)
    (yolo_folder / "some.txt").write_text("".join(f"./images/train/{p.stem}.jpg\n" for p in made[:3]))
    (yolo_folder / "data.yaml").write_text(f"train: some.txt\nval: [images/val]\nnames: {CLASSES}\n")
    assert_shows(open_dataset(yolo_folder, "train"), made[:3])
    assert len(open_dataset(yolo_folder, "val")) == 4
    assert not check(yolo_folder).faults


def test_the_classes_of_another_split_are_ordered_as_in_training(coco_folder):
    content, write = edit_coco(coco_folder, "val")
    for category in content["categories"]:
        category["id"] = 100 - category["id"]
    for annotation in content["annotations"]:
        annotation["category_id"] = 100 - annotation["category_id"]
    write()
    assert open_dataset(coco_folder, "val").classes == CLASSES[::-1]
    val = open_dataset(coco_folder, "val", classes=CLASSES)
    assert val.classes == CLASSES
    assert val.category_ids == [97, 93, 10]
    assert_shows(val, pictures(4, 1))


def test_classes_that_differ_from_training_are_an_error_that_lists_both(coco_folder):
    content, write = edit_coco(coco_folder, "val")
    content["categories"][1]["name"] = "Gear"
    write()
    with pytest.raises(DataError) as caught:
        open_dataset(coco_folder, "val", classes=CLASSES)
    message = str(caught.value)
    assert "val has the classes bolt, Gear, nut, but training has bolt, gear, nut" in message
    assert "(missing here: gear) (unknown there: Gear)" in message


def test_images_that_show_some_of_the_classes_alone_keep_their_names(tmp_path):
    made = pictures(12)
    some = [picture for picture in made if set(picture.labels) == {2}]
    assert some
    for picture in some:
        save(picture, tmp_path)
        (tmp_path / f"{picture.stem}.xml").write_text(voc_xml(picture))
    dataset = open_dataset(tmp_path, "all", classes=CLASSES)
    assert dataset.classes == CLASSES
    assert len(set(dataset.category_ids)) == len(CLASSES)
    assert [record.labels.tolist() for record in dataset.records] == [picture.labels for picture in some]
    assert f"train: no objects of the classes {', '.join(CLASSES[:2])}" in dataset.notes
    with pytest.raises(DataError, match=f"unknown there: {CLASSES[2]}"):
        open_dataset(tmp_path, "all", classes=CLASSES[:2])


def test_boxes_beyond_the_image_by_less_than_a_pixel_are_clipped_silently(coco_folder):
    content, write = edit_coco(coco_folder)
    image = content["images"][0]
    content["annotations"][0]["bbox"] = [-0.9, -0.5, image["width"] + 1.7, image["height"] + 1.2]
    write()
    dataset = open_dataset(coco_folder)
    assert dataset.notes == []
    assert dataset.records[0].boxes[0].tolist() == [0, 0, image["width"], image["height"]]


def test_image_folders_may_be_links_to_elsewhere(coco_folder, tmp_path):
    shutil.move(coco_folder / "train", tmp_path / "big_disk")
    (coco_folder / "train").symlink_to(tmp_path / "big_disk")
    assert len(open_dataset(coco_folder)) == 16


def test_folders_without_a_dataset_get_a_message_with_the_expected_layouts(tmp_path):
    with pytest.raises(DataError, match=r"no such folder; give the folder of a dataset$"):
        open_dataset(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no such folder; give that of a dataset \(--data DIR\), or 'shapes' for the"):
        open_split(DataSettings(path=str(tmp_path / "nowhere")), "train")
    with pytest.raises(DataError, match=r"unknown format; found no files; .*; expected annotations/instances_<sp"):
        open_dataset(tmp_path)


def test_an_unknown_split_is_an_error_that_lists_the_splits(coco_folder):
    with pytest.raises(DataError, match=r"has no test split, only train, val; .*or choose another split with --split$"):
        open_dataset(coco_folder, "test")


def test_the_built_in_dataset_written_as_coco_opens_with_the_same_pixels_and_boxes(tmp_path):
    shapes = {split: ShapesDataset(split, images=4, size=64) for split in ("train", "val")}
    for split, dataset in shapes.items():
        write_coco(dataset, tmp_path, split)
    report = check(tmp_path)
    assert not report.faults
    for split, dataset in shapes.items():
        opened = open_dataset(tmp_path, split)
        assert opened.classes == dataset.classes
        for (image, target), (other, other_target) in zip(dataset, opened, strict=True):
            assert torch.equal(image, other)
            assert torch.equal(target["boxes"], other_target["boxes"])
            assert torch.equal(target["labels"], other_target["labels"])
        assert opened.ground_truth()["annotations"] == dataset.ground_truth()["annotations"]


def test_skip_bad_skips_and_counts_faults(coco_folder):
    content, write = edit_coco(coco_folder)
    image = content["images"][1]
    mine = [a for a in content["annotations"] if a["image_id"] == image["id"]]
    mine[0]["bbox"] = [-10, 5, 30, 20]  # clipped to 20 × 20
    (coco_folder / "train" / content["images"][0]["file_name"]).unlink()
    content["annotations"].append(mine[0] | {"id": 9000, "bbox": [5, 5, 0, 4]})
    content["annotations"].append(mine[0] | {"id": 9001, "category_id": 55})
    write()
    with pytest.raises(DataError):
        open_dataset(coco_folder)
    dataset = open_dataset(coco_folder, skip_bad=True)
    assert len(dataset) == 15
    assert dataset.records[0].image_id == image["id"]
    assert dataset.records[0].boxes[0].tolist() == [0, 5, 20, 25]
    assert len(dataset.records[0].boxes) == len(mine)
    assert dataset.skip_bad
    [note] = dataset.notes
    assert note.startswith("train: 4 faults skipped or clipped (")
    for kind in ("1 × missing image", "1 × box without area", "1 × unknown category", "1 × box outside the image"):
        assert kind in note


def test_an_error_shows_ten_faults_and_counts_the_rest(coco_folder):
    content, write = edit_coco(coco_folder)
    for annotation in content["annotations"][:14]:
        annotation["category_id"] = 1
    write()
    with pytest.raises(DataError) as caught:
        open_dataset(coco_folder)
    lines = str(caught.value).splitlines()
    assert "the train split has 14 faults:" in lines[0]
    assert Counter("category 1" in line for line in lines)[True] == 10
    assert "… and 4 more: rankwise data check" in lines[-2]
    assert "set --data.skip_bad (in Python skip_bad=True) to skip such images and boxes" in lines[-1]
