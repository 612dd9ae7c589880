"""From a trained detector and a dataset to detections, numbers and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.console import Console

from rankwise.data.dataset import DetectionDataset
from rankwise.data.loader import build_loader
from rankwise.data.transforms import EvalTransform
from rankwise.evaluation.coco import Evaluation, evaluate
from rankwise.evaluation.results import write_results
from rankwise.models import Detector
from rankwise.structures import Detections

#: Validation images that the contact sheet shows.
PICTURES = 12


def pick_device(name: str = "auto") -> torch.device:
    """A device by name; "auto" is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


@torch.no_grad()
def detect(
    detector: Detector,
    dataset: DetectionDataset,
    batch_size: int = 16,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> dict[int, Detections]:
    """What a detector sees in the images of a dataset, by image id, in pixels of the original images.

    Args:
        detector: The detector; images go to its device.
        dataset: The dataset, with its evaluation transform.
        batch_size: Images at a time.
        workers: Loader processes.
        rank: Which of the processes this is.
        world_size: How many processes share the images.
    """
    device = next(detector.parameters()).device
    training = detector.training
    detector.eval()
    loader = build_loader(
        dataset,
        batch_size=batch_size * world_size,
        shuffle=False,
        seed=0,
        workers=workers,
        divisor=detector.settings.input.divisor,
        rank=rank,
        world_size=world_size,
    )
    found: dict[int, Detections] = {}
    for batch in loader.epoch(0):
        if not batch.targets:
            continue
        predictions = detector(batch.images.to(device))
        sizes = [target["size"] for target in batch.targets]
        originals = [target["original_size"] for target in batch.targets]
        for target, detections in zip(batch.targets, detector.postprocess(predictions, sizes, originals), strict=True):
            found[int(target["image_id"])] = {name: value.cpu() for name, value in detections.items()}
    detector.train(training)
    return found


def evaluate_detector(
    detector: Detector, dataset: DetectionDataset, batch_size: int, workers: int, fabric: Fabric
) -> Evaluation | None:
    """Measures a detector, its images shared among all processes; the result is rank 0's, None on the others."""
    found = detect(detector, dataset, batch_size, workers, fabric.global_rank, fabric.world_size)
    if fabric.world_size > 1:
        shares: list[Any] = [None] * fabric.world_size
        torch.distributed.all_gather_object(shares, found)
        found = {image: detections for share in shares for image, detections in share.items()}
    if not fabric.is_global_zero:
        return None
    return evaluate(dataset.ground_truth(), found, dataset.category_ids, dataset.classes)


def evaluate_run(
    run: Path,
    data: str | None = None,
    split: str | None = None,
    out: Path | None = None,
    batch_size: int = 16,
    workers: int | None = None,
    device: str = "auto",
    console: Console | None = None,
) -> Evaluation:
    """Measures the best detector of a run: a table, ``eval.json``, a COCO results file, figures and pictures.

    Args:
        run: Folder of the run.
        data: Another dataset than the run's own.
        split: Another split than the run's validation split.
        out: Where the results go; the run's folder if not given.
        batch_size: Images at a time.
        workers: Loader processes; as in the recipe if not given.
        device: Where to compute.
        console: Where to print.
    """
    from rankwise.evaluation.pictures import draw_evaluation
    from rankwise.models.plain import from_plain
    from rankwise.training.datasets import open_split
    from rankwise.training.recipe import read_section
    from rankwise.training.settings import DataSettings

    console = console or Console(highlight=False)
    section = read_section(run, "data")
    if data is not None:
        section["path"] = data
    settings = from_plain(DataSettings, section, "data")
    detector = Detector.load(run, device=pick_device(device))
    dataset = open_split(settings, split or "val").with_transform(EvalTransform(detector.settings.input))
    if dataset.classes != list(detector.classes):
        raise ValueError(
            f"{run} was trained for the classes {list(detector.classes)}, this dataset has {dataset.classes}"
        )
    found = detect(detector, dataset, batch_size, settings.workers if workers is None else workers)
    result = evaluate(dataset.ground_truth(), found, dataset.category_ids, dataset.classes)

    out = out or run
    out.mkdir(parents=True, exist_ok=True)
    (out / "eval.json").write_text(json.dumps(result.to_dict(), indent=1) + "\n", encoding="utf-8")
    write_results(out / "detections.json", found, dataset.category_ids)
    pictures = draw_evaluation(out, run / "metrics.jsonl", result, dataset, found, PICTURES)
    result.print_table(console)
    console.print(f"results and pictures: {out}/", soft_wrap=True)
    for picture in pictures:
        console.print(f"  {picture}", soft_wrap=True)
    return result
