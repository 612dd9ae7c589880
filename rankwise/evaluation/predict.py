"""Detections in a user's own images: annotated pictures and one JSON file."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from rankwise.errors import DataError
from rankwise.evaluation.drawing import AGNOSTIC_IOU, agnostic_nms, draw_detections
from rankwise.files.names import shown
from rankwise.files.writing import make_folder, write_text, write_whole
from rankwise.images.reading import IMAGE_ENDINGS, read_image
from rankwise.models.confidence import HOW_TO_CALIBRATE, Confidence

#: Boxes of different classes at nearly the same place: the best one alone in pictures, in all results, or all of them.
AgnosticNms = Literal["pictures", "always", "never"]


def find_images(words: Sequence[str]) -> list[Path]:
    """The image files that files, folders and globs stand for, each once, in order.

    Args:
        words: Paths of images, of folders (searched to the bottom) and patterns such as ``photos/*.jpg``.
    """
    found: dict[Path, None] = {}
    for word in words:
        path = Path(word)
        if path.is_dir():
            inside = sorted(item for item in path.rglob("*") if item.suffix.lower() in IMAGE_ENDINGS and item.is_file())
            if not inside:
                raise DataError(f"{word}: no images in this folder (looked for {', '.join(sorted(IMAGE_ENDINGS))})")
            found.update(dict.fromkeys(inside))
        elif path.is_file():
            found[path] = None
        else:
            names = glob.glob(word, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute patterns
            matched = [Path(name) for name in sorted(names) if Path(name).is_file()]
            if not matched:
                raise DataError(f"{word}: there is no such file or folder, and no file matches it as a pattern")
            found.update(dict.fromkeys(matched))
    return list(found)


def predict_images(
    run: Path,
    words: Sequence[str],
    out: Path,
    threshold: float | None = None,
    batch_size: int = 1,
    device: str = "auto",
    precision: float | None = None,
    calibrated: bool = True,
    agnostic_nms: AgnosticNms = "pictures",
) -> list[dict[str, Any]]:
    """Detects objects in images, draws them, and writes ``predictions.json``; returns what it wrote.

    Args:
        run: Folder of a run, or its file of weights.
        words: Image files, folders and globs.
        out: Folder for the pictures and the JSON file.
        threshold: Least score; the run's own, the best F1 of each class, if not given.
        batch_size: Images per batch; those of a batch are padded to one size.
        device: Where to compute.
        precision: Instead of a threshold, the part of the boxes that shall be right.
        calibrated: False gives raw scores.
        agnostic_nms: Where a box hides those of other classes at nearly the same place.
    """
    from rankwise.evaluation.inference import pick_device
    from rankwise.models import Detector

    files = find_images(words)
    detector = Detector.load(run, device=pick_device(device))
    say_units(detector.confidence, precision, calibrated)
    return predict_files(
        files,
        out,
        read_image,
        lambda images: detector.predict(images, threshold, len(images), precision=precision, calibrated=calibrated),
        detector.classes,
        batch_size,
        agnostic_nms,
    )


def say_units(confidence: Confidence, precision: float | None, calibrated: bool) -> None:
    """Says what is unusual about the scores: that they are raw, or which threshold a precision means.

    Args:
        confidence: What came with the weights.
        precision: What was asked for.
        calibrated: Whether calibrated scores were asked for.
    """
    said = []
    if calibrated and confidence.calibration is None:
        said.append(f"scores are raw and not probabilities: there is no calibration; {HOW_TO_CALIBRATE}")
    if precision is not None:
        score, low, high = confidence.at_precision(precision)
        said.append(
            f"precision {precision:g} is reached from score {score:.3f} on, {low:.2f} to {high:.2f} being possible by "
            "the validation images (95 % interval)"
        )
    for line in said:
        Console(highlight=False).print(line, soft_wrap=True, markup=False)


def predict_files(
    files: Sequence[Path],
    out: Path,
    read: Callable[[Path], Any],
    detect: Callable[[list[Any]], list[Any]],
    classes: Sequence[str],
    batch_size: int = 1,
    agnostic: AgnosticNms = "pictures",
) -> list[dict[str, Any]]:
    """Detects objects in files by whatever detector, draws them, and writes ``predictions.json``; needs no torch.

    No picture is written over one of the images.

    Args:
        files: The images.
        out: Folder for the pictures and the JSON file.
        read: Turns a file into an image that ``detect`` takes.
        detect: The detections of each of some images: boxes, scores and labels, as tensors or as arrays.
        classes: Names of the labels.
        batch_size: How many images are read and handed to ``detect`` at a time.
        agnostic: Where a box hides those of other classes at nearly the same place.

    Raises:
        DataError: If ``batch_size`` is below 1; and images that cannot be read, once all others are done.
    """
    if batch_size < 1:
        raise DataError(f"batch_size is {batch_size}: it must be at least 1")
    console = Console(highlight=False)
    make_folder(out)
    entries: list[dict[str, Any]] = []
    faults: list[str] = []
    pictures = _picture_names(files, out)
    for start in range(0, len(files), batch_size):
        images, readable = [], []
        for file in files[start : start + batch_size]:
            try:
                images.append(read(file))
                readable.append(file)
            except DataError as error:
                faults.append(str(error))
        if not images:
            continue
        for file, image, detections in zip(readable, images, detect(images), strict=True):
            picture = out / pictures[file]
            if agnostic == "always":
                rows = agnostic_nms(np.asarray(detections["boxes"].tolist()).reshape(-1, 4), AGNOSTIC_IOU).tolist()
                detections = {name: values[rows] for name, values in detections.items()}
            iou = None if agnostic == "never" else AGNOSTIC_IOU
            drawn = draw_detections(image, detections, classes, agnostic_iou=iou)
            write_whole(picture, lambda part, drawn=drawn: drawn.save(part, "PNG"))  # type: ignore[misc]
            columns = (detections[name].tolist() for name in ("boxes", "scores", "labels"))
            objects = [
                {"box": [round(side, 2) for side in box], "score": float(f"{score:.7g}"), "class": classes[label]}
                for box, score, label in zip(*columns, strict=True)
            ]
            entries.append({"image": str(file), "picture": picture.name, "objects": objects})
            where = "" if picture.stem == file.stem else f", drawn in {picture}"
            console.print(shown(f"{file}: {len(objects)} objects{where}"), soft_wrap=True, markup=False)
    write_text(out / "predictions.json", json.dumps(entries, indent=1) + "\n")
    console.print(shown(f"{len(entries)} pictures and predictions.json in {out}/"), soft_wrap=True, markup=False)
    if faults:
        raise DataError(f"{len(faults)} of {len(files)} images could not be read:\n" + "\n".join(faults))
    return entries


def _picture_names(files: Sequence[Path], out: Path) -> dict[Path, str]:
    """A file name for each picture: the image's own, numbered where two share one or an image is there already."""
    names: dict[Path, str] = {}
    images = {_identity(file) for file in files} - {None}
    taken: set[str] = set()
    for file in files:
        name, number = f"{file.stem}.png", 2
        while name in taken or _identity(out / name) in images:
            name, number = f"{file.stem}-{number}.png", number + 1
        taken.add(name)
        names[file] = name
    return names


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file a path leads to, by links and capitals of whatever kind; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
