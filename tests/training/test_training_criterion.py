"""The criterion combines assigner, ranking loss and box loss; a split batch equals the whole batch."""

import pytest
import torch
from lightning_fabric import Fabric
from torchvision.ops import box_iou, generalized_box_iou_loss

from rankwise.assign import ATSS
from rankwise.criterion import BoxSettings, Criterion
from rankwise.losses import APELoss, FocalLoss
from rankwise.models import AnchorSettings, BackboneSettings, Detector, DetectorSettings, HeadSettings, NeckSettings
from rankwise.training.step import PlainForward, whole_batch_backward
from rankwise.training.tracking import Stopwatch
from rankwise.types import Assignment, Batch, Predictions


def scene():
    """Two images, six anchors, three positives, one ignored anchor."""
    torch.manual_seed(0)
    anchors = torch.tensor([[0, 0, 8, 8], [8, 0, 16, 8], [0, 8, 8, 16]], dtype=torch.float32)
    boxes = anchors + torch.randn(2, 3, 4) * 0.5
    predictions = Predictions(
        logits=torch.randn(2, 3, 4).requires_grad_(), boxes=boxes.requires_grad_(), anchors=anchors, level_sizes=(3,)
    )
    targets = [
        {"boxes": torch.tensor([[1.0, 1, 9, 9], [8, 0, 15, 8]]), "labels": torch.tensor([2, 0])},
        {"boxes": torch.tensor([[0.0, 7, 8, 16]]), "labels": torch.tensor([3])},
    ]
    labels, matched = torch.tensor([[2, 0, 4], [-1, 4, 3]]), torch.tensor([[0, 1, -1], [-1, -1, 0]])
    return predictions, targets, Assignment(labels, matched, torch.tensor(0))


def truth_of_the_positives():
    return torch.tensor([[1.0, 1, 9, 9], [8, 0, 15, 8], [0, 7, 8, 16]])


def test_terms_are_those_of_the_loss_and_of_giou_computed_by_hand():
    predictions, targets, assignment = scene()
    losses = Criterion(APELoss(), ATSS(), BoxSettings(weight=3.0)).losses(predictions, targets, assignment)
    rows = torch.tensor([0, 1, 5])
    chosen, truth = predictions.boxes.flatten(0, 1)[rows], truth_of_the_positives()
    quality = torch.zeros(6)
    quality[rows] = box_iou(chosen.detach(), truth).diagonal()
    expected = APELoss()(predictions.logits.flatten(0, 1), assignment.labels.flatten(), quality)
    assert losses.terms["ranking"].item() == pytest.approx(expected.item(), rel=1e-6)
    expected_box = 3 * generalized_box_iou_loss(chosen, truth, reduction="mean")
    assert losses.terms["box"].item() == pytest.approx(expected_box.item(), rel=1e-6)
    assert losses.log["positives"] == 3


@pytest.mark.parametrize("weighting", ["score", "quality"])
def test_box_errors_are_weighted_as_the_settings_say(weighting):
    predictions, targets, assignment = scene()
    losses = Criterion(FocalLoss(), ATSS(), BoxSettings(1.0, weighting)).losses(predictions, targets, assignment)
    rows, truth = torch.tensor([0, 1, 5]), truth_of_the_positives()
    chosen = predictions.boxes.flatten(0, 1)[rows]
    weights = {
        "score": predictions.logits.flatten(0, 1)[rows].amax(1).sigmoid(),
        "quality": box_iou(chosen, truth).diagonal(),
    }[weighting].detach()
    errors = generalized_box_iou_loss(chosen, truth, reduction="none")
    assert losses.terms["box"].item() == pytest.approx(((errors * weights).sum() / weights.sum()).item(), rel=1e-5)


def test_images_without_objects_give_a_finite_loss_connected_to_the_predictions():
    predictions, _, _ = scene()
    empty = [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}] * 2
    losses = Criterion(APELoss(), ATSS())(predictions, empty)
    losses.total.backward()
    assert losses.total.item() == 0
    assert predictions.logits.grad is not None
    assert predictions.logits.grad.abs().sum() == 0


def small_detector(bins=0, norm="gn"):
    head = HeadSettings(channels=16, depth=1, norm=norm, coding="ltrb" if bins else "delta", bins=bins)
    backbone = BackboneSettings("resnet10t", args={"channels": [8, 16, 16, 16]}, frozen_norm=True)
    settings = DetectorSettings(
        backbone=backbone, neck=NeckSettings(16, 0, norm="gn"), head=head, anchors=AnchorSettings(base=4.0)
    )
    torch.manual_seed(0)
    return Detector(settings, ["a", "b"])


@pytest.mark.parametrize(("bins", "loss"), [(0, "APELoss"), (4, "GeneralizedFocalLoss")])
def test_a_split_batch_has_the_gradient_of_the_whole_batch(bins, loss):
    import rankwise.losses

    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (5, 3, 64, 64), dtype=torch.uint8, generator=generator)
    boxes = [torch.tensor([[4.0 + 3 * i, 5, 30 + 5 * i, 40]]) for i in range(5)]
    targets = [{"boxes": box, "labels": torch.tensor([i % 2])} for i, box in enumerate(boxes)]
    gradients = []
    for parts in (1, 2, 5):
        detector = small_detector(bins)
        fabric = Fabric(accelerator="cpu", devices=1)
        model = fabric.setup_module(PlainForward(detector))
        criterion = Criterion(getattr(rankwise.losses, loss)(), ATSS())
        whole_batch_backward(fabric, model, criterion, Batch(images, targets), parts, Stopwatch(fabric.device))
        gradients.append(torch.cat([p.grad.flatten() for p in detector.parameters() if p.grad is not None]))
    for gradient in gradients[1:]:
        assert (gradient - gradients[0]).norm() <= 1e-5 * gradients[0].norm()


def test_split_batches_update_batch_norm_statistics_once_per_part():
    detector = small_detector(norm="bn")
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    targets = [{"boxes": torch.tensor([[4.0, 5, 40, 40]]), "labels": torch.tensor([0])}] * 4
    once = small_detector(norm="bn")
    once.load_state_dict(detector.state_dict())
    for part in images.chunk(2):
        once(part)
    fabric = Fabric(accelerator="cpu", devices=1)
    model = fabric.setup_module(PlainForward(detector))
    criterion = Criterion(APELoss(), ATSS())
    whole_batch_backward(fabric, model, criterion, Batch(images, targets), 2, Stopwatch(fabric.device))
    for (name, buffer), expected in zip(detector.named_buffers(), once.buffers(), strict=True):
        if "running" in name:
            torch.testing.assert_close(buffer, expected)
