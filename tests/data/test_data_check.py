"""Every fault is reported with its location, its cause and advice; training stops with the same messages."""

import io
import json
import shutil
from pathlib import Path

import pytest
from data_folders import CLASSES, write_coco_folder, write_two_years, write_voc_folder, write_yolo_folder
from PIL import Image
from rich.console import Console

from rankwise.data import DataError, check, open_dataset, print_report

TRAIN = "annotations/instances_train.json"


def broken_coco(root: Path, change) -> Path:
    """A COCO folder after ``change(content, root)``."""
    write_coco_folder(root)
    path = root / TRAIN
    content = json.loads(path.read_text())
    change(content, root)
    path.write_text(json.dumps(content))
    return root


def remove_image(content, root):
    (root / "train" / "picture000.jpg").unlink()


def absolute_name(content, root):
    content["images"][0]["file_name"] = "/etc/passwd"


def climbing_name(content, root):
    content["images"][0]["file_name"] = "../../etc/passwd"


def windows_name(content, root):
    content["images"][0]["file_name"] = "..\\..\\windows\\win.ini"


def link_out(content, root):
    outside = root.parent / "outside.jpg"
    shutil.move(root / "train" / "picture000.jpg", outside)
    (root / "train" / "picture000.jpg").symlink_to(outside)


def odd_name(name):
    def change(content, root):
        content["images"][0]["file_name"] = name

    return change


def no_name(content, root):
    del content["images"][0]["file_name"]


def image_id_twice(content, root):
    content["images"][1]["id"] = 100


def image_without_id(content, root):
    content["images"][0]["id"] = None


def negative_size(content, root):
    content["images"][0]["width"] = -5


def annotation_id_twice(content, root):
    content["annotations"][1]["id"] = 1


def unknown_image(content, root):
    content["annotations"][0]["image_id"] = 4711


def unknown_category(content, root):
    content["annotations"][0]["category_id"] = 5


def category_id_twice(content, root):
    content["categories"][1]["id"] = 3


def category_name_twice(content, root):
    content["categories"][1]["name"] = "bolt"
    path = root / "annotations" / "instances_val.json"
    path.write_text(path.read_text().replace('"gear"', '"bolt"'))


def crowd(value):
    def change(content, root):
        content["annotations"][0]["iscrowd"] = value

    return change


def category_without_name(content, root):
    content["categories"].append({"id": 91})


def box(values):
    def change(content, root):
        content["annotations"][0]["bbox"] = values

    return change


def without(key):
    def change(content, root):
        del content["annotations"][0][key]

    return change


def only_outline(content, root):
    content["annotations"][0]["segmentation"] = [[1, 2, 9, 2, 9, 8]]
    without("bbox")(content, root)


def corners(content, root):
    for entry in content["annotations"]:
        left, top, width, height = entry["bbox"]
        entry["bbox"] = [left, top, left + width, top + height]


