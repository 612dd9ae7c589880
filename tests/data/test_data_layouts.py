"""Layouts of annotation tools open as they are; for other folders, the message says what to change."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from data_folders import (
    CLASSES,
    coco_content,
    pictures,
    save,
    voc_xml,
    write_coco_folder,
    write_voc_folder,
    write_yolo_folder,
    yolo_lines,
)
from test_data_formats import assert_shows

from rankwise.config.datasets import open_datasets, results_subfolder
from rankwise.config.settings import DataSettings
from rankwise.data import DataError, check, open_dataset, print_report
from rankwise.data.finding import find_source
from rankwise.data.formats import HELD_OUT
from rankwise.images.settings import InputSettings

MADE = pictures(6)


def save_all(folder: Path) -> None:
    for picture in MADE:
        save(picture, folder)


def write_labels(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for picture in MADE:
        (folder / f"{picture.stem}.txt").write_text(yolo_lines(picture))


def write_xml(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for picture in MADE:
        (folder / f"{picture.stem}.xml").write_text(voc_xml(picture))


def renamed(name: Callable[[str], str], **more) -> str:
    """COCO's JSON with other names of images."""
    content = coco_content(MADE) | more
    for image in content["images"]:
        image["file_name"] = name(image["file_name"])
    return json.dumps(content)


def roboflow_coco(root: Path) -> str:
    """A category that groups the others comes first."""
    for split in ("train", "valid", "test"):
        save_all(root / split)
        content = coco_content(MADE)
        for category in content["categories"]:
            category["supercategory"] = "parts-8Xz2"
        content["categories"].insert(0, {"id": 0, "name": "parts-8Xz2", "supercategory": "none"})
        (root / split / "_annotations.coco.json").write_text(json.dumps(content))
    return "COCO"


def roboflow_yolo(root: Path) -> str:
    for split in ("train", "valid"):
        save_all(root / split / "images")
        write_labels(root / split / "labels")
    (root / "README.roboflow.txt").write_text("parts - v1\n")
    (root / "data.yaml").write_text(
        f"train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\nnc: 3\nnames: {CLASSES}\n\n"
        "roboflow:\n  workspace: me\n  project: parts-8xz2\n  version: 1\n"
    )
    return "YOLO"


def cvat_coco(root: Path) -> str:
    save_all(root / "images" / "default")
    (root / "annotations").mkdir()
    (root / "annotations" / "instances_default.json").write_text(renamed(str))
    return "COCO"


def cvat_yolo_1_1(root: Path) -> str:
    """Its files name a folder data/ that the archive does not have."""
    save_all(root / "obj_train_data")
    write_labels(root / "obj_train_data")
    (root / "obj.names").write_text("\n".join(CLASSES) + "\n")
    (root / "obj.data").write_text("classes = 3\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n")
    (root / "train.txt").write_text("".join(f"data/obj_train_data/{p.stem}.jpg\n" for p in MADE))
    return "YOLO"


def cvat_ultralytics(root: Path) -> str:
    save_all(root / "images" / "train")
    write_labels(root / "labels" / "train")
    (root / "train.txt").write_text("".join(f"images/train/{p.stem}.jpg\n" for p in MADE))
    names = "".join(f"  {number}: {name}\n" for number, name in enumerate(CLASSES))
    (root / "data.yaml").write_text(f"path: ./\ntrain: train.txt\nnames:\n{names}")
    return "YOLO"


def cvat_voc(root: Path) -> str:
    write_xml(root / "Annotations")
    save_all(root / "JPEGImages")
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "ImageSets" / "Main" / "default.txt").write_text("".join(f"{p.stem}\n" for p in MADE))
    (root / "labelmap.txt").write_text("# label:color_rgb:parts:actions\nbolt:1,2,3::\n")
    return "Pascal VOC"


def label_studio_coco(root: Path) -> str:
    save_all(root / "images")
    (root / "result.json").write_text(renamed(lambda name: f"images\\1/{name}", info={"contributor": "Label Studio"}))
    return "COCO"


def label_studio_coco_upload(root: Path) -> str:
    save_all(root / "images")
    (root / "result.json").write_text(renamed(lambda name: f"..\\..\\label-studio\\media\\upload\\4\\{name}"))
    return "COCO"


