"""From a trained detector and a dataset to detections, metrics and figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from rankwise import distributed
from rankwise.config.datasets import open_run, results_subfolder
from rankwise.config.reading import read_section
from rankwise.config.settings import TrainSettings
from rankwise.data.dataset import DetectionDataset
from rankwise.data.loader import build_loader
from rankwise.data.transforms import EvalTransform
from rankwise.errors import DataError, SettingsError
from rankwise.evaluation.coco import Evaluation, calibrated
from rankwise.evaluation.drawing import AGNOSTIC_IOU, Seen, contact_sheet
from rankwise.evaluation.paa_figures import draw_figures, paa_of_run
from rankwise.evaluation.results import (
    EvaluatedRun,
    evaluate_on,
    set_damaged_aside,
    write_calibrated_results,
    write_results,
)
from rankwise.evaluation.tabulate import print_evaluation
from rankwise.evaluation.thresholds import at_scores
from rankwise.files.names import escaped, join_names
from rankwise.files.writing import make_folder, write_picture, write_text
from rankwise.from_dict import from_dict
from rankwise.models import Detector, TestSettings, weights
from rankwise.models.confidence import HOW_TO_CALIBRATE, rescored
from rankwise.models.tta import detect_with_tta, tta_views
from rankwise.types import Detections

#: Number of validation images on the contact sheet.
PICTURES = 12


def pick_device(name: str = "auto") -> torch.device:
    """A device by name; "auto" is the GPU if there is one, as in training."""
    if name == "auto":
        return torch.device(
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"--device {name}: there is no such device; use auto, cpu, cuda, cuda:1 or mps") from None
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises an AssertionError
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise SettingsError(f"--device {name}: torch cannot use it ({reason}); use cpu or auto") from error
    return device


@dataclass
class Found:
    """The detections of a detector.

    Attributes:
        detections: Detections by image id, in pixels of the original images.
        faults: Errors of unreadable images by name; these images have no detections.
    """

    detections: dict[int, Detections] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


@torch.no_grad()
def detect(
    detector: Detector,
    dataset: DetectionDataset,
    batch_size: int = 8,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    stopped: Callable[[], bool] | None = None,
    test: TestSettings | None = None,
) -> Found:
    """Runs a detector on the images of a dataset, which has its evaluation transform.

    Processes share whole batches. A batch is then padded to the same size for any number of processes, and gives the
    same detections. If ``stopped``, called before each batch, returns true, the detections so far are returned.
    ``test`` is the test-time augmentation, none by default.
    """
    found = Found()
    views = tta_views(detector.settings.input, test or TestSettings())
    once = views == tta_views(detector.settings.input, TestSettings())
    if not once:
        dataset = dataset.with_transform(None)  # each view resizes the original image
    indices = [index for index in range(len(dataset)) if index // batch_size % world_size == rank]
    if not indices:
        return found
    device = next(detector.parameters()).device
    training = detector.training
    detector.eval()
    size = detector.settings.input
    loader = build_loader(
        dataset.subset(indices), batch_size, False, workers=workers, divisor=size.divisor, colour=size.mean_colour
    )
    for batch in loader.epoch(0):
        if stopped is not None and stopped():
            break
        images = batch.images.to(device)
        sizes = [target["size"] for target in batch.targets]
        if once:
            originals = [target["original_size"] for target in batch.targets]
            results = detector.postprocess(detector(images), sizes, originals)
        else:
            unpadded = [image[:, :height, :width] for image, (height, width) in zip(images, sizes, strict=True)]
            results = detect_with_tta(detector, unpadded, views, detector.settings.postprocess)
        for target, detections in zip(batch.targets, results, strict=True):
            if target.get("fault"):
                found.faults[str(target["name"])] = target["fault"]
            else:
                found.detections[int(target["image_id"])] = {name: value.cpu() for name, value in detections.items()}
    detector.train(training)
    return found


def readable(dataset: DetectionDataset, found: Found) -> DetectionDataset:
    """The dataset without unreadable images, which are not part of the evaluation."""
    if not found.faults:
        return dataset
    if not found.detections:
        raise DataError(f"no image of the dataset could be read; the first: {next(iter(found.faults.values()))}")
    return dataset.subset([i for i, record in enumerate(dataset.records) if record.image_id in found.detections])


def evaluate_detector(
    detector: Detector,
    dataset: DetectionDataset,
    batch_size: int,
    workers: int,
    stopped: Callable[[], bool] | None = None,
) -> tuple[Evaluation | None, dict[str, str]]:
    """Evaluates a detector, the same in all processes, with the images shared among them.

    If ``stopped``, called before each batch, returns true in any process, all of them stop. Returns the result on rank
    0, None on other ranks and if stopped; and the errors of unreadable images by name.
    """
    with distributed.all_raise():
        found_here = detect(
            detector, dataset, batch_size, workers, distributed.rank(), distributed.world_size(), stopped
        )
    if distributed.all_reduce_any(stopped is not None and stopped())[0]:
        return None, {}
    found = Found()
    for share in distributed.all_gather_objects(found_here):
        found.detections.update(share.detections)
        found.faults.update(share.faults)
    result = None
    with distributed.all_raise():
        if distributed.rank() == 0:
            result = evaluate_on(readable(dataset, found), found.detections)
    return result, found.faults


def evaluate_run(
    run: Path,
    data: str | None = None,
    split: str | None = None,
    out: Path | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    console: Console | None = None,
    test: TestSettings | None = None,
    calibrate: bool | None = None,
) -> EvaluatedRun:
    """Evaluates the best detector of a run: a table, ``eval.json``, a COCO results file and a contact sheet.

    On the validation images of the run, it also fits the calibration and stores it with the thresholds in the weights
    file. On other images, the stored calibration is used.

    Args:
        run: Folder of the run.
        data: Another dataset; that of the run by default.
        split: Another split; the validation split of the run by default.
        out: Output folder. By default the run folder, or a subfolder for other images or another test-time
            augmentation, so that the results and thresholds of the run do not change.
        batch_size: Images per batch; as in the recipe by default.
        workers: Number of loader processes; as in the recipe by default.
        device: The device.
        console: The console of a training, which has printed the notes about the dataset already.
        test: Test-time augmentation; that of the run by default.
        calibrate: False evaluates raw scores and stores nothing; True also writes ``detections_calibrated.json``.
            ``detections.json`` always has raw scores.
    """
    in_training, console = console is not None, console or Console(highlight=False)
    own = run / results_subfolder(read_section(run, "data"), data, split, test is not None)
    fit, out = own == run or out == run, out or own  # if the dataset has moved, data is its new location
    for note in set_damaged_aside(run):
        console.print(note, soft_wrap=True, markup=False)
    if stopped := weights.unevaluated(run):
        console.print(stopped, soft_wrap=True, markup=False)
    detector = Detector.load(run, device=pick_device(device))
    settings, dataset = open_run(run, data, split, detector.classes)
    for note in [] if in_training else dataset.notes:
        console.print(note, soft_wrap=True, markup=False)
    dataset = dataset.with_transform(EvalTransform(detector.settings.input))
    if dataset.classes != list(detector.classes):
        raise DataError(
            f"{run} was trained for the classes {join_names(detector.classes)}; this dataset has "
            f"{join_names(dataset.classes)}"
        )
    trained = from_dict(TrainSettings, read_section(run, "train"), f"{run / 'recipe.yaml'}: train")
    batch_size = batch_size or trained.evaluate_batch
    workers = settings.workers if workers is None else workers
    found = detect(detector, dataset, batch_size, workers, test=test or detector.settings.test)
    for fault in found.faults.values():
        console.print(f"image skipped: {escaped(fault)}", soft_wrap=True, markup=False)
    dataset = readable(dataset, found)
    result = evaluate_on(dataset, found.detections)
    score_map = None if fit else detector.confidence.calibration
    if calibrate is not False and (fit or score_map is not None):
        result = calibrated(result, [record.image_id for record in dataset.records], score_map)
    if not fit:
        result = _at_thresholds_of_run(result, detector, console)

    make_folder(out)
    if fit and out == run and result.calibration is not None:
        if stopped:  # a checkpoint has no room for the calibration
            detector.save(run / "best.safetensors")
        weights.store_confidence(weights.find(run), result.confidence())
    write_text(out / "eval.json", json.dumps(result.to_dict(), indent=1) + "\n")
    write_results(out / "detections.json", found.detections, dataset.category_ids)
    if calibrate and result.calibration is not None:
        path = out / "detections_calibrated.json"
        write_calibrated_results(path, found.detections, dataset.category_ids, result.calibration)
    picture = _draw_contact_sheet(out, result, dataset, found)
    print_evaluation(result, console)
    if calibrate is not False and result.calibration is None:
        console.print(f"scores are raw: the run has no calibration; {HOW_TO_CALIBRATE}", soft_wrap=True)
    console.print(f"results   {escaped(out)}/", soft_wrap=True, markup=False)
    console.print(f"pictures  {escaped(picture)}", soft_wrap=True, markup=False)
    return EvaluatedRun(run, out, settings, split, dataset, result)


def _draw_contact_sheet(out: Path, result: Evaluation, dataset: DetectionDataset, found: Found) -> Path:
    """Draws ``detections.jpg``, a contact sheet of images spread over the dataset; returns the file."""
    items = []
    for index in np.linspace(0, len(dataset) - 1, min(PICTURES, len(dataset))).round().astype(int).tolist():
        image, record = dataset.load(index)
        seen = found.detections[record.image_id]
        if result.calibration is not None:
            seen = rescored(seen, result.calibration, torch.from_numpy)
        items.append(Seen(image, seen, record.target(), record.name))
    thresholds = result.thresholds.by_label(dataset.classes)
    sheet = contact_sheet(items, dataset.classes, thresholds, agnostic_iou=AGNOSTIC_IOU)
    path = out / "detections.jpg"
    write_picture(path, sheet, "JPEG", quality=90)
    return path


def _at_thresholds_of_run(result: Evaluation, detector: Detector, console: Console) -> Evaluation:
    """Precision and recall at the thresholds of the run: thresholds chosen on the evaluated images would be
    optimistic."""
    confidence = detector.confidence
    if confidence.thresholds is None:
        why = "the run has no thresholds: those below are the best ones for these images"
    elif (confidence.calibration is None) != (result.calibration is None):
        why = "the thresholds of the run are for calibrated scores: those below are the best ones for these images"
    else:
        why = "precision and recall are at the thresholds of the run, which were chosen on its validation images"
        names = list(result.per_class)
        scores = dict(zip(names, (confidence.thresholds[name] for name in detector.classes), strict=True))
        result = replace(result, thresholds=at_scores(result.matches, names, scores), given_thresholds=True)
    console.print(why, soft_wrap=True)
    return result


def draw_paa_figures(
    run: Path, out: Path, data: str | None = None, device: str = "auto", split: str | None = None
) -> list[Path]:
    """Draws the scores and clusters of PAA for a run, figures 2c and 3c of the paper; returns the files.

    A run that was trained with another assigner is a SettingsError.
    """
    paa = paa_of_run(run)
    detector = Detector.load(run, device=pick_device(device))
    _, dataset = open_run(run, data, split, detector.classes)
    make_folder(out)
    return draw_figures(out, detector, dataset.with_transform(EvalTransform(detector.settings.input)), paa)