COCO_FAULTS = {
    "missing image": (
        remove_image,
        f"{TRAIN}: image 100 (picture000.jpg): there is no file 'picture000.jpg' in train/; put the image there",
    ),
    "absolute": (
        absolute_name,
        f"{TRAIN}: image 100 (/etc/passwd): the file name '/etc/passwd' leads out of the folder; put the image into",
    ),
    "climbing": (climbing_name, "the file name '../../etc/passwd' leads out of the folder; put the image into"),
    "windows": (windows_name, "win.ini' leads out of the folder; put the image into"),
    "link": (link_out, "image 100 (picture000.jpg): the file name 'picture000.jpg' leads out of the folder; put"),
    "odd link": (
        odd_name("\ud800/../picture000.jpg"),
        "the file name '\\ud800/../picture000.jpg' leads out of the folder; put the image into",
    ),
    "null": (odd_name("\0/../picture000.jpg"), "has no usable file name; name the image file"),
    "no name": (no_name, f"{TRAIN}: image 100 (None): has no usable file name; name the image file"),
    "image id twice": (
        image_id_twice,
        f"{TRAIN}: image 100 (picture001.jpg): has the same id as another image; give each image a unique integer",
    ),
    "image without id": (image_without_id, f"{TRAIN}: entry 0 of images: has an id that is not an integer; give each"),
    "negative size": (negative_size, "image 100 (picture000.jpg): has the size -5 × "),
    "annotation id twice": (
        annotation_id_twice,
        "annotation 1 has the same id as another annotation; give each annotation a unique integer",
    ),
    "unknown image": (
        unknown_image,
        f"{TRAIN}: annotation 1 belongs to image 4711, which the file does not list",
    ),
    "unknown category": (
        unknown_category,
        f"{TRAIN}: image 100: annotation 1 has category 5, which the file does not list; add the category or remove",
    ),
    "category id twice": (
        category_id_twice,
        f"{TRAIN}: the categories 'bolt' and 'gear' both have the id 3; give each",
    ),
    "category name twice": (
        category_name_twice,
        f"{TRAIN}: the classes 3 and 7 are both called 'bolt'; give each a unique name, or merge them",
    ),
    "crowd word": (crowd("no"), f"{TRAIN}: image 100: annotation 1 has 'no' as iscrowd; give 0, or 1 for a crowd"),
    "crowd number": (crowd(2), "annotation 1 has 2 as iscrowd; give 0, or 1 for a crowd"),
    "category without name": (
        category_without_name,
        "entry 3 of categories has no name or no integer id; give",
    ),
    "negative width": (
        box([10, 10, -4, 8]),
        f"{TRAIN}: image 100 (picture000.jpg): annotation 1 has no area: it is -4 wide and 8 high; correct or",
    ),
    "no height": (box([10, 10, 4, 0]), "annotation 1 has no area: it is 4 wide and 0 high; correct or remove it"),
    "nan": (box([10, float("nan"), 4, 4]), "annotation 1 has corners that are not numbers (10, nan, 14, nan); correct"),
    "infinite": (
        box([10, 2, float("inf"), 4]),
        "annotation 1 has corners that are not numbers (10, 2, inf, 6); correct",
    ),
    "sticks out": (
        box([-3, 2, 30, 20]),
        "image 100 (picture000.jpg): annotation 1 (-3, 2, 27, 22) sticks out of the image of",
    ),
    "outside": (box([500, 2, 30, 20]), "annotation 1 (500, 2, 530, 22) lies outside the image of"),
    "three numbers": (
        box([1, 2, 3]),
        "annotation 1 has [1, 2, 3] as bbox; give four numbers: left, top, width, height",
    ),
    "no numbers": (box([1, 2, "x", None]), "as bbox; give four numbers"),
    "no box": (box(None), "annotation 1 has None as bbox; give four numbers"),
    "outline": (
        only_outline,
        "annotation 1 has no bbox; give four numbers: left, top, width, height; outlines alone are",
    ),
    "no category": (without("category_id"), "annotation 1 has no category_id; add the category"),
    "corners": (
        corners,
        f"{TRAIN}: all 31 boxes look like left, top, right, bottom; COCO has left, top, width, height",
    ),
}


@pytest.mark.parametrize("name", COCO_FAULTS)
def test_coco_faults_are_reported_by_check_and_stop_training(tmp_path, name):
    change, message = COCO_FAULTS[name]
    root = broken_coco(tmp_path / "data", change)
    told = [str(fault) for fault in check(root).faults]
    assert any(message in fault for fault in told), told
    with pytest.raises(DataError) as caught:
        open_dataset(root)
    assert message in str(caught.value)
    left = open_dataset(root, skip_bad=True)
    assert len(left) >= 15
    for image, target in left:
        assert image.shape[1:] == target["size"]
        assert target["boxes"].isfinite().all()


def test_duplicate_class_names_are_merged_with_skip_bad(tmp_path):
    sound, root = write_coco_folder(tmp_path / "sound"), broken_coco(tmp_path / "data", category_name_twice)
    dataset = open_dataset(root, skip_bad=True)
    assert (dataset.classes, dataset.category_ids) == (["bolt", "nut"], [3, 90])
    before = next(split.classes for split in check(sound).splits if split.name == "train")
    after = next(split.classes for split in check(root).splits if split.name == "train")
    assert after == {"bolt": before["bolt"] + before["gear"], "nut": before["nut"]}


