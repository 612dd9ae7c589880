"""`rankwise.calibrate`: default thresholds suit a model that was trained by ranking, and its AP stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from integration_models import CLASSES, deformable_detr, detr, fcos, retinanet, rt_detr_v2, ssdlite
from torch import Tensor, nn
from transformers_models import conditional_detr

import rankwise
from rankwise.data import ShapesDataset
from rankwise.evaluation import evaluate
from rankwise.integrations.torchvision import use_ranking

SIZE = 96


def images() -> tuple[list[Tensor], list[dict[str, Tensor]], ShapesDataset]:
    dataset = ShapesDataset("train", images=4, size=SIZE)
    return [image / 255 for image, _ in dataset], [target for _, target in dataset], dataset


def logit(score: Tensor) -> Tensor:
    return (score / (1 - score)).log()


@pytest.mark.parametrize(("build", "power"), [(retinanet, 1.0), (fcos, 0.5)], ids=["retinanet", "fcos"])
def test_torchvision_scores_shift_and_ap_stays(build: Any, power: float) -> None:
    torch.manual_seed(0)
    pixels, targets, dataset = images()
    pixels = [image.double() for image in pixels]
    model = use_ranking(build(SIZE)).double().eval()  # so that rounding makes no ties
    model.score_thresh = 0.0
    nn.init.normal_(model.head.classification_head.cls_logits.weight, std=0.1)

    def detect() -> list[dict[str, Tensor]]:
        with torch.no_grad():
            found: list[dict[str, Tensor]] = model(pixels)
        return found

    # an object is where the untrained model is surest, so that something is right
    before = detect()
    truth = [{"boxes": found["boxes"][:2], "labels": found["labels"][:2]} for found in before]
    shift = rankwise.calibrate(model, [(pixels[:2], truth[:2]), (pixels[2:], truth[2:])])
    after = detect()
    assert model.score_thresh == 0.0
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new["boxes"], old["boxes"])
        moved = logit(new["scores"].double() ** (1 / power)) - logit(old["scores"].double() ** (1 / power))
        torch.testing.assert_close(moved, torch.full_like(moved, shift), rtol=1e-3, atol=1e-3)
    shown = sum(int((found["scores"] >= 0.5 - 1e-4).sum()) for found in after)
    assert 0 < shown < sum(len(found["scores"]) for found in after)
    results = [
        evaluate(
            dataset.ground_truth(),
            {target["image_id"]: found for target, found in zip(targets, detections, strict=True)},
            dataset.category_ids,
            dataset.classes,
        )
        for detections in (before, after)
    ]
    assert results[0].ap == results[1].ap


@pytest.mark.parametrize("build", [rt_detr_v2, deformable_detr, conditional_detr])
def test_transformers_logits_shift_alike(build: Any) -> None:
    torch.manual_seed(0)
    model = build().eval()
    pixels = torch.stack(images()[0])
    with torch.no_grad():
        before = model(pixels)
    best = before.logits.flatten(1).argmax(1)
    labels = [
        {"class_labels": best[image, None] % CLASSES, "boxes": before.pred_boxes[image, best[image] // CLASSES][None]}
        for image in range(len(pixels))
    ]
    shift = rankwise.calibrate(model, [{"pixel_values": pixels, "labels": labels}], threshold=0.3)
    with torch.no_grad():
        after = model(pixels)
    torch.testing.assert_close(after.logits, before.logits + shift, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after.pred_boxes, before.pred_boxes)
    assert bool((after.logits.sigmoid().amax((1, 2)) >= 0.3 - 1e-4).any())


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (ssdlite, ValueError, "SSD has softmax scores"),
        (fcos, ValueError, "multiplies its scores by centerness"),
        (detr, ValueError, "no sigmoid scores"),
        (lambda: nn.Linear(1, 1), TypeError, "calibrate supports detectors of torchvision"),
    ],
    ids=["ssd", "fcos", "detr", "linear"],
)
def test_models_that_no_constant_suits_are_refused(model: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        rankwise.calibrate(model(), [])


def test_images_without_objects_are_refused() -> None:
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    with pytest.raises(ValueError, match="no image of the loader has objects"):
        rankwise.calibrate(retinanet(SIZE), [(images()[0][:1], [nothing])])
