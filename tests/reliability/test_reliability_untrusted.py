"""Untrusted files: no other decoders, no bombs, no hangs, no access outside the folder, no escape sequences."""

import io
import json
import os
import struct
import threading
import zlib

import numpy as np
import pytest
from data_folders import CLASSES, write_coco_folder, write_voc_folder, write_yolo_folder
from PIL import Image
from process_memory import forget_peak, memory, needs_proc
from rich.console import Console

from rankwise.data import check, print_report
from rankwise.data.dataset import DetectionDataset
from rankwise.data.formats import open_dataset
from rankwise.data.loader import build_loader
from rankwise.errors import DataError
from rankwise.files.names import message_of
from rankwise.files.parsing import ParseError, parse_yaml
from rankwise.images.reading import read_header, read_image, read_pixels

READERS = (read_header, read_image, read_pixels)


@pytest.mark.parametrize("read", READERS)
def test_postscript_in_a_jpg_is_refused(tmp_path, monkeypatch, read):
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was called"))
    (tmp_path / "a.jpg").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n%%EOF\n"
    )
    with pytest.raises(DataError, match=r"a\.jpg: cannot be read as an image \(unknown image format\)"):
        read(tmp_path / "a.jpg")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "MPO"])
def test_all_documented_image_formats_are_read(tmp_path, kind):
    Image.fromarray(np.full((20, 30, 3), 200, np.uint8)).save(tmp_path / "a", kind)
    header = read_header(tmp_path / "a")
    assert (header.width, header.height) == (30, 20)
    assert abs(read_image(tmp_path / "a").float() - 200).max() <= 2
    assert np.abs(read_pixels(tmp_path / "a").astype(float) - 200).max() <= 2


@pytest.mark.parametrize("read", READERS)
def test_a_pipe_in_place_of_an_image_does_not_hang(tmp_path, read):
    os.mkfifo(tmp_path / "a.jpg")
    with pytest.raises(DataError, match="a pipe or a device, not a regular file"):
        read(tmp_path / "a.jpg")


@pytest.mark.parametrize("file", ["data.yaml", "labels/train/picture000.txt", "images/train/picture000.jpg", "list"])
def test_a_pipe_anywhere_in_a_dataset_does_not_hang(tmp_path, file):
    root = write_yolo_folder(tmp_path / "yolo", train=2, val=1)
    if file == "list":
        (root / "data.yaml").write_text(f"train: list\nval: images/val\nnames: {json.dumps(CLASSES)}\n")
    else:
        (root / file).unlink()
    os.mkfifo(root / file)
    assert check(root).faults


@needs_proc
def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path):
    path = tmp_path / "bomb.tif"
    path.write_bytes(_tiff_bomb(9000, 9000))
    assert path.stat().st_size < 5000
    before = forget_peak()
    for read in READERS:
        with pytest.raises(
            DataError, match=r"9,000 × 9,000 pixels in a file of .* bytes, which is a decompression bomb"
        ):
            read(path)
    assert memory("VmHWM") - before < 50_000_000  # of 162 MB


def _tiff_bomb(width, height):
    """Every strip of 16-bit grey is the same few bytes."""
    rows = 100
    strip = zlib.compress(bytes(width * rows * 2), 9)
    strips = -(-height // rows)
    tags = [(256, 3, 1, width), (257, 3, 1, height), (258, 3, 1, 16), (259, 3, 1, 8), (262, 3, 1, 1), (277, 3, 1, 1)]
    offset = 8 + 2 + 12 * 9 + 4
    tags += [(273, 4, strips, offset), (278, 4, 1, rows), (279, 4, strips, offset + 4 * strips)]
    data = offset + 8 * strips
    out = io.BytesIO()
    out.write(struct.pack("<2sHI", b"II", 42, 8) + struct.pack("<H", 9))
    for tag in sorted(tags):
        out.write(struct.pack("<HHII", *tag))
    out.write(struct.pack("<I", 0))
    out.write(struct.pack(f"<{strips}I", *[data] * strips) + struct.pack(f"<{strips}I", *[len(strip)] * strips) + strip)
    return out.getvalue()[:data] + strip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]", "alias"),
        ("[" * 3000, "nested too deeply"),
        ("- " * 3000, "nested too deeply"),
        ("a: \0", "unacceptable character"),
    ],
)
def test_yaml_with_exponential_aliases_is_refused(text, why):
    with pytest.raises(ParseError, match=why):
        parse_yaml(text)


@pytest.mark.parametrize(
    "content", [b"train: \0", b"a: &a 1\nnames: *a", b"\xff\xfe", b"x: " + b"[" * 5000, b"a" * 2**21]
)
def test_a_data_yaml_that_cannot_be_read_is_a_fault(tmp_path, content):
    root = write_yolo_folder(tmp_path / "yolo", train=1, val=1)
    (root / "data.yaml").write_bytes(content)
    with pytest.raises(DataError, match=r"data\.yaml: "):
        open_dataset(root)