def test_a_duplicate_class_name_in_data_yaml_is_reported_once(yolo_folder):
    edited(yolo_folder / "data.yaml", '"gear"', '"bolt"')
    message = "data.yaml: the classes 0 and 1 are both called 'bolt'; give each a unique name, or merge them"
    assert [str(fault) for fault in check(yolo_folder).faults] == [message]
    with pytest.raises(DataError) as caught:
        open_dataset(yolo_folder)
    assert message in str(caught.value)
    assert open_dataset(yolo_folder, skip_bad=True).category_ids == [0, 2]


def write_truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:700])


def write_text(path: Path) -> None:
    path.write_text("not an image")


def write_nothing(path: Path) -> None:
    path.write_bytes(b"")


def write_smaller(path: Path) -> None:
    Image.open(path).resize((40, 30)).save(path)


def write_turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(path).save(path, exif=exif)


PIXEL_FAULTS = {
    "truncated": (write_truncated, "train/picture000.jpg: cannot be read as an image (", "unreadable image"),
    "no image": (write_text, "(unknown image format); replace or remove it", "unreadable image"),
    "empty": (write_nothing, "(the file is empty); replace or remove it", "unreadable image"),
    "wrong size": (
        write_smaller,
        "train/picture000.jpg: the file has 40 × 30 pixels, the annotations say",
        "wrong size",
    ),
    "turned": (
        write_turned,
        "its EXIF orientation rotates it by 90 degrees: annotate the rotated image",
        "wrong size",
    ),
}


@pytest.mark.parametrize("name", PIXEL_FAULTS)
def test_pixel_faults_are_reported_by_check_and_on_reading(tmp_path, name):
    damage, message, kind = PIXEL_FAULTS[name]
    root = write_coco_folder(tmp_path / "data")
    damage(root / "train" / "picture000.jpg")
    [fault] = check(root).faults
    assert message in str(fault)
    assert fault.kind == kind
    dataset = open_dataset(root)
    with pytest.raises(DataError) as caught:
        dataset[0]
    assert message in str(caught.value).replace(f"{root}/", "")
    assert message in open_dataset(root, skip_bad=True)[0][1]["fault"].replace(f"{root}/", "")


def test_a_huge_image_is_a_fault(tmp_path, huge_png):
    def change(content, root):
        shutil.copy(huge_png, root / "train" / "huge.png")
        content["images"][0] |= {"file_name": "huge.png", "width": 50_000, "height": 50_000}

    [fault] = check(broken_coco(tmp_path / "data", change)).faults
    assert fault.kind == "image too large"
    assert "train/huge.png: the image has 50,000 × 50,000 = 2,500,000,000 pixels and the limit" in str(fault)


BROKEN_FILES = {
    '{"images": [\n  {"id": 1,}\n]}': "not valid JSON: Illegal trailing comma before end of object in line 2, column",
    "": "not valid JSON: Expecting value in line 1, column 1; export it again",
    "[1, 2]": "contains a list instead of an object; export it as COCO instances",
    '{"images": [], "annotations": []}': "has no list 'categories'; export it as COCO instances",
    '{"images": [], "annotations": [], "categories": []}': "has no categories; list each class under 'categories'",
    "[" * 100_000: "not valid JSON: it is nested too deeply",
    b"\xff\xfe\x00\x80": "not text in UTF-8",
}


@pytest.mark.parametrize("text", BROKEN_FILES, ids=range(len(BROKEN_FILES)))
@pytest.mark.parametrize("skip_bad", [False, True])
def test_an_unusable_annotation_file_is_an_error_and_a_fault(tmp_path, text, skip_bad):
    root = write_coco_folder(tmp_path / "data")
    (root / TRAIN).write_bytes(text if isinstance(text, bytes) else text.encode())
    message = BROKEN_FILES[text]
    if "trailing comma" in message:  # the words differ between versions of Python, the place does not
        message = " in line 2, column"
    with pytest.raises(DataError) as caught:
        open_dataset(root, skip_bad=skip_bad)
    assert message in str(caught.value)
    report = check(root)
    [fault] = report.faults
    assert str(fault).startswith(f"{TRAIN}: ")
    assert message in str(fault)
    assert [split.name for split in report.splits] == ["val"]


def test_classes_that_differ_between_splits_are_a_fault(tmp_path):
    def change(content, root):
        content["categories"][1]["name"] = "wheel"

    [fault] = check(broken_coco(tmp_path / "data", change)).faults
    assert "val split: has the classes bolt, gear, nut, but training has bolt, wheel, nut" in str(fault)


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


