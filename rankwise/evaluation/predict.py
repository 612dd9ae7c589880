"""``rankwise predict``: detections in images and videos, as annotated images and data files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rankwise.errors import DataError
from rankwise.evaluation.predictions import Item, Output, Writer
from rankwise.files.names import escaped
from rankwise.images.reading import read_image
from rankwise.images.sources import Camera, count_frames, find_inputs, frames, is_video
from rankwise.models.confidence import HOW_TO_CALIBRATE, Confidence

#: With more images than this, a terminal only shows the progress bar.
_MAX_LINES = 50
#: Maximum number of images that are checked for the highest score if nothing was detected.
_MAX_CHECKED = 20


def predict_images(
    run: Path,
    inputs: Sequence[str],
    output: Output,
    threshold: float | None = None,
    batch_size: int = 1,
    device: str = "auto",
    precision: float | None = None,
    calibrated: bool = True,
) -> list[dict[str, Any]]:
    """Detects objects in images and videos, draws them, and writes ``predictions.json``; returns its entries.

    Args:
        run: Run folder or weights file.
        inputs: Image and video files, folders, globs, and ``webcam``.
        output: What to write.
        threshold: The minimum score; by default the thresholds of the run, with the best F1 per class.
        batch_size: Images per batch; images of a batch are padded to the same size.
        device: The device.
        precision: The desired precision, instead of a threshold.
        calibrated: False uses raw scores.
    """
    from rankwise.evaluation.inference import pick_device
    from rankwise.models import Detector, weights

    sources = find_inputs(inputs)
    detector = Detector.load(run, device=pick_device(device))
    if stopped := weights.unevaluated(run):
        _print(stopped)
    detect = partial(detector.predict, batch_size=batch_size, calibrated=calibrated)
    notes = (detector.confidence, threshold, precision, calibrated)
    return predict_sources(sources, output, read_image, detect, detector.classes, batch_size, *notes)


def predict_sources(
    sources: Sequence[Path | Camera],
    output: Output,
    read: Callable[[Path], Any],
    detect: Callable[..., Any],
    classes: Sequence[str],
    batch_size: int,
    confidence: Confidence,
    threshold: float | None,
    precision: float | None,
    calibrated: bool,
    lowest: float = 0.0,
) -> list[dict[str, Any]]:
    """:func:`predict_files` with the ``predict`` of a detector, and notes about its scores.

    ``lowest`` is the lowest threshold that it takes.
    """
    print_score_notes(confidence, precision, calibrated)
    found = partial(detect, threshold=threshold, precision=precision)
    entries = predict_files(sources, output, read, found, classes, batch_size)
    print_highest_score(entries, sources, read, lambda image: detect(image, threshold=lowest)["scores"].tolist())
    return entries


def print_score_notes(confidence: Confidence, precision: float | None, calibrated: bool) -> None:
    """Prints a note if scores are raw, or the threshold of a precision."""
    if calibrated and confidence.calibration is None:
        _print(f"scores are raw, not probabilities: there is no calibration; {HOW_TO_CALIBRATE}")
    if precision is not None:
        score, low, high = confidence.at_precision(precision)
        _print(
            f"precision {precision:g} is reached at threshold {score:.3f} (95 % interval {low:.2f} to {high:.2f} on "
            f"the validation images)"
        )


def print_highest_score(
    entries: Sequence[dict[str, Any]],
    sources: Sequence[Path | Camera],
    read: Callable[[Path], Any],
    scores_of: Callable[[Any], list[float]],
) -> None:
    """Prints the highest score if nothing was detected.

    ``scores_of`` gives the scores of an image without a threshold, best first.
    """
    files = [source for source in sources if isinstance(source, Path) and not is_video(source)][:_MAX_CHECKED]
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
    _print(f"nothing was detected: {found}; set a lower --threshold")


def predict_files(
    sources: Sequence[Path | Camera],
    output: Output,
    read: Callable[[Path], Any],
    detect: Callable[[list[Any]], list[Any]],
    classes: Sequence[str],
    batch_size: int = 1,
) -> list[dict[str, Any]]:
    """Detects objects in files with any detector, draws them, and writes ``predictions.json``; needs no torch.

    ``read`` reads a file as an image, and ``detect`` returns the detections of up to ``batch_size`` images: boxes,
    scores and labels, as tensors or arrays. Input images are never overwritten. A camera is read until Ctrl-C or
    SIGTERM.

    Raises:
        DataError: If ``batch_size`` is below 1, or, after all other images are done, if images could not be read.
    """
    if batch_size < 1:
        raise DataError(f"batch_size is {batch_size}: it must be at least 1")
    total = _total(sources)
    writer = Writer(sources, output, classes)
    faults: list[str] = []
    console = Console(highlight=False)
    started = monotonic()
    with writer, _progress(console) as progress:
        bar = progress.add_task("", total=total, rate="")
        quiet = not progress.disable and len(sources) > _MAX_LINES
        try:
            for items in _batches(sources, read, batch_size, faults):
                for item, detections in zip(items, detect([item.image for item in items]), strict=True):
                    line = writer.add(item, detections)
                    if item.frame is None and not quiet:
                        console.print(escaped(line), soft_wrap=True, markup=False)
                    done = len(writer.entries)
                    progress.update(bar, completed=done, rate=f"{done / (monotonic() - started):.1f} images/s")
        except (KeyboardInterrupt, SystemExit):
            if not any(isinstance(source, Camera) for source in sources):
                raise
    for line in writer.close(monotonic() - started):
        console.print(escaped(line), soft_wrap=True, markup=False)
    if faults:
        raise DataError(f"{len(faults)} of {len(sources)} inputs could not be read:\n" + "\n".join(faults))
    return writer.entries


def _items(source: Path | Camera, read: Callable[[Path], Any]) -> Iterator[Item]:
    if isinstance(source, Camera) or is_video(source):
        yield from (Item(source, frame.pixels, frame) for frame in frames(source))
    else:
        yield Item(source, read(source))


def _batches(
    sources: Sequence[Path | Camera], read: Callable[[Path], Any], size: int, faults: list[str]
) -> Iterator[list[Item]]:
    """Batches of items; those of a camera are not held back. Messages about unreadable sources go to ``faults``."""
    batch: list[Item] = []
    for source in sources:
        try:
            for item in _items(source, read):
                batch.append(item)
                if len(batch) == size or isinstance(source, Camera):
                    yield batch
                    batch = []
        except DataError as error:
            faults.append(str(error))
    if batch:
        yield batch


def _total(sources: Sequence[Path | Camera]) -> int | None:
    """The number of images and frames; None if unknown."""
    counts = [count_frames(source) if is_video(source) else 1 for source in sources]
    return None if None in counts else sum(count or 0 for count in counts)


def _progress(console: Console) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[rate]}"))
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _print(line: str) -> None:
    Console(highlight=False).print(escaped(line), soft_wrap=True, markup=False)
