"""Records, images and targets of a dataset."""

import numpy as np
import pytest
import torch
from PIL import Image

from rankwise.data import DataError, DetectionDataset, ImageRecord


def record(path, boxes=((1, 2, 11, 22),), width=30, height=24, crowd=(False,)) -> ImageRecord:
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    return ImageRecord(
        image_id=17,
        name=path.name,
        path=path,
        width=width,
        height=height,
        boxes=boxes,
        labels=np.ones(len(boxes), np.int64),
        iscrowd=np.array(crowd, bool),
        area=np.array([50.0] * len(boxes)),
    )


@pytest.fixture
def image_path(tmp_path):
    path = tmp_path / "cat.png"
    Image.new("RGB", (30, 24), (9, 8, 7)).save(path)
    return path


def test_an_item_is_an_image_and_its_target(image_path):
    dataset = DetectionDataset([record(image_path)], ["dog", "cat"], [3, 90])
    image, target = dataset[0]
    assert image.shape == (3, 24, 30)
    assert image[:, 0, 0].tolist() == [9, 8, 7]
    assert target["boxes"].tolist() == [[1, 2, 11, 22]]
    assert target["boxes"].dtype == torch.float32
    assert target["labels"].tolist() == [1]
    assert target["iscrowd"].tolist() == [False]
    assert (target["image_id"], target["name"]) == (17, "cat.png")
    assert target["size"] == target["original_size"] == (24, 30)


def test_changing_a_target_leaves_the_record_alone(image_path):
    dataset = DetectionDataset([record(image_path)], ["dog", "cat"], [3, 90])
    dataset[0][1]["boxes"].add_(5)
    assert dataset[0][1]["boxes"].tolist() == [[1, 2, 11, 22]]


def test_the_transform_is_applied_and_can_be_replaced(image_path):
    dataset = DetectionDataset([record(image_path)], ["dog", "cat"], [3, 90])
    flipped = dataset.with_transform(lambda image, target: (image.flip(-1), target | {"flipped": True}))
    assert flipped[0][1]["flipped"]
    assert "flipped" not in dataset[0][1]


def test_ground_truth_is_coco_json_with_the_original_category_ids(image_path):
    boxes = ((1, 2, 11, 22), (0, 0, 5, 5))
    truth = DetectionDataset([record(image_path, boxes, crowd=(False, True))], ["dog", "cat"], [3, 90]).ground_truth()
    assert truth["categories"] == [{"id": 3, "name": "dog"}, {"id": 90, "name": "cat"}]
    assert truth["images"] == [{"id": 17, "file_name": "cat.png", "width": 30, "height": 24}]
    first, second = truth["annotations"]
    assert first == {
        "id": 1, "image_id": 17, "category_id": 90, "bbox": [1.0, 2.0, 10.0, 20.0], "area": 50.0, "iscrowd": 0,
    }  # fmt: skip
    assert (second["id"], second["iscrowd"]) == (2, 1)


def test_an_image_without_boxes_has_an_empty_target(image_path):
    target = DetectionDataset([record(image_path, (), crowd=())], ["dog"], [1])[0][1]
    assert target["boxes"].shape == (0, 4)
    assert target["labels"].shape == target["iscrowd"].shape == (0,)


def test_a_file_of_another_size_than_annotated_is_an_error(image_path):
    with pytest.raises(DataError, match=r"cat\.png: the file has 30 × 24 pixels, the annotations say 31 × 24; correct"):
        DetectionDataset([record(image_path, width=31)], ["dog", "cat"], [3, 90])[0]
    with pytest.raises(DataError, match="EXIF orientation"):
        DetectionDataset([record(image_path, width=24, height=30)], ["dog", "cat"], [3, 90])[0]


def test_an_unreadable_image_becomes_an_ignore_region_under_skip_bad(image_path):
    image_path.write_text("no image")
    bad = record(image_path, width=200, height=100)
    with pytest.raises(DataError, match=r"cat\.png: cannot be read"):
        DetectionDataset([bad], ["dog", "cat"], [3, 90])[0]
    image, target = DetectionDataset([bad], ["dog", "cat"], [3, 90], skip_bad=True)[0]
    assert image.shape == (3, 32, 64)
    assert target["iscrowd"].tolist() == [True]
    assert target["boxes"][0, :2].max() < -1000
    assert target["boxes"][0, 2:].min() > 1000
    assert target["original_size"] == (100, 200)
    assert "cat.png: cannot be read" in target["fault"]


def test_an_image_above_the_pixel_limit_is_refused_by_name(huge_png):
    dataset = DetectionDataset([record(huge_png, width=50_000, height=50_000)], ["dog", "cat"], [3, 90])
    with pytest.raises(DataError, match=r"huge\.png: the image has 50,000 × 50,000"):
        dataset[0]
    dataset.skip_bad = True
    assert dataset[0][0].shape == (3, 64, 64)


def test_a_subset_keeps_the_chosen_images(image_path):
    dataset = DetectionDataset([record(image_path), record(image_path, ())], ["dog", "cat"], [3, 90])
    assert len(dataset.subset([1])) == 1
    assert len(dataset.subset([1]).records[0].boxes) == 0


def test_classes_and_category_ids_must_match():
    with pytest.raises(ValueError, match="2 classes and 1 category ids"):
        DetectionDataset([], ["a", "b"], [1])