LAUGHS = '<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;&b;">]><annotation><filename>&c;</filename></annotation>'

VOC_FAULTS = {
    "broken": ("<annotation>\n<object>", "Annotations/picture004.xml: is not valid XML: line 2, column"),
    "laughs": (LAUGHS, "picture004.xml: declares a document type or entities, which are refused; remove them"),
    "other": ("<html/>", "picture004.xml: has <html> where VOC has <annotation>; export it as Pascal VOC"),
    "latin": (b"<annotation>\xe9</annotation>", "picture004.xml: not text in UTF-8: "),
    "gone": (None, "Annotations/picture004.xml: is missing; add it, or remove the image from the split"),
    "no class": (
        "<annotation><object><bndbox><xmin>1</xmin></bndbox></object></annotation>",
        "picture004.xml: object 1 has no name; give its class under <name>",
    ),
    "no box": (
        "<annotation><object><name>nut</name><bndbox><xmin>1</xmin></bndbox></object></annotation>",
        "picture004.xml: object 1 has no box with four numbers; give xmin, ymin, xmax and ymax under <bndbox>",
    ),
    "nan": (
        "<annotation><object><name>nut</name><bndbox><xmin>nan</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax>"
        "</bndbox></object></annotation>",
        "picture004.xml: object 1 has corners that are not numbers (nan, 0, 9, 9); correct or remove it",
    ),
    "outside": (
        "<annotation><object><name>nut</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>999</xmax><ymax>9</ymax>"
        "</bndbox></object></annotation>",
        "picture004.xml: object 1 (0, 0, 999, 9) sticks out of the image of",
    ),
    "name out": (
        "<annotation><filename>../../etc/passwd</filename></annotation>",
        "picture004.xml: the file name '../../etc/passwd' leads out of the folder; put the image into",
    ),
}


@pytest.mark.parametrize("name", VOC_FAULTS)
def test_voc_faults_are_reported(tmp_path, name):
    content, message = VOC_FAULTS[name]
    root = write_voc_folder(tmp_path / "voc")
    path = root / "Annotations" / "picture004.xml"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    told = [str(fault) for fault in check(root).faults]
    assert len(told) == 1
    assert message in told[0]
    with pytest.raises(DataError) as caught:
        open_dataset(root)
    assert message in str(caught.value)
    assert len(open_dataset(root, skip_bad=True)) >= 15


def test_faults_in_voc_lists_and_images_are_reported(voc_folder):
    (voc_folder / "JPEGImages" / "picture005.jpg").unlink()
    with (voc_folder / "ImageSets/Main/train.txt").open("a") as file:
        file.write("picture006\n../../../secret\n")
    told = [str(fault) for fault in check(voc_folder).faults]
    assert len(told) == 3
    assert "Annotations/picture005.xml: there is no file 'picture005.jpg' in JPEGImages/; put the image" in told[0]
    assert "Annotations/picture006.xml: is listed twice in the train split; list it once" in told[1]
    assert "secret.xml: leads out of the folder; copy the file into it" in told[2]


def test_voc_images_must_not_be_links_out_of_the_folder(voc_folder, tmp_path):
    image = voc_folder / "JPEGImages" / "picture004.jpg"
    shutil.move(image, tmp_path / "outside.jpg")
    image.symlink_to(tmp_path / "outside.jpg")
    edited(voc_folder / "Annotations" / "picture004.xml", "picture004.jpg", "other.jpg")
    [fault] = check(voc_folder).faults
    assert "Annotations/picture004.xml: there is no file 'other.jpg' in JPEGImages/" in str(fault)