def test_yolo_class_names_are_read_as_text(tmp_path):
    root = write_yolo_folder(tmp_path / "yolo", train=2, val=1)
    names = ["yes", "no", "1.0"]
    (root / "data.yaml").write_text("train: images/train\nval: images/val\ntest: ~\nnc: 3\nnames: [yes, no, 1.0]\n")
    assert open_dataset(root).classes == names
    (root / "data.yaml").write_text("train: images/train\nval: images/val\nnames:\n  0: yes\n  1: no\n  2: 1.0\n")
    assert open_dataset(root).classes == names


def test_too_many_workers_are_refused():
    class Nothing(DetectionDataset):
        def __len__(self):
            return 4

    threads = threading.active_count()
    with pytest.raises(DataError, match="workers is 100000"):
        build_loader(Nothing([], ["a"], [1]), 2, shuffle=False, workers=100_000)
    assert threading.active_count() == threads


SECRET = "root:x:0:0:a secret\n"


@pytest.mark.parametrize("what", ["label file", "label folder", "list", "data.yaml", "split of VOC"])
def test_links_out_of_a_dataset_are_neither_followed_nor_quoted(tmp_path, what):
    (tmp_path / "outside").mkdir()
    secret = tmp_path / "outside" / "picture000.txt"
    secret.write_text(SECRET)
    root = write_yolo_folder(tmp_path / "data", train=2, val=1)
    if what == "label file":
        (root / "labels/train/picture000.txt").unlink()
        (root / "labels/train/picture000.txt").symlink_to(secret)
    elif what == "label folder":
        for path in (root / "labels/train").iterdir():
            path.unlink()
        (root / "labels/train").rmdir()
        (root / "labels/train").symlink_to(tmp_path / "outside")
    elif what == "list":
        (root / "list.txt").symlink_to(secret)
        (root / "data.yaml").write_text(f"train: list.txt\nval: images/val\nnames: {json.dumps(CLASSES)}\n")
    elif what == "data.yaml":
        (root / "data.yaml").unlink()
        (root / "data.yaml").symlink_to(secret)
    else:
        root = write_voc_folder(tmp_path / "voc", train=2, val=1)
        (root / "ImageSets/Main/test.txt").symlink_to(secret)
    said = "\n".join(map(str, check(root).faults))
    assert "leads out" in said
    assert "secret" not in said
    with pytest.raises(DataError, match="leads out"):
        open_dataset(root)


def test_file_names_are_escaped_before_printing(tmp_path):
    root = write_coco_folder(tmp_path / "coco\x1b[2J", train=2, val=1)
    path = root / "annotations/instances_train.json"
    content = json.loads(path.read_text())
    content["categories"][0]["name"] = "bolt\x1b]0;owned\x07\nNo faults."
    content["images"][0]["file_name"] = "gone\x1b[31m\n\ud800.jpg"
    path.write_text(json.dumps(content))
    out = io.StringIO()
    print_report(check(root), Console(file=out, width=200))
    said = out.getvalue()
    assert "\x1b" not in said
    assert "\x07" not in said
    assert not any("\ud800" <= letter <= "\udfff" for letter in said)
    assert "No faults." not in said.splitlines()
    assert "gone\\x1b[31m\\n\\ud800.jpg" in said
    with pytest.raises(DataError) as caught:
        open_dataset(root)
    assert "\x1b" not in message_of(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["annotations"][0].update(bbox=[1e309, 0, 5, 5]),
        lambda content: content["annotations"][0].update(bbox=[10**400, 0, 5, 5]),
        lambda content: content["annotations"][0].update(area=10**400),
        lambda content: content["annotations"][0].update(id=2**63),
        lambda content: content["images"][0].update(id=2**63),
        lambda content: content["images"][0].update(id=1e300),
        lambda content: content["images"][0].update(width=2**70),
        lambda content: content["categories"][0].update(id=2**64),
    ],
)
def test_out_of_range_numbers_are_faults(tmp_path, change):
    root = write_coco_folder(tmp_path / "coco", train=2, val=1)
    path = root / "annotations/instances_train.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    report = check(root)
    print_report(report, Console(file=io.StringIO()))
    if content["annotations"][0]["area"] != 10**400:  # an area is only a hint
        assert report.faults
        with pytest.raises(DataError):
            open_dataset(root)
    open_dataset(root, skip_bad=True)


@pytest.mark.parametrize("line", ["0_1 0.5 0.5 0.1 0.1", "\u0661 0.5 0.5 0.1 0.1", "0 0.5 0_5 0.1 0.1"])
def test_numbers_of_yolo_are_plain_digits(tmp_path, line):
    folder = write_yolo_folder(tmp_path / "yolo", train=2, val=1)
    next((folder / "labels/train").iterdir()).write_text(line + "\n")
    assert any("line 1 reads" in str(fault) for fault in check(folder).faults)


def test_true_and_false_are_not_a_box(tmp_path):
    folder = write_coco_folder(tmp_path / "coco", train=2, val=1)
    path = folder / "annotations/instances_train.json"
    content = json.loads(path.read_text())
    content["annotations"][0]["bbox"] = [True, False, True, True]
    path.write_text(json.dumps(content))
    assert any("as bbox" in str(fault) for fault in check(folder).faults)
