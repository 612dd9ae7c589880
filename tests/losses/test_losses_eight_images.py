"""Every loss trains a small detector until it overfits eight images."""

import pytest
import torch

from rankwise import losses
from rankwise.assign import ATSS
from rankwise.criterion import BoxSettings, Criterion
from rankwise.data import ShapesDataset, collate
from rankwise.evaluation import evaluate
from rankwise.losses import Loss
from rankwise.models import Detector
from rankwise.models.settings import (
    AnchorSettings,
    BackboneSettings,
    DetectorSettings,
    HeadSettings,
    InputSettings,
    NeckSettings,
    PostprocessSettings,
)

SIDE = 64

#: Steps of training and the highest learning rate, where a loss needs more steps or smaller ones.
GENTLY = {
    "CorrelationLoss": (60, 0.01),
    "DRLoss": (100, 0.003),
    "GHMLoss": (60, 0.01),
    "RankDetLoss": (60, 0.01),
    "SmoothAPLoss": (90, 0.01),
}

#: AP50 that a loss must reach: 70, or where it learns more slowly less. Without a loss, a detector stays below 10.
LEAST = {"ALRPLoss": 60.0, "RankDetLoss": 60.0}

#: The box settings that a loss asks for.
BOX = {"ALRPLoss": BoxSettings(1.0), "RankSortLoss": BoxSettings(1.0, "score")}


def train(loss: Loss, seed: int = 1) -> float:
    """AP50 on eight images after training on them."""
    torch.manual_seed(seed)
    dataset = ShapesDataset("train", images=8, size=SIDE)
    batch = collate([dataset[index] for index in range(8)])
    bins = {"coding": "ltrb", "bins": 8} if isinstance(loss, losses.GeneralizedFocalLoss) else {}
    settings = DetectorSettings(
        input=InputSettings(SIDE, SIDE),
        backbone=BackboneSettings("resnet10t", args={"channels": [8, 16, 32, 64], "stem_width": 8}),
        neck=NeckSettings(32, extra_levels=0, norm="bn"),
        head=HeadSettings(32, depth=1, norm="bn", **bins),
        anchors=AnchorSettings(base=3.0),
        postprocess=PostprocessSettings(score_threshold=0.0, topk=300),
    )
    detector = Detector(settings, dataset.classes)
    criterion = Criterion(loss, ATSS(), BOX.get(type(loss).__name__))
    optimizer = torch.optim.AdamW(detector.parameters(), lr=0.004, weight_decay=0.05, fused=True)
    steps, rate = GENTLY.get(type(loss).__name__, (40, 0.012))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        criterion(detector(batch.images), batch.targets).total.backward()
        torch.nn.utils.clip_grad_norm_(detector.parameters(), 10.0)
        optimizer.step()
        schedule.step()
    detector.eval()
    sizes = [(SIDE, SIDE)] * 8
    with torch.inference_mode():
        detections = detector.postprocess(detector(batch.images), sizes, sizes)
    found = {record.image_id: each for record, each in zip(dataset.records, detections, strict=True)}
    return evaluate(dataset.ground_truth(), found, dataset.category_ids, dataset.classes).summary()["ap50"]


NAMES = sorted(
    name
    for name, item in vars(losses).items()
    if isinstance(item, type) and issubclass(item, Loss) and item not in (Loss, losses.PairwiseError)
)


@pytest.mark.parametrize("name", NAMES)
def test_a_detector_overfits_eight_images(name):
    assert train(getattr(losses, name)()) > LEAST.get(name, 70.0)


class _NoGradient(losses.FocalLoss):
    def outcome(self, logits, labels, quality=None, image=None):
        return losses.Outcome(0 * logits.sum())


def test_the_overfitting_test_fails_without_a_loss():
    assert train(_NoGradient()) < 10