YOLO_FAULTS = {
    "words": (
        "0 0.5 0.5 x 0.1\n",
        "labels/train/picture000.txt: line 1 reads '0 0.5 0.5 x 0.1'; write class, center x",
    ),
    "too few": ("\n0 0.5 0.5 0.1\n", "picture000.txt: line 2 reads '0 0.5 0.5 0.1'; write class"),
    "class": (
        "7 0.5 0.5 0.1 0.1\n",
        "picture000.txt: line 1 has class 7, which data.yaml does not name; add the class",
    ),
    "half class": ("0.5 0.5 0.5 0.1 0.1\n", "line 1 has class 0.5, which data.yaml does not name"),
    "nan": ("0 nan 0.5 0.1 0.1\n", "line 1 has corners that are not numbers"),
    "empty": ("0 0.5 0.5 0 0.1\n", "line 1 has no area: it is 0 wide"),
    "pixels": ("0 50 50 10 10\n", "line 1 reads '0 50 50 10 10', which looks like pixels; divide by width and height"),
    "outside": ("0 1.9 0.5 0.1 0.1\n", "lies outside the image of"),
    "infinite": ("0 0.5 0.5 inf 0.1\n", "line 1 has corners that are not numbers"),
    "binary": (b"\xff\xfe\x00", "labels/train/picture000.txt: not text in UTF-8: "),
}


@pytest.mark.parametrize("name", YOLO_FAULTS)
def test_yolo_faults_are_reported(tmp_path, name):
    content, message = YOLO_FAULTS[name]
    root = write_yolo_folder(tmp_path / "yolo")
    (root / "labels/train/picture000.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    [fault] = check(root).faults
    assert message in str(fault)
    with pytest.raises(DataError) as caught:
        open_dataset(root)
    assert message in str(caught.value)
    assert len(open_dataset(root, skip_bad=True)) == 16


def test_missing_unreadable_and_linked_yolo_images_are_faults(yolo_folder, tmp_path):
    images = yolo_folder / "images" / "train"
    (images / "picture000.jpg").unlink()
    (images / "picture001.jpg").write_text("no image")
    shutil.move(images / "picture002.jpg", tmp_path / "outside.jpg")
    (images / "picture002.jpg").symlink_to(tmp_path / "outside.jpg")
    told = sorted(str(fault) for fault in check(yolo_folder).faults)
    assert len(told) == 3
    assert "images/train/picture001.jpg: cannot be read as an image (unknown image format)" in told[0]
    assert "images/train/picture002.jpg: is a link that leads out of the folder; copy the image into it" in told[1]
    assert "labels/train/picture000.txt: there is no image with this name; add it to the image folder" in told[2]


def test_yolo_lists_must_not_lead_out_of_the_folder(yolo_folder):
    (yolo_folder / "list.txt").write_text("images/train/picture000.jpg\n../../etc/passwd\nimages/train/none.jpg\n")
    edited(yolo_folder / "data.yaml", "images/train", "list.txt")
    told = [str(fault) for fault in check(yolo_folder).faults]
    assert "list.txt: the file name '../../etc/passwd' leads out of the folder; put the image" in told[0]
    assert "list.txt: there is no file 'images/train/none.jpg' in ./" in told[1]


YAML_FAULTS = {
    "broken": (
        "train: images/train\nnames: [a, b\n",
        "data.yaml: not valid YAML: ",
        " in line 3, column 1; correct it",
    ),
    "code": (
        "train: !!python/object/apply:os.system ['true']\nnames: [a]\n",
        "data.yaml: not valid YAML: ",
        "line 1",
    ),
    "text": ("hello\n", "data.yaml: contains no settings; it should have train, val and names", ""),
    "no names": ("train: images/train\n", "data.yaml: has no 'names'; add the class names", ""),
    "name keys": ("train: images/train\nnames: {a: b}\n", "the keys of 'names' are not integers; number the", ""),
    "count": (
        "train: images/train\nnc: 3\nnames: [a]\n",
        "data.yaml: nc is 3, but there are 1 names; correct or remove nc",
        "",
    ),
    "nowhere": ("train: images/nowhere\nnames: [a]\n", "train is 'images/nowhere', which does not exist; give the", ""),
    "absolute": ("train: /etc\nnames: [a]\n", "data.yaml: train is '/etc', which leads out of the folder; put the", ""),
    "mistyped": ("train: ../trian/images\nnames: [a]\n", "correct the name: trian/images does not exist there", ""),
    "number": ("train: 5\nnames: [a]\n", "data.yaml: train is '5', which does not exist; give the folder", ""),
}


@pytest.mark.parametrize("name", YAML_FAULTS)
def test_data_yaml_faults_are_reported(yolo_folder, name):
    text, *messages = YAML_FAULTS[name]
    (yolo_folder / "data.yaml").write_text(text)
    [fault] = check(yolo_folder).faults
    with pytest.raises(DataError) as caught:
        open_dataset(yolo_folder)
    for message in messages:
        assert message in str(fault)
        assert message in str(caught.value)


def test_a_valid_dataset_has_no_faults_and_correct_numbers(coco_folder):
    report = check(coco_folder)
    assert report.faults == []
    assert report.notes == []
    assert report.format == "COCO"
    train, val = report.splits
    truth = open_dataset(coco_folder).ground_truth()
    assert (train.name, train.images, train.empty) == ("train", 16, 1)
    assert train.boxes == len(truth["annotations"]) == sum(train.classes.values()) == sum(train.sizes)
    assert list(train.classes) == CLASSES
    assert train.sizes[:2] == (0, 0)
    assert train.widths == (64, 101)
    assert val.images == 4


def printed(report) -> str:
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=100))
    return stream.getvalue()


