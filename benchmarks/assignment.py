"""How fast positives are chosen for a batch: against loops over ground truths, and against the detector's forward pass.

    python benchmarks/assignment.py

PAA runs against the same steps with one scikit-learn mixture an object, as the published code has them; ATSS against
a loop over ground truths. Contestants take turns, the best of several turns counts, and their answers must be equal.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor
from torchvision.models.detection import retinanet_resnet50_fpn
from torchvision.ops import box_iou

from rankwise.assign import ATSS, PAA, IoUThreshold
from rankwise.types import Predictions, Target

IMAGES, SIDE, CLASSES, TURNS = 8, 512, 80, 7
STRIDES = (8, 16, 32, 64, 128)
RESULTS = Path(__file__).parent / "results"


def batch(objects: int, seed: int = 0) -> tuple[Predictions, list[Target]]:
    """Eight images of 512 pixels with so many objects each, one square anchor a location, a half-trained detector."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    levels = []
    for stride in STRIDES:
        line = (torch.arange(SIDE // stride) + 0.5) * stride
        y, x = torch.meshgrid(line, line, indexing="ij")
        centre = torch.stack([x, y], -1).reshape(-1, 2)
        levels.append(torch.cat([centre - 4 * stride, centre + 4 * stride], 1))
    anchors = torch.cat(levels)
    targets: list[Target] = []
    quality = torch.zeros(IMAGES, len(anchors))
    boxes = anchors + torch.randn(IMAGES, len(anchors), 4, generator=generator) * 8
    for image in range(IMAGES):
        size = random(objects, 2).square() * 200 + 12
        centre = random(objects, 2) * SIDE
        truth = torch.cat([centre - size / 2, centre + size / 2], 1).clamp(0, SIDE)
        targets.append({"boxes": truth, "labels": torch.randint(0, CLASSES, (objects,), generator=generator)})
        iou, best = box_iou(truth, anchors).max(0)
        boxes[image] += (truth[best] - anchors) * 0.6 * (iou > 0.1).unsqueeze(1)
        quality[image] = iou
    logits = torch.randn(IMAGES, len(anchors), CLASSES, generator=generator) - 4 + 3 * quality.unsqueeze(-1)
    return Predictions(logits, boxes, anchors, tuple(len(level) for level in levels)), targets


def give(matched: Tensor, highest: Tensor, thing: int, anchors: Tensor, iou: Tensor) -> None:
    """Gives an image's anchors to an object where it overlaps them better than all before."""
    wins = iou > highest[anchors]
    matched[anchors[wins]] = thing
    highest[anchors[wins]] = iou[wins]


@torch.no_grad()
def paa_by_loop(predictions: Predictions, targets: list[Target], k: int = 9, threshold: float = 0.1) -> Tensor:
    """PAA*, object by object with scikit-learn; returns what ``Assignment.matched`` holds."""
    anchors = predictions.anchors
    all_matched = torch.full(predictions.logits.shape[:2], -1)
    for image, target in enumerate(targets):
        table = box_iou(target["boxes"], anchors)
        best, owner = table.max(0)
        owner[best < threshold] = -1
        low_quality = torch.zeros_like(best)
        for thing, row in enumerate(table):
            if 0 < row.max() < threshold:
                ties = (row == row.max()).nonzero().flatten()
                ties = ties[best[ties] < threshold]
                give(owner, low_quality, thing, ties, row[ties])
        matched, highest = all_matched[image], torch.zeros(len(anchors))
        for thing, row in enumerate(table):
            mine = owner == thing
            if row.max() > 0:
                mine[row.argmax()] = True
            candidates = mine.nonzero().flatten()
            if not len(candidates):
                continue
            kind = target["labels"][thing]
            scores = predictions.logits[image, candidates, kind].double().sigmoid()
            overlaps = box_iou(predictions.boxes[image, candidates].double(), target["boxes"][thing, None].double())
            values = torch.zeros_like(scores)
            for score in (scores, overlaps[:, 0]):
                spread = score.max() - score.min()
                values += 1 - (score - score.min()) / (spread if spread > 0 else 1)
            kept = []
            start = 0
            for size in predictions.level_sizes:
                here = ((candidates >= start) & (candidates < start + size)).nonzero().flatten()
                kept.append(here[values[here].topk(min(k, len(here)), largest=False).indices])
                start += size
            chosen = torch.cat(kept)
            chosen = chosen[values[chosen].argsort(stable=True)]
            if len(chosen) > 2:
                chosen = chosen[lower_cluster(values[chosen])]
            give(matched, highest, thing, candidates[chosen], row[candidates[chosen]])
    return all_matched


def lower_cluster(values: Tensor) -> Tensor:
    """The positives among one object's sorted clustering inputs, by scikit-learn."""
    column = values.numpy()[:, None]
    mixture = GaussianMixture(
        2, weights_init=[0.5, 0.5], means_init=[column.min(0), column.max(0)], precisions_init=[[[1.0]], [[1.0]]]
    )
    mixture.fit(column)
    members = (mixture.predict(column) == 0).nonzero()[0]
    if not len(members):
        return torch.zeros(1, dtype=torch.int64)
    return torch.from_numpy(members[: mixture.score_samples(column)[members].argmax() + 1])


@torch.no_grad()
def atss_by_loop(predictions: Predictions, targets: list[Target], k: int = 9) -> Tensor:
    """ATSS, object by object; returns what ``Assignment.matched`` holds."""
    anchors = predictions.anchors
    centre = (anchors[:, :2] + anchors[:, 2:]) / 2
    all_matched = torch.full(predictions.logits.shape[:2], -1)
    for image, target in enumerate(targets):
        matched, highest = all_matched[image], torch.zeros(len(anchors))
        for thing, box in enumerate(target["boxes"]):
            distance = (centre - (box[:2] + box[2:]) / 2).square().sum(1)
            chosen = []
            start = 0
            for size in predictions.level_sizes:
                chosen.append(distance[start : start + size].topk(min(k, size), largest=False).indices + start)
                start += size
            candidates = torch.cat(chosen)
            iou = box_iou(box[None], anchors[candidates])[0]
            wide = iou.double()
            inside = torch.cat([centre[candidates] - box[:2], box[2:] - centre[candidates]], 1).amin(1) > 0.01
            positive = (wide >= wide.mean() + wide.std()) & inside
            give(matched, highest, thing, candidates[positive], iou[positive])
    return all_matched


def race(*contestants: Callable[[], object], turns: int = TURNS) -> list[float]:
    """The best time of each contestant in seconds; they take turns, so that a busy moment hits all alike."""
    best = [float("inf")] * len(contestants)
    for _ in range(turns):
        for number, contestant in enumerate(contestants):
            start = time.perf_counter()
            contestant()
            best[number] = min(best[number], time.perf_counter() - start)
    return best


def main() -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    torch.set_num_threads(2)
    paa, atss, threshold = PAA(), ATSS(), IoUThreshold()
    detector = retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=CLASSES).eval()
    images = torch.rand(IMAGES, 3, SIDE, SIDE)

    @torch.no_grad()
    def forward() -> object:
        return detector.head(list(detector.backbone(images).values()))

    (forward_time,) = race(forward, turns=3)
    rows = []
    for objects in (10, 100):
        predictions, targets = batch(objects)
        agree = {
            "PAA": (paa(predictions, targets).matched == paa_by_loop(predictions, targets)).float().mean().item(),
            "ATSS": (atss(predictions, targets).matched == atss_by_loop(predictions, targets)).float().mean().item(),
        }
        times = race(
            lambda p=predictions, t=targets: paa(p, t),
            lambda p=predictions, t=targets: paa_by_loop(p, t),
            lambda p=predictions, t=targets: atss(p, t),
            lambda p=predictions, t=targets: atss_by_loop(p, t),
            lambda p=predictions, t=targets: threshold(p, t),
        )
        for name, ours, loop in (
            ("PAA", times[0], times[1]),
            ("ATSS", times[2], times[3]),
            ("IoUThreshold", times[4], 0),
        ):
            rows.append(
                {
                    "assigner": name,
                    "images": IMAGES,
                    "objects_per_image": objects,
                    "milliseconds": ours * 1e3,
                    "loop_milliseconds": loop * 1e3 or None,
                    "times_faster": loop / ours or None,
                    "anchors_that_agree": agree.get(name),
                    "share_of_forward_pass": ours / forward_time,
                }
            )
    report(rows, forward_time)


def report(rows: list[dict], forward_time: float) -> None:
    """Prints the table and writes it to the results."""
    lines = [
        f"{IMAGES} images of {SIDE} pixels, {torch.get_num_threads()} threads; "
        f"forward pass of ResNet-50-FPN (RetinaNet): {forward_time:.2f} s",
        "",
        "| assigner | objects an image | batched, ms | loop over objects, ms | times faster | same anchors "
        "| of a forward pass |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        loop = row["loop_milliseconds"]
        compared = f"{loop:.0f} | {row['times_faster']:.1f} | {row['anchors_that_agree']:.4%}" if loop else "– | – | –"
        lines.append(
            f"| {row['assigner']} | {row['objects_per_image']} | {row['milliseconds']:.1f} | {compared} "
            f"| {row['share_of_forward_pass']:.1%} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "assignment.md").write_text("# Speed of assignment\n\n" + text)
    content = {"torch": torch.__version__, "forward_seconds": forward_time, "rows": rows}
    (RESULTS / "assignment.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
