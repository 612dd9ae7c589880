"""Detectors of transformers, trained by ranking with their own training call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from integration_models import CLASSES, TRANSFORMERS, deformable_detr, detr, rt_detr_v2
from torch import Tensor, nn
from torchvision.ops import box_convert, box_iou
from transformers import ResNetConfig, ResNetForImageClassification
from transformers.loss.loss_deformable_detr import DeformableDetrHungarianMatcher
from transformers.loss.loss_for_object_detection import HungarianMatcher

from rankwise.data import ShapesDataset
from rankwise.evaluation import evaluate
from rankwise.integrations.transformers import use_ranking
from rankwise.losses import APELoss, FocalLoss

Build = Callable[[], Any]
every_model = pytest.mark.parametrize("build", TRANSFORMERS.values(), ids=TRANSFORMERS.keys())

CLASSIFICATION = ("loss_vfl", "loss_ce")


def images() -> Tensor:
    torch.manual_seed(1)
    return torch.rand(2, 3, 96, 96)


def objects() -> list[dict[str, Tensor]]:
    return [
        {
            "class_labels": torch.tensor([1, 7, 1]),
            "boxes": torch.tensor([[0.3, 0.3, 0.2, 0.4], [0.6, 0.5, 0.3, 0.2], [0.7, 0.8, 0.2, 0.3]]),
        },
        {"class_labels": torch.tensor([3]), "boxes": torch.tensor([[0.5, 0.4, 0.6, 0.5]])},
    ]


def nothing() -> dict[str, Tensor]:
    return {"class_labels": torch.zeros(0, dtype=torch.int64), "boxes": torch.zeros(0, 4)}


def built(build: Build) -> Any:
    torch.manual_seed(0)
    return build().train()


def called(model: Any, labels: list[dict[str, Tensor]] | None = None) -> Any:
    torch.manual_seed(2)  # denoising draws its noise
    return model(pixel_values=images(), labels=labels or objects())


@every_model
def test_only_the_classification_losses_change(build: Build) -> None:
    own, ranked = called(built(build)), called(use_ranking(built(build)))
    assert set(ranked.loss_dict) == set(own.loss_dict)
    for name, value in own.loss_dict.items():
        if name.startswith(CLASSIFICATION):
            assert ranked.loss_dict[name].item() > 0
            assert ranked.loss_dict[name].item() != pytest.approx(value.item(), rel=1e-3)
        else:
            torch.testing.assert_close(ranked.loss_dict[name], value)
    torch.testing.assert_close(ranked.logits, own.logits)


@every_model
def test_the_loss_is_the_models_weighted_sum_with_the_ranking_in_it(build: Build) -> None:
    once, twice = called(use_ranking(built(build))), called(use_ranking(built(build), weight=2.0))
    ranking = sum(value for name, value in once.loss_dict.items() if name.startswith(CLASSIFICATION))
    torch.testing.assert_close(twice.loss - once.loss, ranking, rtol=1e-3, atol=1e-4)


@every_model
def test_a_step_gives_every_weight_a_gradient_that_had_one_before(build: Build) -> None:
    own, ranked = built(build), use_ranking(built(build))
    for model in (own, ranked):
        called(model).loss.backward()
    had = {name for name, weight in own.named_parameters() if weight.grad is not None and bool(weight.grad.any())}
    has = {name for name, weight in ranked.named_parameters() if weight.grad is not None and bool(weight.grad.any())}
    # A constant added to all scores of a layer changes no ranking: its gradient is 0, or what rounding leaves of it.
    shifts = {name for name in had if "lqe_layers" in name and name.endswith("reg_conf.layers.1.bias")}
    assert has - shifts == had - shifts
    assert all(bool(weight.grad.isfinite().all()) for weight in ranked.parameters() if weight.grad is not None)


@every_model
def test_images_without_objects_are_no_obstacle(build: Build) -> None:
    model = use_ranking(built(build))
    assert bool(called(model, [objects()[0], nothing()]).loss.isfinite())
    outputs = called(model, [nothing(), nothing()])
    assert {value.item() for name, value in outputs.loss_dict.items() if name.startswith(CLASSIFICATION)} == {0}
    outputs.loss.backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in model.parameters() if weight.grad is not None)


@every_model
def test_outputs_and_weights_stay_the_models_own(build: Build) -> None:
    own, ranked = built(build).eval(), use_ranking(built(build)).eval()
    assert list(ranked.state_dict()) == list(own.state_dict())
    with torch.no_grad():
        expected, found = own(pixel_values=images()), ranked(pixel_values=images())
    assert type(found) is type(expected)
    assert list(found) == list(expected)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.pred_boxes, expected.pred_boxes)


def by_hand(
    logits: Tensor, boxes: Tensor, labels: list[dict[str, Tensor]], matches: list[tuple[Tensor, Tensor]], loss: APELoss
) -> Tensor:
    """The ranking loss of a batch, query by query."""
    kinds = torch.full(logits.shape[:2], CLASSES)
    quality = torch.zeros(logits.shape[:2])
    for number, (queries, matched) in enumerate(matches):
        for query, place in zip(queries.tolist(), matched.tolist(), strict=True):
            kinds[number, query] = labels[number]["class_labels"][place]
            pair = torch.stack([boxes[number, query], labels[number]["boxes"][place]])
            quality[number, query] = box_iou(*box_convert(pair, "cxcywh", "xyxy")[:, None]).item()
    which = torch.arange(len(labels)).repeat_interleave(logits.shape[1])
    return loss(logits.flatten(0, 1), kinds.flatten(), quality.flatten(), which)


@pytest.mark.parametrize("scope", ["batch", "image"])
def test_the_ranking_is_over_the_matched_queries(scope: Any) -> None:
    outputs = called(use_ranking(built(deformable_detr), APELoss(scope=scope)))
    matcher = DeformableDetrHungarianMatcher(class_cost=1, bbox_cost=5, giou_cost=2)
    layers = [(outputs, "loss_ce"), (outputs.auxiliary_outputs[0], "loss_ce_0")]
    for layer, name in layers:
        logits, boxes = layer["logits"], layer["pred_boxes"].detach()
        matches = matcher({"logits": logits, "pred_boxes": boxes}, objects())
        expected = by_hand(logits, boxes, objects(), matches, APELoss(scope=scope, method="dense"))
        torch.testing.assert_close(outputs.loss_dict[name], expected, rtol=1e-4, atol=1e-6)


def test_scope_image_ranks_each_image_by_itself() -> None:
    model = use_ranking(built(deformable_detr).eval(), APELoss(scope="image"))
    both = model(pixel_values=images(), labels=objects()).loss_dict["loss_ce"]
    alone = [
        model(pixel_values=image[None], labels=[label]).loss_dict["loss_ce"]
        for image, label in zip(images(), objects(), strict=True)
    ]
    torch.testing.assert_close(both, (3 * alone[0] + alone[1]) / 4, rtol=1e-4, atol=1e-6)
    batch = use_ranking(model, APELoss(scope="batch"))(pixel_values=images(), labels=objects()).loss_dict["loss_ce"]
    assert both.item() != pytest.approx(batch.item(), rel=1e-3)


def test_a_softmax_with_background_has_its_log_odds_ranked() -> None:
    outputs = called(use_ranking(built(detr)))
    matcher = HungarianMatcher(class_cost=1, bbox_cost=5, giou_cost=2)
    boxes = outputs.pred_boxes.detach()
    matches = matcher({"logits": outputs.logits, "pred_boxes": boxes}, objects())
    scores = outputs.logits.double().softmax(-1)[..., :-1]
    expected = by_hand((scores / (1 - scores)).log(), boxes, objects(), matches, APELoss(method="dense"))
    torch.testing.assert_close(outputs.loss_dict["loss_ce"].double(), expected, rtol=1e-4, atol=1e-6)


def test_denoising_queries_rank_among_themselves() -> None:
    outputs = called(use_ranking(built(rt_detr_v2)))
    denoising = outputs.denoising_meta_values
    count = denoising["dn_num_split"][0]
    labels = objects()
    matches = [
        (places, torch.arange(len(label["boxes"])).repeat(denoising["dn_num_group"]))
        for places, label in zip(denoising["dn_positive_idx"], labels, strict=True)
    ]
    logits = outputs.intermediate_logits[:, -1, :count]
    boxes = outputs.intermediate_reference_points[:, -1, :count].detach()
    expected = by_hand(logits, boxes, labels, matches, APELoss(method="dense"))
    torch.testing.assert_close(outputs.loss_dict["loss_vfl_dn_1"], expected, rtol=1e-4, atol=1e-6)


def test_other_models_of_the_kind_keep_their_loss() -> None:
    other = built(rt_detr_v2)
    before = called(other).loss
    called(use_ranking(built(rt_detr_v2)))
    torch.testing.assert_close(called(other).loss, before)


def test_another_loss_can_follow_and_copies_are_on_their_own() -> None:
    model = use_ranking(built(deformable_detr).eval())
    ranked = called(model).loss_dict["loss_ce"].item()
    other = copy.deepcopy(model)
    use_ranking(model, FocalLoss())
    assert called(model).loss_dict["loss_ce"].item() != pytest.approx(ranked, rel=1e-3)
    assert called(other).loss_dict["loss_ce"].item() == pytest.approx(ranked)


@pytest.mark.parametrize(
    "model",
    [nn.Linear(1, 1), ResNetForImageClassification(ResNetConfig(hidden_sizes=[8], depths=[1], embedding_size=8))],
    ids=["linear", "classifier"],
)
def test_models_that_are_no_detectors_are_refused(model: Any) -> None:
    with pytest.raises(TypeError, match=f"deformable DETR, not a {type(model).__name__}"):
        use_ranking(model)


@pytest.mark.slow
def test_a_ranked_rt_detr_learns_eight_images_by_heart() -> None:
    torch.manual_seed(0)
    size, steps = 64, 140
    dataset = ShapesDataset("train", images=8, size=size)
    pixels = torch.stack([image for image, _ in dataset]) / 255
    targets = [target for _, target in dataset]
    labels = [
        {"class_labels": target["labels"], "boxes": box_convert(target["boxes"], "xyxy", "cxcywh") / size}
        for target in targets
    ]
    model = use_ranking(rt_detr_v2(), loss=APELoss()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(pixel_values=pixels, labels=labels).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        outputs = model.eval()(pixel_values=pixels)
    scores, place = outputs.logits.sigmoid().flatten(1).topk(100)
    boxes = box_convert(outputs.pred_boxes, "cxcywh", "xyxy") * size
    detections = {
        target["image_id"]: {"boxes": b[p // CLASSES], "scores": s, "labels": p % CLASSES}
        for target, b, s, p in zip(targets, boxes, scores, place, strict=True)
    }
    result = evaluate(dataset.ground_truth(), detections, dataset.category_ids, dataset.classes)
    assert result.ap50 is not None
    assert result.ap is not None
    assert result.ap50 > 80
    assert result.ap > 45