def label_studio_coco_url(root: Path) -> str:
    save_all(root / "images")
    (root / "result.json").write_text(renamed(lambda name: f"http://localhost:8080/data/upload/1/{name}"))
    return "COCO"


def label_studio_yolo(root: Path) -> str:
    save_all(root / "images")
    write_labels(root / "labels")
    (root / "classes.txt").write_text("\n".join(CLASSES))
    (root / "notes.json").write_text(json.dumps({"categories": [{"id": 0, "name": "bolt"}], "info": {"year": 2026}}))
    return "YOLO"


def labelimg_yolo(root: Path) -> str:
    save_all(root)
    write_labels(root)
    (root / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return "YOLO"


def yaml_without_splits(root: Path) -> str:
    save_all(root / "images" / "train")
    write_labels(root / "labels" / "train")
    (root / "data.yaml").write_text(f"names: {CLASSES}\n")
    return "YOLO"


def absolute_lists(root: Path) -> str:
    save_all(root / "images")
    write_labels(root / "labels")
    (root / "train.txt").write_text("".join(f"{root.resolve()}/images/{p.stem}.jpg\n" for p in MADE))
    (root / "data.yaml").write_text(f"train: {root.resolve()}/train.txt\nnames: {CLASSES}\n")
    return "YOLO"


def absolute_lists_of_another_machine(root: Path) -> str:
    absolute_lists(root)
    (root / "train.txt").write_text("".join(f"C:\\Users\\me\\parts\\images\\{p.stem}.jpg\n" for p in MADE))
    (root / "data.yaml").write_text(f"path: /home/me/parts\ntrain: train.txt\nnames: {CLASSES}\n")
    return "YOLO"


def fiftyone(root: Path) -> str:
    save_all(root / "data")
    (root / "labels.json").write_text(renamed(str))
    return "COCO"


def json_in_each_split(root: Path) -> str:
    for split in ("train", "val"):
        save_all(root / split / "images")
        (root / split / "annotations.json").write_text(renamed(str))
    return "COCO"


def xml_in(annotations: str, images: str) -> Callable[[Path], str]:
    def write(root: Path) -> str:
        save_all(root / images)
        write_xml(root / annotations)
        return "Pascal VOC"

    return write


LAYOUTS = {
    "Roboflow COCO": roboflow_coco,
    "Roboflow YOLO": roboflow_yolo,
    "CVAT COCO 1.0": cvat_coco,
    "CVAT YOLO 1.1": cvat_yolo_1_1,
    "CVAT Ultralytics YOLO": cvat_ultralytics,
    "CVAT Pascal VOC": cvat_voc,
    "Label Studio COCO": label_studio_coco,
    "Label Studio COCO with the server's paths": label_studio_coco_upload,
    "Label Studio COCO with URLs": label_studio_coco_url,
    "Label Studio YOLO": label_studio_yolo,
    "labelImg YOLO": labelimg_yolo,
    "data.yaml without splits": yaml_without_splits,
    "absolute lists": absolute_lists,
    "absolute lists of another machine": absolute_lists_of_another_machine,
    "FiftyOne": fiftyone,
    "a JSON file in each split": json_in_each_split,
    "annots": xml_in("annots", "images"),
    "xmls": xml_in("xmls", "images"),
    "labels": xml_in("labels", "images"),
    "annotations/xmls": xml_in("annotations/xmls", "images"),
    "other names": xml_in("my boxes", "my photos"),
    "annotations of each split": xml_in("annotations/train", "images/train"),
    "folders in each split": xml_in("train/annotations", "train/images"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_open_from_their_folder_and_from_two_folders_above(tmp_path, name):
    root = tmp_path / "download" / "parts-v1" / "parts"
    root.mkdir(parents=True)
    kind = LAYOUTS[name](root)
    assert find_source(root).name == kind
    # Nothing kept for validation: all six.
    assert_shows(open_dataset(root, "train", val="train"), MADE)
    above = open_dataset(tmp_path / "download", "train", val="train")
    assert_shows(above, MADE)
    assert above.classes == CLASSES
    assert f"the dataset was found in {root}" in above.notes
    report = check(tmp_path / "download")
    assert [str(fault) for fault in report.faults if fault.kind != "shared image"] == []
    if name == "Roboflow YOLO":  # exported without a test split
        assert "train: data.yaml names a test split, '../test/images', which does not exist" in report.notes


def test_images_matched_by_the_end_of_their_path_are_noted_and_never_used_twice(tmp_path):
    label_studio_coco(tmp_path)
    first = MADE[0].stem
    note = f"6 images were found by the end of their path, such as 'images\\\\1/{first}.jpg' as images/{first}.jpg"
    assert any(note in line for line in open_dataset(tmp_path).notes)
    content = json.loads((tmp_path / "result.json").read_text())
    content["images"][1]["file_name"] = f"images\\2/{first}.jpg"
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"both match the end of the path images/.*; name the images relative to"):
        open_dataset(tmp_path)


def test_matching_by_the_end_of_a_path_never_leaves_the_folder(tmp_path):
    label_studio_coco_upload(tmp_path / "parts")
    outside = tmp_path / "outside.jpg"
    image = tmp_path / "parts" / "images" / f"{MADE[0].stem}.jpg"
    shutil.move(image, outside)
    image.symlink_to(outside)
    [fault] = check(tmp_path / "parts").faults
    assert "leads out of the folder; put the image into the dataset folder" in str(fault)
    absolute_lists(tmp_path / "yolo")
    (tmp_path / "yolo" / "train.txt").write_text(f"{outside}\n")
    assert f"the file name '{outside}' leads out of the folder" in str(check(tmp_path / "yolo").faults[0])


def test_a_category_that_groups_the_others_is_a_class_if_it_has_boxes(tmp_path):
    roboflow_coco(tmp_path)
    dataset = open_dataset(tmp_path)
    assert dataset.classes == CLASSES
    assert "train: the category 'parts-8Xz2' groups the others and has no box: it is not a class" in dataset.notes
    path = tmp_path / "train" / "_annotations.coco.json"
    content = json.loads(path.read_text())
    content["annotations"][0]["category_id"] = 0
    path.write_text(json.dumps(content))
    assert open_dataset(tmp_path).classes == ["parts-8Xz2", *CLASSES]


def test_a_dataset_opens_by_its_yaml_or_json_file(tmp_path, monkeypatch):
    yolo = write_yolo_folder(tmp_path / "yolo")
    (yolo / "data.yaml").rename(yolo / "parts.yaml")
    (yolo / "data.yaml").write_text("train: images/nowhere\nnames: [a]\n")
    coco = write_coco_folder(tmp_path / "coco")
    monkeypatch.chdir(yolo)
    for path in (yolo / "parts.yaml", Path("parts.yaml")):
        train, val = open_datasets(DataSettings(path=str(path)), InputSettings())
        assert (len(train), len(val), train.notes) == (16, 4, [])
    assert results_subfolder({"path": str(yolo)}, str(yolo / "data.yaml"), None) == ""
    assert results_subfolder({"path": str(yolo)}, str(yolo / "parts.yaml"), None) == "eval-parts"
    whole = pictures(16, 0)
    assert_shows(open_dataset(coco / "annotations" / "instances_train.json", val="train"), whole)
    assert len(open_dataset(coco / "annotations" / "instances_train.json")) == 16 - round(16 * HELD_OUT)
    (tmp_path / "parts.zip").touch()
    with pytest.raises(DataError, match=r"parts\.zip: is an archive; unpack it and give the folder"):
        open_dataset(tmp_path / "parts.zip")
    with pytest.raises(DataError, match="is a file; give the folder of a dataset"):
        open_dataset(coco / "train" / "picture000.jpg")


def test_a_yaml_with_a_path_outside_the_folder_is_explained(tmp_path):
    root = write_yolo_folder(tmp_path / "parts")
    (tmp_path / "parts.yaml").write_text("path: ../../datasets/parts\ntrain: images/train\nnames: [a, b, c]\n")
    with pytest.raises(DataError, match=r"path is '\.\./\.\./datasets/parts', which leads out of the folder, and"):
        open_dataset(tmp_path / "parts.yaml")
    (tmp_path / "parts.yaml").write_text(f"path: {root}\ntrain: images/train\nnames: [a, b, c]\n")
    assert len(open_dataset(tmp_path / "parts.yaml", val="train")) == 16


def test_several_datasets_in_a_folder_are_listed(tmp_path):
    write_coco_folder(tmp_path / "one")
    write_voc_folder(tmp_path / "two")
    with pytest.raises(DataError, match=r"contains several datasets \(one, two\); choose one of them"):
        open_dataset(tmp_path)


def test_xml_files_of_one_dataset_do_not_hide_those_beside_it(tmp_path):
    write_coco_folder(tmp_path / "one")
    flat = tmp_path / "three"
    flat.mkdir()
    for picture in pictures(4):
        save(picture, flat)
        (flat / f"{picture.stem}.xml").write_text(voc_xml(picture))
    with pytest.raises(DataError, match=r"contains several datasets \(one, three\); choose one of them"):
        open_dataset(tmp_path)


def labels_without_names(root: Path) -> None:
    save_all(root / "images")
    write_labels(root / "labels")


def labels_elsewhere(root: Path) -> None:
    save_all(root / "photos")
    write_labels(root / "boxes")


def images_alone(root: Path) -> None:
    save_all(root / "photos")


def archive(root: Path) -> None:
    (root / "parts.zip").touch()


def labelme(root: Path) -> None:
    save_all(root)
    (root / "picture000.json").write_text('{"version": "5.0", "shapes": [], "imagePath": "picture000.jpg"}')


def label_studio_json(root: Path) -> None:
    save_all(root)
    (root / "project-1.json").write_text('[{"annotations": [{"result": [{"value": {"rectanglelabels": ["a"]}}]}]}]')


def not_quite_coco(root: Path) -> None:
    save_all(root)
    (root / "boxes.json").write_text('{"images": [], "annotations": []}')


def cvat_xml(root: Path) -> None:
    save_all(root / "images")
    (root / "annotations.xml").write_text("<annotations><image/></annotations>")


def table(root: Path) -> None:
    save_all(root)
    (root / "train_labels.csv").write_text("filename,width,height,class,xmin,ymin,xmax,ymax\n")


UNKNOWN = {
    labels_without_names: (
        "found 6 images in images/, 6 .txt in labels/; closest match: YOLO without class names: add data.yaml with "
        "the lines train: images and names: [name of class 0, name of class 1, name of class 2]"
    ),
    labels_elsewhere: "closest match: YOLO, which has the boxes of images/a.jpg in labels/a.txt: rename photos/ to "
    "images/ and boxes/ to labels/, and add data.yaml",
    images_alone: "found 6 images in photos/; there are images but no boxes: annotate them",
    archive: "found 1 .zip in ./; unpack parts.zip first",
    labelme: "picture000.json is a LabelMe file: convert the files to COCO",
    label_studio_json: "project-1.json is Label Studio's own JSON: export the project as COCO or YOLO with images",
    not_quite_coco: "closest match: COCO: boxes.json has no list categories; export it as COCO instances",
    cvat_xml: "annotations.xml: is CVAT's own XML; export the task as COCO 1.0, Pascal VOC or Ultralytics YOLO",
    table: "found 6 images in ./, 1 .csv in ./; tables of boxes are not supported: convert the table to COCO",
}


@pytest.mark.parametrize("write", UNKNOWN)
def test_unknown_folders_are_described_with_advice(tmp_path, write):
    write(tmp_path)
    with pytest.raises(DataError) as caught:
        open_dataset(tmp_path)
    assert UNKNOWN[write] in str(caught.value)


def test_a_part_of_a_dataset_is_answered_with_the_whole(tmp_path):
    root = write_yolo_folder(tmp_path / "yolo")
    for part in ("images", "images/train"):
        with pytest.raises(DataError, match=r"is part of the dataset in .*yolo; give that folder"):
            open_dataset(root / part)


def test_labels_without_names_in_split_folders_are_answered_with_all_splits(tmp_path):
    root = write_yolo_folder(tmp_path / "yolo")
    (root / "data.yaml").unlink()
    with pytest.raises(DataError, match=r"the lines train: images/train, val: images/val and names: \["):
        open_dataset(root)


def test_the_size_histogram_counts_an_image_of_two_splits_once(tmp_path):
    root = write_voc_folder(tmp_path / "voc")
    both = [(root / "ImageSets/Main" / f"{split}.txt").read_text() for split in ("train", "val")]
    (root / "ImageSets" / "Main" / "trainval.txt").write_text("".join(both))
    report = check(root)
    boxes = {split.name: split.boxes for split in report.splits}
    assert sum(report.sizes) == boxes["trainval"] == boxes["train"] + boxes["val"]
    print_report(report)