def test_a_printed_report_shows_the_contents(coco_folder):
    content = json.loads((coco_folder / TRAIN).read_text())
    content["annotations"][0]["iscrowd"] = 1
    (coco_folder / TRAIN).write_text(json.dumps(content))
    text = printed(check(coco_folder))
    for part in ("COCO dataset in", "train", "val", "bolt", "gear", "nut", "16–32", "█", "64–101", "No faults."):
        assert part in text


def test_a_printed_report_lists_every_fault_and_counts_the_kinds(tmp_path):
    def change(content, root):
        for annotation in content["annotations"][:12]:
            annotation["category_id"] = 1
        content["images"][0]["file_name"] = "[bold]gone[/bold].jpg"

    text = printed(check(broken_coco(tmp_path / "data", change)))
    assert text.count("has category 1, which the file does not list") == 12
    assert "'[bold]gone[/bold].jpg'" in text
    assert "13 faults: unknown category 12, missing image 1" in text


def test_copies_of_training_images_in_the_validation_split_are_a_fault(coco_folder):
    train, val = (sorted((coco_folder / split).iterdir()) for split in ("train", "val"))
    shutil.copy(train[3], val[1])
    (fault,) = [fault for fault in check(coco_folder).faults if fault.kind == "shared image"]
    copies = f"val/{val[1].name} of train/{train[3].name}"
    assert str(fault) == (
        f"val split: 1 of its {len(val)} images are copies of training images, such as {copies}; keep each image in "
        f"only one split"
    )


def test_boxes_that_repeat_another_or_are_tiny_are_noted(tmp_path):
    def change(content, root):
        boxes = content["annotations"]
        boxes += [{**boxes[0], "id": 9001}, {**boxes[0], "id": 9002, "bbox": [3, 3, 1.5, 9]}]

    notes = check(broken_coco(tmp_path, change)).notes
    assert "train: 1 box repeats another one of the same class exactly" in notes
    assert "train: 1 box less than 2 pixels wide or high" in notes


def test_a_folder_without_validation_is_noted(tmp_path):
    report = check(write_coco_folder(tmp_path / "data", val=0))
    assert report.notes == ["There is no validation split: training holds out a tenth of the images."]
    assert "holds out a tenth" in printed(report)


def test_several_training_and_validation_splits_are_noted(tmp_path):
    report = check(write_two_years(tmp_path / "data"))
    assert report.faults == []
    assert report.notes == [
        "There are several train splits: train2014, train2017; choose one with --data.train.",
        "There are several val splits: val2014, val2017; choose one with --data.val.",
    ]


def test_a_missing_folder_is_a_fault_that_does_not_mention_the_built_in_dataset(tmp_path):
    [fault] = check(tmp_path / "nowhere").faults
    assert str(fault) == f"{tmp_path}/nowhere: no such folder; give the folder of a dataset"


def test_a_folder_of_unknown_format_is_a_fault(tmp_path):
    [fault] = check(tmp_path).faults
    assert "unknown format; found no files; there are no images; expected annotations/" in str(fault)
    assert "1 fault: unreadable file 1" in printed(check(tmp_path))


def test_progress_is_reported(coco_folder):
    steps = []
    check(coco_folder, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(k, 16) for k in range(1, 17)] + [(k, 4) for k in range(1, 5)]
