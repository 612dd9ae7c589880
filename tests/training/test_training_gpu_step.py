"""What a training step would ask of a GPU beside the detector: launches and host syncs, with the lines that sync.

Counted on 4 images of 512 pixels with 10 objects each, forward and backward.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from gpu_counting import CountGPUWork, on_gpu
from torch import Tensor

from rankwise.assign import ATSS, PAA, Assigner, IoUThreshold
from rankwise.criterion import Criterion
from rankwise.losses import APELoss, FocalLoss
from rankwise.losses.base import Loss, Outcome
from rankwise.models.postprocess import postprocess
from rankwise.models.settings import PostprocessSettings
from rankwise.training.loop import Run
from rankwise.types import Predictions, Target

pytest.importorskip("triton")
IMAGES, SIDE, CLASSES, OBJECTS = 4, 512, 80, 10


class Lossless(Loss):
    """Two launches: what is left is assigner, box loss and the rest of the criterion."""

    def outcome(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Outcome:
        return Outcome((logits * logits).sum())


def batch() -> tuple[Predictions, list[Target]]:
    """Anchors of five levels, one per location, predictions around them, and random objects."""
    generator = torch.Generator().manual_seed(0)
    levels = []
    for stride in (8, 16, 32, 64, 128):
        line = (torch.arange(SIDE // stride) + 0.5) * stride
        centre = torch.cartesian_prod(line, line)
        levels.append(torch.cat([centre - 4 * stride, centre + 4 * stride], 1))
    anchors = torch.cat(levels)
    corner, size = torch.rand(2, IMAGES, OBJECTS, 2, generator=generator) * SIDE / 2
    truth = torch.cat([corner, corner + size + 8], -1)
    labels = torch.randint(CLASSES, (IMAGES, OBJECTS), generator=generator)
    targets: list[Target] = [{"boxes": b, "labels": k} for b, k in zip(truth, labels, strict=True)]
    logits = torch.randn(IMAGES, len(anchors), CLASSES, generator=generator) - 4
    boxes = anchors + torch.randn(IMAGES, len(anchors), 4, generator=generator) * 8
    return Predictions(logits, boxes, anchors, tuple(map(len, levels))), targets


def step(loss: Loss, assigner: Assigner) -> CountGPUWork:
    """Assignment, losses, backward, and the look at the norm of the gradient, as the loop has them."""
    predictions, targets = batch()
    with CountGPUWork() as work:
        tensors = [on_gpu(one) for one in (predictions.logits, predictions.boxes, predictions.anchors)]
        seen = Predictions(*tensors, predictions.level_sizes)
        seen.logits.requires_grad_()
        seen.boxes.requires_grad_()
        Criterion(loss, assigner)(seen, targets).total.backward()
        norm = torch.stack([leaf.grad.norm() for leaf in (seen.logits, seen.boxes)]).norm()
        bool(norm.isfinite())
    return work


@pytest.mark.parametrize(
    ("loss", "assigner", "launches"),
    [
        (Lossless(), ATSS(), 130),
        (Lossless(), PAA(), 245),
        (Lossless(), IoUThreshold(), 150),
        (APELoss(), ATSS(), 150),
        (APELoss(), PAA(), 265),
        (FocalLoss(), ATSS(), 150),
    ],
    ids=["ATSS", "PAA", "IoUThreshold", "APE and ATSS", "APE and PAA", "focal and ATSS"],
)
def test_a_step_has_few_launches_and_one_sync(loss: Loss, assigner: Assigner, launches: int) -> None:
    work = step(loss, assigner)
    print(work.report())
    assert work.launches <= launches, work.report()
    waiting = {line for line, _ in work.syncs}
    assert work.syncs.total() == 1, work.report()
    assert waiting == {"outside of the package, or autograd's own backward"}  # the norm, asked for by this test


def test_post_processing_with_voting_has_few_launches_and_three_syncs() -> None:
    predictions, _ = batch()
    sizes = [(SIDE, SIDE)] * IMAGES
    with CountGPUWork() as work:
        tensors = map(on_gpu, (predictions.logits, predictions.boxes, predictions.anchors))
        seen = Predictions(*tensors, predictions.level_sizes)
        postprocess(seen, sizes, sizes, PostprocessSettings(score_voting=True))
    assert work.launches <= 75, work.report()
    assert work.syncs.total() <= 3, work.report()


def test_checking_targets_on_the_gpu_takes_one_sync() -> None:
    predictions, targets = batch()
    with CountGPUWork() as work:
        tensors = map(on_gpu, (predictions.logits, predictions.boxes, predictions.anchors))
        moved = [{name: on_gpu(value) for name, value in target.items()} for target in targets]
        ATSS()(Predictions(*tensors, predictions.level_sizes), moved)
    assert [line.rpartition(":")[0] for line, _ in work.syncs.elements()] == ["rankwise/assign/objects.py"]


def test_the_decision_in_the_middle_of_a_step_does_not_wait_for_a_gpu() -> None:
    predictions, _ = batch()
    run = SimpleNamespace(
        fabric=SimpleNamespace(device=torch.device("cuda"), is_global_zero=True),
        recipe=SimpleNamespace(train=SimpleNamespace(checkpoint_steps=0, checkpoint_minutes=0)),
    )
    with CountGPUWork() as work:
        seen = Predictions(on_gpu(predictions.logits * torch.nan), on_gpu(predictions.boxes), predictions.anchors, (1,))
        decision = Run.decide(run, SimpleNamespace(raised=False), SimpleNamespace(targets=[]), seen)
    assert decision == (False,) * 5
    assert not work.syncs, work.report()
    assert work.launches == 0
