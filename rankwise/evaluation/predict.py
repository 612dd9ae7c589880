"""Detections in a user's own images and videos: annotated pictures, and files of what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rankwise.errors import DataError
from rankwise.evaluation.predictions import AgnosticNms, Format, Item, Writer
from rankwise.files.names import shown
from rankwise.images.reading import read_image
from rankwise.images.sources import Camera, count_frames, find_images, find_inputs, frames, is_video
from rankwise.models.confidence import HOW_TO_CALIBRATE, Confidence

__all__ = ["AgnosticNms", "Format", "find_images", "predict_files", "predict_images", "say_highest", "say_units"]

#: With more images than this a terminal shows the bar alone.
_MOST_LINES = 50
#: Images that are looked at again for their highest score where nothing was found.
_LOOKED_AT = 20


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
    pictures: bool = True,
    format: Format = "json",
    crop: bool = False,
) -> list[dict[str, Any]]:
    """Detects objects in images and videos, draws them, and writes ``predictions.json``; returns what it wrote.

    Args:
        run: Folder of a run, or its file of weights.
        words: Image and video files, folders, globs, and ``webcam``.
        out: Folder for what is written.
        threshold: Least score; the run's own, the best F1 of each class, if not given.
        batch_size: Images per batch; those of a batch are padded to one size.
        device: Where to compute.
        precision: Instead of a threshold, the part of the boxes that shall be right.
        calibrated: False gives raw scores.
        agnostic_nms: Where a box hides those of other classes at nearly the same place.
        pictures: Whether pictures are drawn.
        format: Another file beside ``predictions.json``: ``coco`` or ``yolo``.
        crop: Whether each object is written as a picture of its own.
    """
    from rankwise.evaluation.inference import pick_device
    from rankwise.models import Detector

    sources = find_inputs(words)
    detector = Detector.load(run, device=pick_device(device))
    say_units(detector.confidence, precision, calibrated)

    def detect(images: list[Any], least: float | None = threshold) -> list[Any]:
        at = precision if least is threshold else None
        return detector.predict(images, least, len(images), precision=at, calibrated=calibrated)

    entries = predict_files(
        sources, out, read_image, detect, detector.classes, batch_size, agnostic_nms, pictures, format, crop
    )
    say_highest(entries, sources, read_image, lambda image: detect([image], 0.0)[0]["scores"].tolist())
    return entries


def say_units(confidence: Confidence, precision: float | None, calibrated: bool) -> None:
    """Prints a note if scores are raw, or the threshold of a precision.

    Args:
        confidence: Calibration and thresholds of the detector.
        precision: The desired precision, if any.
        calibrated: Whether calibrated scores were requested.
    """
    said = []
    if calibrated and confidence.calibration is None:
        said.append(f"scores are raw, not probabilities: there is no calibration; {HOW_TO_CALIBRATE}")
    if precision is not None:
        score, low, high = confidence.at_precision(precision)
        said.append(
            f"precision {precision:g} is reached at threshold {score:.3f} (95 % interval {low:.2f} to {high:.2f} on "
            f"the validation images)"
        )
    for line in said:
        _say(line)


def say_highest(
    entries: Sequence[dict[str, Any]],
    sources: Sequence[Path | Camera],
    read: Callable[[Path], Any],
    scores_of: Callable[[Any], list[float]],
) -> None:
    """Says what the highest score was, if nothing at all was found.

    Args:
        entries: What was found.
        sources: In what.
        read: Turns a file into an image.
        scores_of: The scores of an image without a threshold, best first.
    """
    files = [source for source in sources if isinstance(source, Path) and not is_video(source)][:_LOOKED_AT]
    if not entries or any(entry["objects"] for entry in entries) or not files:
        return
    best, name = 0.0, ""
    for file in files:
        try:
            scores = scores_of(read(file))
        except DataError:
            continue
        if scores and scores[0] > best:
            best, name = scores[0], str(file)
    some = "" if len(files) == len(entries) else f" of the first {len(files)} images"
    found = f"the highest score{some} is {best:.3g}, in {name}" if name else "no score is above 0"
    _say(f"nothing was found: {found}; --threshold gives a lower limit")


def predict_files(
    sources: Sequence[Path | Camera],
    out: Path,
    read: Callable[[Path], Any],
    detect: Callable[[list[Any]], list[Any]],
    classes: Sequence[str],
    batch_size: int = 1,
    agnostic: AgnosticNms = "pictures",
    pictures: bool = True,
    format: Format = "json",
    crop: bool = False,
) -> list[dict[str, Any]]:
    """Detects objects in files with any detector, draws them, and writes ``predictions.json``; needs no torch.

    No picture is written over one of the images. A camera is read until Ctrl-C.

    Args:
        sources: The images and videos.
        out: Folder for what is written.
        read: Turns a file into an image that ``detect`` takes.
        detect: The detections of each of some images: boxes, scores and labels, as tensors or as arrays.
        classes: Names of the labels.
        batch_size: How many images are read and handed to ``detect`` at a time.
        agnostic: Where a box hides those of other classes at nearly the same place.
        pictures: Whether pictures are drawn.
        format: Another file beside ``predictions.json``: ``coco`` or ``yolo``.
        crop: Whether each object is written as a picture of its own.

    Raises:
        DataError: If ``batch_size`` is below 1, or, after all other images are done, if images could not be read.
    """
    if batch_size < 1:
        raise DataError(f"batch_size is {batch_size}: it must be at least 1")
    total = _total(sources)
    writer = Writer(sources, out, classes, agnostic, pictures, format, crop)
    faults: list[str] = []
    console = Console(highlight=False)
    started = monotonic()
    with _progress(console) as progress:
        bar = progress.add_task("", total=total, rate="")
        lines = not progress.disable and len(sources) > _MOST_LINES
        try:
            for items in _batches(sources, read, batch_size, faults):
                for item, detections in zip(items, detect([item.image for item in items]), strict=True):
                    line = writer.add(item, detections)
                    if item.frame is None and not lines:
                        console.print(shown(line), soft_wrap=True, markup=False)
                    done = len(writer.entries)
                    progress.update(bar, completed=done, rate=f"{done / (monotonic() - started):.1f} images/s")
        except KeyboardInterrupt:
            if not any(isinstance(source, Camera) for source in sources):
                raise
    for line in writer.close(monotonic() - started):
        console.print(shown(line), soft_wrap=True, markup=False)
    if faults:
        raise DataError(f"{len(faults)} of {len(sources)} inputs could not be read:\n" + "\n".join(faults))
    return writer.entries


@dataclass(frozen=True)
class _Fault:
    message: str


def _items(sources: Sequence[Path | Camera], read: Callable[[Path], Any]) -> Iterator[Item | _Fault]:
    for source in sources:
        try:
            if isinstance(source, Camera) or is_video(source):
                for frame in frames(source):
                    yield Item(source, frame.pixels, frame)
            else:
                yield Item(source, read(source))
        except DataError as error:
            yield _Fault(str(error))


def _batches(
    sources: Sequence[Path | Camera], read: Callable[[Path], Any], size: int, faults: list[str]
) -> Iterator[list[Item]]:
    """As many items at a time as fit a batch; a camera's are not held back."""
    batch: list[Item] = []
    for item in _items(sources, read):
        if isinstance(item, _Fault):
            faults.append(item.message)
            continue
        batch.append(item)
        if len(batch) == size or isinstance(item.source, Camera):
            yield batch
            batch = []
    if batch:
        yield batch


def _total(sources: Sequence[Path | Camera]) -> int | None:
    """How many images and frames there are; None if that is not known."""
    counts = [count_frames(source) if is_video(source) else 1 for source in sources]
    return None if None in counts else sum(count or 0 for count in counts)


def _progress(console: Console) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[rate]}"))
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _say(line: str) -> None:
    Console(highlight=False).print(shown(line), soft_wrap=True, markup=False)
